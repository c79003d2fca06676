"""What every observer is: told when a run starts, when a round ends and when the run ends, it writes events of its own.

An observer that needs rows asks for sums over them in an exchange, as any server must, or looks at
``Running.simulation``, which is there in a simulation only. Nothing that it does changes the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from fedkeel.core.method import AnyMethod, State
from fedkeel.core.registry import Registry
from fedkeel.core.tree import Tensor
from fedkeel.core.watch import Watch
from fedkeel.engines.base import Engine
from fedkeel.engines.simulated import Simulated
from fedkeel.metrics.accuracy import Evaluation, TestSets, evaluate
from fedkeel.runs.checkpoint import Checkpoints
from fedkeel.runs.config import Experiment
from fedkeel.runs.events import Log, Record
from fedkeel.runs.federation import Federation

SHOWN_CLIENTS = 200
"""A record tells of each client up to this many; of more, a sample evenly spaced by size."""


@dataclass(frozen=True)
class Simulation:
    """What only a simulation can look at: everybody's rows."""

    federation: Federation
    engine: Simulated
    tests: TestSets
    _latest: list[tuple[State, Evaluation]] = field(default_factory=list)

    @cached_property
    def shown(self) -> list[int]:
        """The clients that a record tells of one by one."""
        sizes = self.engine.roster.rows
        if len(sizes) <= SHOWN_CLIENTS:
            return list(range(len(sizes)))
        by_size = np.argsort(-sizes, kind="stable")
        return sorted(by_size[np.linspace(0, len(sizes) - 1, SHOWN_CLIENTS).astype(int)].tolist())

    @cached_property
    def validation_rows(self) -> Tensor:
        return torch.from_numpy(self.federation.manifest.validation.rows)

    def tested(self, method: AnyMethod, state: State) -> Evaluation:
        """The global model on all test rows; the same one is not tested twice."""
        if self._latest and self._latest[0][0] is state:
            return self._latest[0][1]
        found = evaluate(lambda x: method.predict(state, {}, x), self.tests.x, self.tests.y)
        self._latest[:] = [(state, found)]
        return found


@dataclass(frozen=True)
class Running:
    """A run as its observers see it."""

    experiment: Experiment
    method: AnyMethod
    engine: Engine
    log: Log
    checkpoints: Checkpoints
    watch: Watch
    known: Record | None
    """what is on record already, of a run that was interrupted"""
    simulation: Simulation | None = None
    """None on a server of real sites"""
    again: str | None = None
    """the command that goes on with the run, where it is not ``fedkeel run``"""

    @property
    def simulated(self) -> Simulation:
        assert self.simulation is not None
        return self.simulation


@dataclass(frozen=True)
class Round:
    number: int
    began: float
    """by ``perf_counter``"""


class Observer:
    name: ClassVar[str]
    order: ClassVar[int] = 50
    """Observers are told in this order; what tests the model comes last, so that its time counts all of the round."""

    def __init__(self, run: Running) -> None:
        self.run = run

    @classmethod
    def wanted(cls, run: Running) -> bool:
        """Whether the run is to be observed: by default if ``run.observe`` names the observer."""
        return cls.name in run.experiment.run.observe

    def started(self, state: State) -> None:
        """Before round 1, or before the round that an interrupted run goes on with."""

    def round_ended(self, round: Round, state: State) -> None: ...

    def ended(self, state: State) -> dict[str, Any]:
        """After the last round, with the finished model; what it gives becomes part of the event "end"."""
        return {}


OBSERVERS: Registry[Observer] = Registry("observer", "fedkeel.runs.observers")


def observer(name: str) -> Callable[[type[Observer]], type[Observer]]:
    """Class decorator that makes an observer known by name."""

    def keep(cls: type[Observer]) -> type[Observer]:
        cls.name = name
        return OBSERVERS.add(name)(cls)

    return keep


def observers_of(run: Running) -> list[Observer]:
    """Those that the run wants, in their order."""
    wanted = [cls for cls in OBSERVERS.values() if cls.wanted(run)]
    return [cls(run) for cls in sorted(wanted, key=lambda cls: (cls.order, cls.name))]


def mean_of(values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return float(np.mean(measured)) if measured else None
