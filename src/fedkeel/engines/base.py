"""What every engine works with: the clients, the rows each visits in which order, the outcome of an exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.method import Method, Phase, State, Update, sampled
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree, select
from fedkeel.data.ownership import Ownership
from fedkeel.engines.gate import Refusal


@dataclass(frozen=True)
class Clients:
    """The simulated clients: all rows in one tensor, who owns which, and what each keeps for itself."""

    names: Sequence[str]
    x: Tensor
    y: Tensor
    owned: Ownership
    seed: int
    classes: int
    private: dict[int, Tree] = field(default_factory=dict)
    """Only of clients that were visited, and only for methods that keep something."""
    validation: Ownership | None = None
    """The rows of each client that are held back from training."""

    def mine(self, client: int, method: Method, state: State) -> Tree:
        return self.private.get(client) or method.private(state)

    def rows(self, client: int) -> Tensor:
        return torch.from_numpy(self.owned.of(client))

    def measured(self, client: int, phase: Phase) -> Tensor:
        """The rows that a client looks at in a phase without training."""
        if phase.on == "train":
            return self.rows(client)
        held = self.validation
        return torch.from_numpy(held.of(client)) if held is not None else torch.empty(0, dtype=torch.int64)

    @cached_property
    def counts(self) -> Tensor:
        """How many rows of each class each client has."""
        return torch.from_numpy(self.owned.label_counts(self.y.numpy(), self.classes)).float()


@dataclass(frozen=True)
class Exchange:
    """What came of one phase on one cohort."""

    update: Update | None
    """None if nothing was sent or nothing was accepted."""
    accepted: int
    refused: list[Refusal]
    bytes_up: int
    bytes_down: int
    client_seconds: float
    """Mean working time of a client."""
    server_seconds: float


class Engine(Protocol):
    def exchange(self, method: Method, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange: ...


def choose(clients: Clients, method: Method, phase: Phase, round: int, before: list[int]) -> list[int]:
    """The cohort of a phase: clients without rows never take part. With "once" it is empty when all have."""
    able = np.flatnonzero(clients.owned.sizes).tolist()
    if phase.cohort == "same":
        return before
    if phase.cohort == "all" or (phase.cohort == "sample" and method.participation == 1.0):
        return able
    count = max(1, sampled(method.participation, len(able)))
    if phase.cohort == "once":
        order = generator(clients.seed, "cohort", phase.name).permutation(able)
        return sorted(order[(round - 1) * count : round * count].tolist())
    drawn = generator(clients.seed, "cohort", round, phase.name).choice(able, size=count, replace=False)
    return sorted(drawn.tolist())


def going_down(state: State, phase: Phase) -> Tree:
    """What every client of the phase receives alike."""
    return state.down if phase.gets is None else select(state.down, phase.gets)


def visited(sizes: np.ndarray, phase: Phase) -> np.ndarray:
    """How many of its rows each client visits per epoch: the nearest whole number, at least one."""
    return np.maximum(1, np.floor(phase.rows * sizes + 0.5)).astype(np.int64)


def steps_of(sizes: np.ndarray, phase: Phase) -> np.ndarray:
    """How many steps clients with this many rows take in the phase."""
    return phase.epochs * -(-visited(sizes, phase) // phase.batch)


def one_batch(sizes: np.ndarray, phase: Phase) -> np.ndarray:
    """Where all rows make a single batch, their order does not matter and is not drawn."""
    return (phase.rows == 1.0) & (sizes <= phase.batch)


def schedule(clients: Clients, client: int, round: int, phase: Phase) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, uniform numbers) of each step of one client, keyed by seed, round, phase and the client's name."""
    rows = clients.owned.of(client)
    size = np.array(len(rows))
    count = int(visited(size, phase))
    name = clients.names[client]
    order = None if one_batch(size, phase) else generator(clients.seed, "order", round, phase.name, name)
    draws = generator(clients.seed, "draws", round, phase.name, name) if phase.draws else None
    for _ in range(phase.epochs):
        seen = rows if order is None else rows[order.permutation(len(rows))[:count]]
        u = draws.random(count, dtype=np.float32) if draws else np.empty(0, dtype=np.float32)
        for first in range(0, count, phase.batch):
            yield seen[first : first + phase.batch], u[first : first + phase.batch]
