"""IFCA: several models, and each client trains the one that fits its rows best.

Ghosh, Chung, Yin, Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, arXiv 2006.04088,
Algorithm 1 with model averaging. The server holds k models theta_1 .. theta_k. In every round a client that takes part
finds j = argmin_j F_i(theta_j) on its training rows and trains theta_j; the server sets each theta_j to the mean of the
models that were trained from it, and leaves it where nobody chose it.

The models are one tensor for each name, with an axis for k in front, and a client sends how that moved: zeros but for
its own, and which one that is, so the server needs nothing but sums. What it learns of a client is its choice. Our
choices: k = 2; means are taken by rows (the paper's clients are equally large); models start as k fresh networks, and
differ by their heads alone if the network is pretrained; all k go down for the choice and again for the training; the
last round ends with everybody's choice among the final models, which is the model that a client predicts with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from fedkeel.core.method import Phase, State, Task, Update, Visit, added, register
from fedkeel.core.rng import generator
from fedkeel.core.tree import NETWORK, Tensor, Tree, put, stack, take, unstack
from fedkeel.methods.heads.base import per_class
from fedkeel.methods.network import fresh_network
from fedkeel.methods.networks.base import Network
from fedkeel.models.losses import softmax_rows
from fedkeel.rows.inputs import Inputs

CLUSTERS, MEMBERS, LOSSES = "cluster.", "members", "losses"
"""The models, how many rows chose each of them, and what each costs on a client's rows, which it keeps."""


@register("ifca", paper="each client trains the best fitting of several models (Ghosh et al., NeurIPS 2020)")
class IFCA(Network):
    common: ClassVar[bool] = False

    clusters: int = Field(2, ge=1)
    """k; 1 = fedavg"""

    def start(self, task: Task) -> State:
        seeds = [task.seed, *generator(task.seed, "clusters").integers(2**31, size=self.clusters - 1).tolist()]
        models = stack([fresh_network(replace(task, seed=seed)) for seed in seeds])
        return State(put(CLUSTERS, models), {MEMBERS: torch.zeros(self.clusters)})

    def plan(self, round: int) -> list[Phase]:
        choose = Phase("choose", gets=(CLUSTERS,), epochs=0)
        train = self.phase("train", NETWORK, (CLUSTERS, MEMBERS), gets=(CLUSTERS,), cohort="same")
        last = [replace(choose, name="settle", cohort="all")] if round == self.rounds else []
        return [choose, train, *last]

    def measure(self, x: Tensor | Inputs, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        models = take(CLUSTERS, visit.down)
        losses = [softmax_rows(self.network.predict(unstack(models, j), x), y).mean() for j in range(self.clusters)]
        return {}, {LOSSES: torch.stack(losses)}

    def begin(self, visit: Visit) -> Tree:
        return unstack(take(CLUSTERS, visit.down), best(visit.mine))

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        chosen = torch.eye(self.clusters)[best(visit.mine)]
        moved = {name: value - visit.down[CLUSTERS + name] for name, value in params.items()}
        sends = {name: per_class(chosen, value) * value for name, value in moved.items()}
        return {**put(CLUSTERS, sends), MEMBERS: chosen}, visit.mine

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        share = update.mean[MEMBERS]
        share = torch.where(share > 0, share, 1.0)  # of a model that nobody chose, the move is 0 anyway
        moved = {name: update.mean[name] / per_class(share, value) for name, value in state.shared.items()}
        return replace(state, shared=added(state.shared, moved))

    def predict(self, state: State, mine: Tree, x: Tensor | Inputs) -> Tensor:
        """A client that has not chosen yet takes the first model."""
        chosen = best(mine) if mine else 0
        return self.network.predict(unstack(take(CLUSTERS, state.shared), chosen), x)


def best(mine: Tree) -> int:
    """The model with the least loss on a client's rows."""
    return int(mine[LOSSES].argmin())
