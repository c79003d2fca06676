"""What engines share that hold all sites themselves: the roster of these, and the store in which they keep things."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedkeel.core.message import NEVER
from fedkeel.core.method import AnyMethod, Phase, State
from fedkeel.core.roster import Roster
from fedkeel.core.tree import Tree
from fedkeel.engines.base import Exchange
from fedkeel.engines.sites import Sites


@dataclass(frozen=True)
class Simulated(ABC):
    sites: Sites
    known: Roster | None = None

    @abstractmethod
    def exchange(
        self, method: AnyMethod, state: State, phase: Phase, round: int, cohort: Sequence[int]
    ) -> Exchange: ...

    @cached_property
    def roster(self) -> Roster:
        """The one given, or what the sites enrol with."""
        numbers = tuple(map(str, range(self.sites.classes)))
        return self.known or self.sites.enrol().roster("simulation", self.sites.seed, numbers)

    @cached_property
    def accepted(self) -> np.ndarray:
        return np.full(len(self.roster.names), NEVER, dtype=np.int64)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each client in the roster."""
        return {name: client for client, name in enumerate(self.roster.names)}

    def mine(self, method: AnyMethod, state: State, client: int) -> Tree:
        """What a client keeps for itself, as of the last update that was accepted from it."""
        kept = self.sites.store.read(self.roster.names[client], int(self.accepted[client]))
        return method.private(state.down) if kept is None else kept

    def settle(self) -> None:
        self.sites.store.commit(lambda name: int(self.accepted[self.numbers[name]]), self._settled)

    def resume(self, accepted: np.ndarray, last: int) -> None:
        self.accepted[:] = accepted
        self.sites.store.forget_after(last, self._settled)

    @property
    def _settled(self) -> int:
        return int(self.accepted.max(initial=NEVER))
