"""FedAvg of a softmax head on frozen features ("LP-softmax" in the OvA-LP paper's ablation), or of a whole network.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1:
    w_{t+1} = sum_k (n_k / n) w^k_{t+1}
with the cross-entropy of OvA-LP Section 3.3, whose gradient with respect to w_c is -(1[y = c] - p_c(x)) h(x).

With ``tune = "network"`` the encoder is trained too, end to end on inputs; its head has a bias and starts as PyTorch
starts linear layers. The statistics of batch norms are averaged like everything else, and move in local training only;
dropout is off (our choices).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.core.method import Batch, State, Task, Visit, register
from fedkeel.core.rng import generator
from fedkeel.core.tree import HEAD, NETWORK, Tree
from fedkeel.methods.heads.base import BIAS, WEIGHT, LinearProbe, logits
from fedkeel.models.backbone import features_of
from fedkeel.models.losses import softmax_residual, softmax_rows

PART = 256
"""Rows that a network predicts at once."""


@register("fedavg", paper="LP-softmax: one softmax head, averaged by rows (McMahan et al., AISTATS 2017)")
class FedAvg(LinearProbe):
    tune: Literal["head", "network"] = "head"
    """head: on frozen features; network: the encoder as well, end to end"""
    tokens: int = Field(128, ge=2)
    """network: of a text, read at most this many tokens"""

    @property
    def reads(self) -> Literal["features", "inputs"]:
        return "inputs" if self.tune == "network" else "features"

    @property
    def tuned(self) -> tuple[str, ...]:
        return NETWORK if self.tune == "network" else (HEAD,)

    def start(self, task: Task) -> State:
        if self.tune == "head":
            return super().start(task)
        return State({**random_head(task), **task.backbone.tree(task.seed)})

    def rows(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        return softmax_rows(logits, batch.y)

    def residual(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        return softmax_residual(logits, batch.y)

    @property
    def in_closed_form(self) -> bool:
        return self.tune == "head" and type(self).loss is FedAvg.loss

    def loss(self, params: Tree, batch: Batch, visit: Visit) -> Tensor:
        scores = network_logits({**visit.down, **visit.mine, **params}, batch.x)
        return batch.mean(self.rows(scores, batch, visit))

    def predict(self, state: State, mine: Tree, x: Any) -> Tensor:
        if self.tune == "head":
            return super().predict(state, mine, x)
        return torch.cat([network_logits({**state.shared, **mine}, x[i : i + PART]) for i in range(0, len(x), PART)])


def network_logits(tree: Tree, x: Any) -> Tensor:
    """Of rows that the network in the tree reads, or of features."""
    return logits(tree, features_of(tree, x))


def random_head(task: Task) -> Tree:
    """Uniform within 1 / sqrt(d), as PyTorch starts a linear layer."""
    draw, bound = generator(task.seed, "head"), task.dim**-0.5
    weight, bias = draw.uniform(-bound, bound, (task.classes, task.dim)), draw.uniform(-bound, bound, task.classes)
    return {WEIGHT: torch.from_numpy(weight).float(), BIAS: torch.from_numpy(bias).float()}
