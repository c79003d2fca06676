"""Small federations and methods for tests: real learning problems that fit in a second."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.ownership import Ownership
from fedkeel.engines.base import Clients
from fedkeel.method import Batch, Phase, State, Task, Trained, Update, Visit, added
from fedkeel.methods.linear_probe import BIAS, WEIGHT, logits
from fedkeel.models.losses import softmax_rows
from fedkeel.optim import SGD
from fedkeel.rng import generator
from fedkeel.tree import Tree

DIM, CLASSES = 6, 4
TASK = Task(DIM, CLASSES, clients=7, seed=0)


def clients(sizes: tuple[int, ...] = (23, 8, 0, 50, 1, 17, 31), seed: int = 0) -> Clients:
    """Clients of very different size, one of them without rows; classes are separable blobs."""
    draw = generator(seed, "test federation")
    y = draw.integers(0, CLASSES, sum(sizes))
    centres = draw.normal(size=(CLASSES, DIM)) * 2
    x = (centres[y] + draw.normal(size=(len(y), DIM))).astype(np.float32)
    owned = Ownership.of_owners(np.repeat(np.arange(len(sizes)), sizes), len(sizes))
    names = [f"site-{index}" for index in range(len(sizes))]
    return Clients(names, torch.from_numpy(x), torch.from_numpy(y), owned, seed, CLASSES)


class ControlVariates(Trained):
    """SCAFFOLD's shape: a server tree that goes down, a private tree, corrected gradients, a uniform mean.

    y <- y - lr (g - c_i + c); c_i+ = c_i - c + (x - y) / (K lr); c += mean(c_i+ - c_i) over all clients.
    """

    name = "control-variates"

    def init(self, task: Task) -> State:
        head = {WEIGHT: torch.zeros(task.classes, task.dim), BIAS: torch.zeros(task.classes)}
        return State(head, {f"c.{name}": torch.zeros_like(value) for name, value in head.items()})

    def private(self, state: State) -> Tree:
        return {f"ci.{name}": torch.zeros_like(value) for name, value in state.shared.items()}

    def plan(self, round: int) -> list[Phase]:
        return [Phase("train", ("head.",), ("head.", "c."), uniform=("c.",), epochs=2, batch=8, optim=SGD(self.lr))]

    def loss(self, params: Tree, batch: Batch, visit: Visit) -> Tensor:
        return batch.mean(softmax_rows(logits(params, batch.x), batch.y))

    def adjust(self, grads: Tree, params: Tree, batch: Batch, visit: Visit) -> Tree:
        return {name: g - visit.mine[f"ci.{name}"] + visit.down[f"c.{name}"] for name, g in grads.items()}

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = {}, {}
        for name, value in params.items():
            moved = value - visit.down[name]
            mine[f"ci.{name}"] = visit.mine[f"ci.{name}"] - visit.down[f"c.{name}"] - moved / (steps * self.lr)
            sends[name] = moved
            sends[f"c.{name}"] = mine[f"ci.{name}"] - visit.mine[f"ci.{name}"]
        return sends, mine

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        return State(added(state.shared, update.mean), added(state.server, update.mean))

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        return logits(state.shared, x)


class PersonalBias(Trained):
    """Two exchanges a round on the same cohort: weights are shared, then a personal bias is trained and stays."""

    name = "personal-bias"

    def init(self, task: Task) -> State:
        return State({WEIGHT: torch.zeros(task.classes, task.dim)})

    def private(self, state: State) -> Tree:
        return {BIAS: torch.full((state.shared[WEIGHT].shape[0],), 0.125)}

    def plan(self, round: int) -> list[Phase]:
        shared = Phase("share", trains=(WEIGHT,), sends=(WEIGHT,), epochs=1, batch=10, optim=self.optim)
        return [shared, Phase("keep", trains=(BIAS,), cohort="same", epochs=1, batch=10, optim=SGD(0.1))]

    def loss(self, params: Tree, batch: Batch, visit: Visit) -> Tensor:
        head = {WEIGHT: visit.down[WEIGHT], BIAS: visit.mine[BIAS], **params}
        return batch.mean(softmax_rows(logits(head, batch.x), batch.y))

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        return logits({**state.shared, **mine}, x)
