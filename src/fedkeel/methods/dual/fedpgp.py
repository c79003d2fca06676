"""FedPGP: a client's prompt is the shared one plus a matrix of low rank, and the shared one is held near zero-shot.

Cui et al., Harmonizing Generalization and Personalization in Federated Prompt Learning, ICML 2024. The prompt of
client i is p_i = sigma + U_i V_i with sigma shared and averaged by rows, U_i (tokens x b) and V_i (b x width) its own.
With unit class features t_0(c) of the zero-shot template, t_s(c) of sigma and t_p(c) of p_i:

    loss = CE(y, scale * item . t_p) + mu * mean over c of -log softmax([t_0 . t_s, t_s . t_p] / tau)_1

so that sigma is pulled to zero-shot and pushed from the personal prompt. b = 4, mu = 0.5, tau = 0.5; all three start
from N(0, 0.02 ** 2). Our choices: U and V start alike on all clients; the server draws them and they go down at the
first visit; with ``words`` sigma starts as these; the model without a client is sigma alone; for the last phase see
``jointly.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Task, Visit, register
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tensor, Tree, put, take
from fedkeel.methods.dual.base import OWN, PEFT
from fedkeel.methods.dual.jointly import Jointly
from fedkeel.methods.dual.peft.prompt import CONTEXT
from fedkeel.models.dual import Dual
from fedkeel.rows.items import Items

FIRST = "first."
"""Of the server's tensors from which all clients start."""


@register("fedpgp", paper="a shared prompt plus a personal one of low rank (Cui et al., ICML 2024)")
class FedPGP(Jointly):
    rank: int = Field(4, ge=1)
    """b, of a client's own part"""
    mu: float = Field(0.5, ge=0)
    """weight of the contrastive term"""
    temperature: float = Field(0.5, gt=0)
    """of the contrastive term"""

    def start(self, task: Task) -> State:
        shapes = {"U": (self.tokens, self.rank), "V": (self.rank, Dual.in_task(task).width)}
        draws = {name: generator(task.seed, "fedpgp", name).normal(scale=0.02, size=s) for name, s in shapes.items()}
        first = {name: torch.from_numpy(draw).float() for name, draw in draws.items()}
        return replace(super().start(task), server=put(FIRST, first))

    @property
    def first_visit(self) -> tuple[str, ...]:
        return (FIRST,)

    def private(self, down: Tree) -> Tree:
        return put(OWN, take(FIRST, down))

    def plan(self, round: int) -> list[Phase]:
        return [replace(phase, gets=(PEFT,)) for phase in super().plan(round)]

    def own_start(self, visit: Visit) -> Tree:
        return {}  # all that a client has of its own is in ``private``

    def prompt(self, shared: Tree, own: Tree) -> Tensor:
        """p_i"""
        return shared[CONTEXT] + own["U"] @ own["V"]

    def both(self, shared: Tree, own: Tree, x: Items) -> Tensor:
        return x.logits(x.features, x.dual.class_features(self.prompt(shared, own)))

    def loss(self, params: Tree, batch: Batch[Items], visit: Visit) -> Tensor:
        x = batch.x
        whole = {**visit.down, **params}
        common, own = take(PEFT, whole), take(OWN, whole)
        shared, personal = (x.dual.class_features(context) for context in (common[CONTEXT], self.prompt(common, own)))
        task = self.task_loss(x.logits(x.features, personal), params, batch)
        return task + self.mu * self.contrast(x.dual.zero_shot, shared, personal)

    def contrast(self, zero_shot: Tensor, shared: Tensor, personal: Tensor) -> Tensor:
        near, far = (zero_shot * shared).sum(-1), (shared * personal).sum(-1)
        return -(torch.stack([near, far], -1) / self.temperature).log_softmax(-1)[:, 0].mean()
