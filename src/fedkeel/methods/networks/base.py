"""What methods that train a whole network and no head alone share: the cross-entropy, end to end on inputs.

Head and encoder start, batch norms move and dropout is off as in ``fedavg`` with ``tune = "network"``. What a client
keeps under its own name takes the place of what is shared, and what it keeps beside it, under ``own.``, does as well.

Our choices, for all of them: AdamW with lr 1e-3, new at every visit, and batches of 64, where their papers mostly take
SGD; what is averaged is averaged by rows.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Task, Trained, Visit
from fedkeel.core.tree import BODY, NETWORK, NORM, STATS, Tensor, Tree, take
from fedkeel.methods.network import WHOLE, NetworkModel, fresh_network
from fedkeel.rows.inputs import Inputs

OWN = "own."
"""Where a client keeps its own version of a tensor that is also shared."""
ENCODER = (BODY, NORM, STATS)


class Network(Trained[Tensor | Inputs]):
    personal: ClassVar[bool] = True
    network: ClassVar[NetworkModel] = WHOLE

    epochs: int = Field(1, ge=1)
    batch: int = Field(64, ge=1)
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    tokens: int = Field(128, ge=2)
    """of a text, read at most this many tokens"""

    @property
    def reads(self) -> Literal["features", "inputs"]:
        return "inputs"

    def start(self, task: Task) -> State:
        return State(fresh_network(task))

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", NETWORK, NETWORK)]

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        return self.network.cross_entropy({**visit.down, **visit.mine, **params}, batch)

    def predict(self, state: State, mine: Tree, x: Tensor | Inputs) -> Tensor:
        return self.network.predict({**state.down, **mine, **take(OWN, mine)}, x)


def copied(tree: Tree) -> Tree:
    """The same values in memory of their own: what a client keeps is never a view of what the server holds."""
    return {name: value.clone() for name, value in tree.items()}


def halves(batch: Batch[Tensor | Inputs]) -> tuple[Batch[Tensor | Inputs], Batch[Tensor | Inputs]]:
    """Two batches of disjoint rows; a single row has to be in both."""
    rows = len(batch.y)
    if rows == 1:
        return batch, batch
    return part_of(batch, slice(rows // 2)), part_of(batch, slice(rows // 2, rows))


def part_of(batch: Batch[Tensor | Inputs], which: slice) -> Batch[Tensor | Inputs]:
    y = batch.y[which]
    return Batch(batch.x[which], y, torch.full((len(y),), 1.0 / len(y)), batch.u[which])
