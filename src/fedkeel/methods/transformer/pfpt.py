"""PFPT: prompt tokens before a frozen transformer's own, gathered by matching instead of averaging.

Weng et al., Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced Data, NeurIPS 2024. Prompts have no order
that clients agree on, so the server asks which of the clients' prompts are versions of the same global one
(``prompt_matching.py``) before it averages them. The head is averaged by rows.

Our choices: the covariance is fixed and the chance of each global prompt counted, where the released code
trains two small networks for them; of the global prompts the ``prompts`` ones that most clients hold go down, so that
all clients keep equally many; prompts come after the first token, and take part in a mean over tokens.
Settings of OvA-LP's Table 8: 10 prompts, Adam lr 1e-4 with betas 0.9, 0.98 and eps 1e-6, 5 epochs, batch 16, and 10 of
100 clients in a round: here the share is of all clients, however many of them have rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import Field

from fedkeel.core.method import Phase, State, Task, Update, added, register, sampled
from fedkeel.core.optim import AdamW, Optim
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree
from fedkeel.methods.transformer.base import Tuned
from fedkeel.methods.transformer.prompt_matching import match
from fedkeel.models.backbone import Backbone
from fedkeel.rows.inputs import Inputs

PROMPTS = "prompts"


@register("pfpt", paper="prompt tokens, matched on the server (Weng et al., NeurIPS 2024)")
class PFPT(Tuned):
    participation: float = Field(0.1, gt=0, le=1)
    """as many clients with rows take part in a round as this share of all clients is"""
    prompts: int = Field(10, ge=1)
    epochs: int = Field(5, ge=1)
    batch: int = Field(16, ge=1)
    lr: float = Field(1e-4, gt=0)
    weight_decay: float = Field(0.0, ge=0)

    @property
    def optim(self) -> Optim:
        usual = super().optim
        return replace(usual, beta2=0.98, eps=1e-6) if isinstance(usual, AdamW) else usual

    def sample(self, clients: int, able: int) -> int:
        return min(able, sampled(self.participation, clients))

    def adapters(self, task: Task) -> Tree:
        return fresh_prompts(task, self.prompts)

    def adapted(self, params: Tree, x: Inputs) -> Mapping[str, Any]:
        return {"prompts": params[PROMPTS]}

    def plan(self, round: int) -> list[Phase]:
        whole = (PROMPTS, "head.")
        return [self.phase("train", whole, whole, each=(PROMPTS,))]

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        theirs = state.shared[PROMPTS] + update.each[PROMPTS]
        found, clients, _ = match(theirs.numpy())
        most = np.argsort(-clients, kind="stable")[: self.prompts]
        return State({**added(state.shared, update.mean), PROMPTS: torch.from_numpy(found[np.sort(most)]).float()})


def fresh_prompts(task: Task, count: int) -> Tree:
    drawn = generator(task.seed, "prompts").normal(scale=0.02, size=(count, Backbone.in_task(task).width))
    return {PROMPTS: torch.from_numpy(drawn).float()}
