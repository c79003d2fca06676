"""Ditto: FedAvg, and beside it a model of the client's own that is held near the shared one.

Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1. With
w^t the shared model that came down, client k moves its own v_k by steps on
    h_k(v; w^t) = F_k(v) + (lambda / 2) |v - w^t|^2
and trains w^t as in FedAvg; v_k never leaves it. lambda = 0 is training alone.

Our choices: lambda = 0.1; as many epochs for v as for w; v_k starts at the w that the client is first visited with,
which is also what a client that was never visited predicts with; statistics of batch norms are not held. w^t goes down
for each of the two phases, which doubles the bytes of a protocol that keeps it in between.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.core.method import Batch, Phase, Visit, register
from fedkeel.core.tree import NETWORK, Tensor, Tree, put, take
from fedkeel.methods.networks.base import OWN, Network, copied
from fedkeel.rows.inputs import Inputs

PERSONAL = "personal"


@register("ditto", paper="FedAvg with a personal model held near it (Li et al., ICML 2021)")
class Ditto(Network):
    lam: float = Field(0.1, ge=0)
    """lambda, strength of the pull towards the shared model; 0 = every client alone"""

    def private(self, down: Tree) -> Tree:
        return put(OWN, copied(down))

    def plan(self, round: int) -> list[Phase]:
        """The client's own model first: it is held near w^t, which the second phase replaces."""
        return [self.phase(PERSONAL, NETWORK), self.phase("train", NETWORK, NETWORK, cohort="same")]

    def begin(self, visit: Visit) -> Tree:
        return take(OWN, visit.mine) if visit.phase.name == PERSONAL else super().begin(visit)

    def adjust(self, grads: Tree, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tree:
        if visit.phase.name != PERSONAL:
            return grads
        return {name: grad + self.lam * (params[name] - visit.down[name]) for name, grad in grads.items()}

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        return ({}, put(OWN, params)) if visit.phase.name == PERSONAL else super().end(params, steps, visit)
