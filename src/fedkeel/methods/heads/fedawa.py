"""FedAWA: the server learns how much each client counts, from the directions of their updates alone.

Shi, Zhao, Zhang, Zhou, Guo, Chang, FedAWA: Adaptive Optimization of Aggregation Weights in Federated Learning Using
Client Vectors, CVPR 2025, arXiv 2503.15842. With client vectors tau_k = theta_k - theta and tau = sum_k lambda_k tau_k,
the server minimises over weights lambda that are not negative and add up to 1
    sum_k lambda_k (|tau_k - tau| + 1 - cos(theta_k, theta))
and moves by tau: clients count that go where most go, and that do not turn the model far.

The objective is that of the released code. Our choices: lambda_k is n_k exp(a_k), normalised over the cohort, and a_k,
0 at first, stays on the server from round to round (there lambda is the softmax of numbers that start as the shares of
rows, and so nearly uniform); in each round it takes ``server_steps`` steps of a new Adam with ``server_lr``; theta is
all that is learnt, as one vector, and statistics of batch norms are averaged by the same lambda. Updates reach the
server one by one: they cannot be summed in secret.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from fedkeel.core.method import Phase, State, Task, Update, added, register
from fedkeel.core.tree import Tensor, Tree, learnt, weighted
from fedkeel.methods.heads.fedavg import FedAvg

LOGITS = "weights.log"
"""a_k of all clients."""


@register("fedawa", paper="aggregation weights learnt from client vectors (Shi et al., CVPR 2025)")
class FedAWA(FedAvg):
    server_lr: float = Field(0.01, gt=0)
    """of the steps that a_k takes"""
    server_steps: int = Field(10, ge=0)
    """in each round; 0 = fedavg"""

    def start(self, task: Task) -> State:
        return replace(super().start(task), server={LOGITS: torch.zeros(task.clients, dtype=torch.float64)})

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", self.tuned, self.tuned, gets=self.tuned, each=self.tuned)]

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        theta, vectors = flat(state.shared, 0), flat(update.each, 1)
        turned = 1 - torch.nn.functional.cosine_similarity(theta + vectors, theta.unsqueeze(0), dim=1)
        a = state.server[LOGITS][update.clients].requires_grad_()
        adam = torch.optim.Adam([a], lr=self.server_lr)
        for _ in range(self.server_steps):
            (a.grad,) = torch.autograd.grad(objective(shares(a, update.rows), vectors, turned), [a])
            adam.step()
        logits = state.server[LOGITS].index_copy(0, update.clients, a.detach())
        moved = weighted(update.each, shares(a.detach(), update.rows))
        return replace(state, shared=added(state.shared, moved), server={LOGITS: logits})


def shares(a: Tensor, rows: Tensor) -> Tensor:
    """lambda."""
    return (rows.log() + a).softmax(0)


def objective(lam: Tensor, vectors: Tensor, turned: Tensor) -> Tensor:
    apart: Tensor = torch.linalg.vector_norm(vectors - lam @ vectors, dim=1)
    return lam @ (apart + turned)


def flat(tree: Tree, start: int) -> Tensor:
    """All that is learnt as one vector, for each client of a stack; a resumed run has names in another order."""
    return torch.cat([tree[name].double().flatten(start) for name in sorted(learnt(tree))], -1)
