"""What every engine shares: who takes part, which rows a client visits in which order, the outcome of an exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedkeel.core.message import NEVER
from fedkeel.core.method import AnyMethod, Phase, State, Update
from fedkeel.core.rng import generator
from fedkeel.core.roster import Roster
from fedkeel.core.tree import Tree, select


@dataclass(frozen=True)
class Refusal:
    client: str
    reason: str


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


def why_lost(refused: Sequence[Refusal]) -> str:
    """One reason after the other with how many clients it is about, the two most frequent ones."""
    reasons: dict[str, list[str]] = {}
    for refusal in refused:
        reasons.setdefault(refusal.reason, []).append(refusal.client)
    most = sorted(reasons.items(), key=lambda reason: -len(reason[1]))[:2]
    told = (f"{who[0]}{f' and {len(who) - 1} more' if who[1:] else ''}: {reason}" for reason, who in most)
    return f"none of {len(refused)} updates was accepted (client {'; '.join(told)})"


class Engine(Protocol):
    """Brings phases to clients and back. Clients are told apart by their places in the roster."""

    @property
    def roster(self) -> Roster: ...

    @property
    def accepted(self) -> np.ndarray:
        """Of each client, the number of the exchange whose update was accepted from it last."""
        ...

    def exchange(
        self, method: AnyMethod, state: State, phase: Phase, round: int, cohort: Sequence[int]
    ) -> Exchange: ...

    def settle(self) -> None:
        """Make what clients keep for themselves last, up to the last update that was accepted from each."""
        ...

    def resume(self, accepted: np.ndarray, last: int) -> None:
        """Go on after the exchange ``last``, with the updates accepted until then; what came later is forgotten."""
        ...


def choose(
    roster: Roster,
    method: AnyMethod,
    phase: Phase,
    round: int,
    before: list[int],
    attempt: int = 0,
    accepted: np.ndarray | None = None,
) -> list[int]:
    """The cohort of a phase: clients without rows never take part. With "once" it is empty when all have.

    Each further attempt at the same exchange draws another sample. ``accepted`` says from whom something was accepted
    before: with "once" nobody else counts as heard.
    """
    if phase.cohort == "same":
        return before
    if phase.cohort == "all" or (phase.cohort == "sample" and method.participation == 1.0):
        return roster.able
    count = max(1, method.sample(len(roster.rows), len(roster.able)))
    if phase.cohort == "once":
        order = generator(roster.seed, "cohort", phase.name).permutation(roster.able)
        if accepted is None:
            return sorted(order[(round - 1) * count : round * count].tolist())
        return sorted(order[accepted[order] == NEVER][:count].tolist())
    again = (attempt,) if attempt else ()
    drawn = generator(roster.seed, "cohort", round, phase.name, *again).choice(roster.able, size=count, replace=False)
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


def schedule(seed: int, client: str, rows: int, round: int, phase: Phase) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(places among its rows, uniform numbers) of each step of a client, keyed by seed, round, phase and its name."""
    size = np.array(rows)
    count = int(visited(size, phase))
    order = None if one_batch(size, phase) else generator(seed, "order", round, phase.name, client)
    draws = generator(seed, "draws", round, phase.name, client) if phase.draws else None
    for _ in range(phase.epochs):
        seen = np.arange(rows) if order is None else order.permutation(rows)[:count]
        u = draws.random(count, dtype=np.float32) if draws else np.empty(0, dtype=np.float32)
        for first in range(0, count, phase.batch):
            yield seen[first : first + phase.batch], u[first : first + phase.batch]
