"""FedSoup: a client's model is an average of its local one and of the global ones that help it.

Chen, Jiang, Dou, Wang, Li, FedSoup: Improving Generalization and Personalization in Federated Learning via Selective
Model Interpolation, MICCAI 2023. FedAvg until the share ``trigger`` of the rounds is over. Afterwards a client trains
the global model g that came down to its local model l, and with its pool of m global models, whose mean is p, makes
    A = (l + m p) / (m + 1),   B = (l + m p + g) / (m + 2).
If B is more accurate on held-back rows, g joins the pool and B is the client's model, else A is. The model is what the
server averages, and what the client predicts with.

The authors' code chooses between A and B on test rows; here the rows are those held back for validation. Our choices:
statistics of batch norms are averaged like weights (their code keeps the local ones); a client without validation rows
takes A; one that was not visited since the trigger predicts with the global model.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.core.method import Phase, State, Visit, register
from fedkeel.core.tree import NETWORK, Tensor, Tree, put, take
from fedkeel.methods.networks.base import OWN, Network
from fedkeel.rows.inputs import Inputs

LOCAL, POOL, COUNT = "local.", "pool.", "count"
"""l from training to choosing, p and m, all private."""


@register("fedsoup", paper="local and helpful global models averaged (Chen et al., MICCAI 2023)")
class FedSoup(Network):
    trigger: float = Field(0.75, ge=0, lt=1)
    """share of the rounds that are plain FedAvg"""

    def plan(self, round: int) -> list[Phase]:
        if round <= self.trigger * self.rounds:
            return super().plan(round)
        return [self.phase("train", NETWORK), Phase("soup", sends=NETWORK, cohort="same", epochs=0, on="validation")]

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        if visit.phase.sends:
            return super().end(params, steps, visit)
        return {}, {**visit.mine, **put(LOCAL, params)}

    def measure(self, x: Tensor | Inputs, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        local, latest = take(LOCAL, visit.mine), visit.down
        count = float(visit.mine[COUNT]) if COUNT in visit.mine else 0.0
        pool = take(POOL, visit.mine) or latest  # of an empty pool nothing counts
        larger = mean_of((count, pool), (1.0, latest))
        model, with_latest = mean_of((1.0, local), (count, pool)), mean_of((1.0, local), (count + 1, larger))
        if self.hits(with_latest, x, y) > self.hits(model, x, y):
            model, pool, count = with_latest, larger, count + 1
        sends = {name: value - latest[name] for name, value in model.items()}
        kept = {**put(POOL, pool), COUNT: torch.tensor([count])} if count else {}
        return sends, {**put(OWN, model), **kept}

    def hits(self, model: Tree, x: Tensor | Inputs, y: Tensor) -> int:
        if not len(y):
            return 0
        with torch.no_grad():
            return int((self.predict(State(model), {}, x).argmax(1) == y).sum())


def mean_of(one: tuple[float, Tree], other: tuple[float, Tree]) -> Tree:
    """The mean of two models that count differently."""
    (first, left), (second, right) = one, other
    return {name: (first * left[name] + second * right[name]) / (first + second) for name in left}
