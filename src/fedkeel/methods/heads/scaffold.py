"""SCAFFOLD: control variates correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
ICML 2020, Algorithm 1 with option II. Client i starts at y = x and takes K steps
    y <- y - eta_l (g_i(y) - c_i + c)
    c_i+ = c_i - c + (x - y) / (K eta_l)
and sends dy = y - x and dc = c_i+ - c_i. The server, over the sampled clients S of all N, every client counted alike:
    x <- x + eta_g mean(dy),   c <- c + (|S| / N) mean(dc).

c_i stays on the client, but dc leaves it, as in the paper: a server that adds up what one client sent knows its c_i, a
mean gradient of that client's rows. c goes down with the head, so both directions cost twice the bytes of fedavg.

c is the mean of the c_i of all N clients, whoever was sampled and whose reply was lost: S are the clients whose reply
was accepted, the others keep their c_i. A client without rows is not among the N: it never takes part.

Our choices: the loss is that of fedavg, softmax or one-vs-all; eta_l = 10 suits rows of unit length; c and all
c_i start at zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from fedkeel.core.method import Batch, Phase, State, Task, Update, Visit, added, register
from fedkeel.core.tree import STATS, Tensor, Tree, learnt, select
from fedkeel.methods.heads.fedavg import FedAvg

N = "clients"
"""How many clients can take part; it stays on the server."""


@register("scaffold", paper="control variates correct local steps (Karimireddy et al., ICML 2020)")
class Scaffold(FedAvg):
    optimizer: Literal["adamw", "sgd"] = "sgd"
    """plain sgd only"""
    lr: float = Field(10.0, gt=0)
    server_lr: float = Field(1.0, gt=0)
    """eta_g"""

    @field_validator("optimizer", "momentum")
    @classmethod
    def plain_sgd(cls, value: str | float) -> str | float:
        if value not in ("sgd", 0.0):
            raise PydanticCustomError("plain_sgd", "scaffold reads mean gradients off plain steps: use sgd, momentum 0")
        return value

    def start(self, task: Task) -> State:
        head = super().start(task).shared
        c = {f"c.{name}": torch.zeros_like(value) for name, value in learnt(head).items()}
        return State(head, {**c, N: torch.tensor(float(task.able or task.clients))})

    def private(self, down: Tree) -> Tree:
        return {f"c_i.{name}": torch.zeros_like(value) for name, value in learnt(select(down, self.tuned)).items()}

    def plan(self, round: int) -> list[Phase]:
        both = (*self.tuned, "c.")
        return [self.phase("train", self.tuned, both, gets=both, uniform=both)]

    def adjust(self, grads: Tree, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tree:
        return {name: grad - visit.mine[f"c_i.{name}"] + visit.down[f"c.{name}"] for name, grad in grads.items()}

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = {name: value - visit.down[name] for name, value in params.items()}, {}
        for name, y in learnt(params).items():
            x, c, c_i = visit.down[name], visit.down[f"c.{name}"], visit.mine[f"c_i.{name}"]
            mine[f"c_i.{name}"] = c_i - c + (x - y) / (steps * self.lr)
            sends[f"c.{name}"] = mine[f"c_i.{name}"] - c_i
        return sends, mine

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        rate = self.server_lr
        moved = {name: value if name.startswith(STATS) else rate * value for name, value in update.mean.items()}
        share = len(update.clients) / float(state.server[N])
        corrected = {name: share * value for name, value in update.mean.items()}
        return replace(state, shared=added(state.shared, moved), server=added(state.server, corrected))
