"""FedAvgM and FedAdam: the mean update of the clients is a gradient for an optimizer on the server.

Delta_t is the mean of the clients' updates, weighted by rows as in FedAvg.

FedAvgM: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
arXiv 1909.06335, 2019:
    v <- beta v + Delta_t,   x <- x + eta v
FedAdam: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, Adaptive Federated Optimization, ICLR 2021,
Algorithm 2:
    m <- beta_1 m + (1 - beta_1) Delta_t,   v <- beta_2 v + (1 - beta_2) Delta_t^2,   x <- x + eta m / (sqrt(v) + tau)
without bias correction, beta_1 = 0.9, beta_2 = 0.99, tau = 1e-3. The moments stay on the server.

Our choices: the loss is that of fedavg, softmax or one-vs-all; beta = 0.9 of the papers' grids and eta = 1 for
FedAvgM; eta = 0.1 and v starting at tau^2, the least the paper allows, for FedAdam.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from fedkeel.core.method import Phase, State, Task, Update, added, register
from fedkeel.core.tree import STATS, Tree, learnt, select
from fedkeel.methods.heads.fedavg import FedAvg


class ServerOptimizer(FedAvg):
    server_lr: float = Field(1.0, gt=0)
    """eta"""

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", self.tuned, self.tuned, gets=self.tuned)]

    def follow(self, state: State, update: Update) -> State:
        """The statistics of batch norms are no gradient: they are set to their mean."""
        return replace(state, shared=added(state.shared, select(update.mean, (STATS,))))


@register("fedavgm", paper="momentum on the server (Hsu, Qi, Brown, arXiv 1909.06335)")
class FedAvgM(ServerOptimizer):
    beta: float = Field(0.9, ge=0, lt=1)
    """momentum; 0 = fedavg"""

    def start(self, task: Task) -> State:
        head = super().start(task).shared
        return State(head, {f"v.{name}": torch.zeros_like(value) for name, value in learnt(head).items()})

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        v = {name: self.beta * state.server[f"v.{name}"] + delta for name, delta in learnt(update.mean).items()}
        moved = {name: self.server_lr * value for name, value in v.items()}
        shared = added(self.follow(state, update).shared, moved)
        return State(shared, {f"v.{name}": value for name, value in v.items()})


@register("fedadam", paper="Adam on the server (Reddi et al., ICLR 2021)")
class FedAdam(ServerOptimizer):
    server_lr: float = Field(0.1, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)
    """how adaptive: entries that move less than this are not blown up"""

    def start(self, task: Task) -> State:
        head = super().start(task).shared
        moved = learnt(head)
        first = {f"m.{name}": torch.zeros_like(value) for name, value in moved.items()}
        return State(head, first | {f"v.{name}": torch.full_like(value, self.tau**2) for name, value in moved.items()})

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        shared = dict(self.follow(state, update).shared)
        server: Tree = {}
        for name, delta in learnt(update.mean).items():
            m = self.beta1 * state.server[f"m.{name}"] + (1 - self.beta1) * delta
            v = self.beta2 * state.server[f"v.{name}"] + (1 - self.beta2) * delta.square()
            shared[name] = state.shared[name] + self.server_lr * m / (v.sqrt() + self.tau)
            server |= {f"m.{name}": m, f"v.{name}": v}
        return State(shared, server)
