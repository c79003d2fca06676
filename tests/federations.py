"""Small federations and methods for tests: real learning problems that fit in a second."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.method import Batch, Method, Phase, State, Task, Trained, Visit
from fedkeel.core.optim import SGD
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree
from fedkeel.data.ownership import Ownership
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.base import BIAS, WEIGHT, logits
from fedkeel.models.losses import softmax_rows
from fedkeel.rows.features import Features

DIM, CLASSES = 6, 4
TASK = Task(DIM, CLASSES, clients=7, seed=0, rows=130, able=6)


def clients(sizes: tuple[int, ...] = (23, 8, 0, 50, 1, 17, 31), seed: int = 0) -> Sites:
    """Clients of very different size, one of them without rows; classes are separable blobs."""
    draw = generator(seed, "test federation")
    y = draw.integers(0, CLASSES, sum(sizes))
    centres = draw.normal(size=(CLASSES, DIM)) * 2
    x = (centres[y] + draw.normal(size=(len(y), DIM))).astype(np.float32)
    owned = Ownership.of_owners(np.repeat(np.arange(len(sizes)), sizes), len(sizes))
    names = [f"site-{index}" for index in range(len(sizes))]
    return Sites(names, Features(torch.from_numpy(x)), torch.from_numpy(y), owned, seed, CLASSES)


def played(method: Method, engine: LocalEngine | WireEngine, start: State, rounds: int = 1) -> State:
    """The state after some rounds."""
    state = start
    for round in range(1, rounds + 1):
        cohort: list[int] = []
        for phase in method.plan(round):
            cohort = choose(engine.roster, method, phase, round, cohort)
            update = engine.exchange(method, state, phase, round, cohort).update
            assert (update is not None) == bool(phase.sends)
            if update is not None:
                state = method.merge(state, update, phase)
    return state


def private_of(engine: Simulated) -> dict[int, Tree]:
    """What each client that was visited keeps for itself."""
    store, names = engine.sites.store, list(engine.roster.names)
    kept = {names.index(name): store.read(name, int(engine.accepted[names.index(name)])) for name in store.clients()}
    return {client: tree for client, tree in sorted(kept.items()) if tree is not None}


def private(who: Sites) -> dict[int, Tree]:
    """What each client wrote last for itself, whether its update was accepted or not."""
    names = list(who.names)
    kept = {names.index(name): who.store.read(name, 2**60) for name in who.store.clients()}
    return {client: tree for client, tree in sorted(kept.items()) if tree is not None}


class PersonalBias(Trained):
    """Two exchanges a round on the same cohort: weights are shared, then a personal bias is trained and stays."""

    name = "personal-bias"

    def start(self, task: Task) -> State:
        return State({WEIGHT: torch.zeros(task.classes, task.dim)})

    def private(self, down: Tree) -> Tree:
        return {BIAS: torch.full((down[WEIGHT].shape[0],), 0.125)}

    def plan(self, round: int) -> list[Phase]:
        shared = Phase("share", trains=(WEIGHT,), sends=(WEIGHT,), epochs=1, batch=10, optim=self.optim)
        return [shared, Phase("keep", trains=(BIAS,), cohort="same", epochs=1, batch=10, optim=SGD(0.1))]

    def loss(self, params: Tree, batch: Batch, visit: Visit) -> Tensor:
        head = {WEIGHT: visit.down[WEIGHT], BIAS: visit.mine[BIAS], **params}
        return batch.mean(softmax_rows(logits(head, batch.x), batch.y))

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        return logits({**state.shared, **mine}, x)
