"""Per-FedAvg: a model that is a good start for a step of the client's own.

Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach, NeurIPS 2020, Algorithm 1 in its first-order form (FO). A local step on two batches B1, B2 is
    w' = w - alpha grad L_B1(w),   w <- w - beta grad L_B2(w'),
where the derivative of w' with respect to w is taken to be the identity. The server averages w; a client's own model is
w after steps w <- w - alpha grad L(w) on its rows.

Our choices: B1 and B2 are the halves of one batch; statistics of batch norms follow both; the outer step is one of the
optimizer with lr = beta (the paper: plain SGD); alpha = 0.01. The last round ends with a phase in which every client
adapts for ``adapt_epochs`` passes; before that, clients have no model of their own.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, Visit, register
from fedkeel.core.optim import SGD
from fedkeel.core.tree import NETWORK, Tensor, Tree, learnt, put
from fedkeel.methods.networks.base import OWN, Network, halves
from fedkeel.rows.inputs import Inputs

ADAPT = "adapt"


@register("per-fedavg", paper="a shared start for each client's own steps (Fallah et al., NeurIPS 2020)")
class PerFedAvg(Network):
    alpha: float = Field(0.01, gt=0)
    """size of the inner step, and of the steps that adapt"""
    adapt_epochs: int = Field(1, ge=1)
    """passes of inner steps that make the model a client's own"""

    def plan(self, round: int) -> list[Phase]:
        train = super().plan(round)
        if round < self.rounds:
            return train
        adapt = self.phase(ADAPT, NETWORK, cohort="all", epochs=self.adapt_epochs, optim=SGD(self.alpha))
        return [*train, adapt]

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        """In training L_B2(w'), whose gradient with respect to w is the first-order one."""
        if visit.phase.name == ADAPT:
            return self.network.cross_entropy(params, batch)
        first, second = halves(batch)
        moving = learnt(params)
        grads = torch.autograd.grad(self.network.cross_entropy(params, first), list(moving.values()))
        inner = {name: w - self.alpha * grad for (name, w), grad in zip(moving.items(), grads, strict=True)}
        return self.network.cross_entropy({**params, **inner}, second)

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        return ({}, put(OWN, params)) if visit.phase.name == ADAPT else super().end(params, steps, visit)
