"""FedNova: clients that take more steps do not count more for it.

Wang, Liu, Liang, Joshi, Poor, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020, Section 4. Client i takes tau_i steps of size eta from x to x_i and sends its normalised direction
    d_i = (x - x_i) / (eta |a_i|_1)
where a_i are the weights with which its gradients went into x_i:
    SGD                    |a_i|_1 = tau_i
    SGD with momentum rho  |a_i|_1 = [tau_i - rho (1 - rho^tau_i) / (1 - rho)] / (1 - rho)
The server, with p_i the client's share of the rows, moves by
    x <- x - tau_eff sum_i p_i eta d_i,   tau_eff = sum_i p_i |a_i|_1.
With equally many steps everywhere this is FedAvg. Clients send (x_i - x) / |a_i|_1 and the number |a_i|_1.

Our choices: the loss is that of fedavg, softmax or one-vs-all; eta = 10 suits rows of unit length. AdamW is
refused: how much a gradient counts in it depends on the gradients, not on the number of steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from fedkeel.core.method import Phase, State, Task, Update, Visit, added, register
from fedkeel.core.tree import STATS, Tensor, Tree, learnt, select
from fedkeel.methods.heads.fedavg import FedAvg

LENGTH = "length"
"""|a_i|_1 on its way up; tau_eff of the last round on the server."""


@register("fednova", paper="updates normalised by their number of steps (Wang et al., NeurIPS 2020)")
class FedNova(FedAvg):
    optimizer: Literal["adamw", "sgd"] = "sgd"
    """sgd only"""
    lr: float = Field(10.0, gt=0)

    @field_validator("optimizer")
    @classmethod
    def counts_steps(cls, value: str) -> str:
        if value != "sgd":
            raise PydanticCustomError("sgd", "fednova cannot normalise steps of AdamW: use sgd, momentum is allowed")
        return value

    def start(self, task: Task) -> State:
        return replace(super().start(task), server={LENGTH: torch.zeros(1)})

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", self.tuned, (*self.tuned, LENGTH), gets=self.tuned)]

    def length(self, tau: Tensor) -> Tensor:
        """|a|_1 of tau steps."""
        rho = self.momentum
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        length = self.length(steps)
        sends = {name: value - visit.down[name] for name, value in params.items()}
        sends |= {name: moved / length for name, moved in learnt(sends).items()}
        return {**sends, LENGTH: length.reshape(1)}, {}

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        tau_eff = update.mean[LENGTH]
        moved = {name: tau_eff * value for name, value in learnt(update.mean).items() if name != LENGTH}
        moved |= select(update.mean, (STATS,))
        return replace(state, shared=added(state.shared, moved), server={LENGTH: tau_eff})
