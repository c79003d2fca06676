"""The round loop: plan, broadcast, train, gate, reduce, merge, checkpoint, observe. It knows a roster, never a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, Phase, State, Task, exchange_number
from fedkeel.core.tree import Tensor
from fedkeel.core.watch import SILENT, Watch
from fedkeel.engines.base import Engine, Exchange, choose, why_lost
from fedkeel.methods.heads.centre import MEAN, Centre
from fedkeel.runs.checkpoint import Checkpoint, Checkpoints
from fedkeel.runs.events import Log
from fedkeel.runs.observers.base import Observer, Round


@dataclass(frozen=True)
class Loop:
    """What the rounds of one run share."""

    method: AnyMethod
    engine: Engine
    log: Log
    checkpoints: Checkpoints
    observers: Sequence[Observer] = field(default=())
    lost: int = 3
    watch: Watch = SILENT
    again: str | None = None
    """the command that goes on, where it is not ``fedkeel run``"""

    def rounds(self, start: State, last: int | None = None) -> State:
        """Run or continue all rounds, those of the method or up to ``last``."""
        done = self.checkpoints.newest() or Checkpoint(1, -1, start, self.engine.accepted.copy())
        self.engine.resume(done.accepted, self.last_of(done))
        point = saved = done
        exchanges = Exchanges(self.engine, self.log, self.lost, self.watch, self.again)
        try:
            for round in range(done.round, (last or self.method.rounds) + 1):
                began = perf_counter()
                for index, phase in enumerate(self.method.plan(round)):
                    if (round, index) <= (done.round, done.index):
                        continue
                    before = point.cohort if index else []
                    state, cohort = exchanges.one(self.method, point.state, phase, round, index, before)
                    point = Checkpoint(round, index, state, self.engine.accepted, cohort=cohort)
                    if self.checkpoints.due:
                        saved = self.save(point)
                for observer in self.observers:
                    observer.round_ended(Round(round, began), point.state)
        except OSError:
            raise
        except (Exception, KeyboardInterrupt):
            # What was reached is kept, whatever stopped it, unless it stopped between an exchange and its merge.
            if point is not saved and (self.engine.accepted <= self.last_of(point)).all():
                self.save(point)
            raise
        if point is not saved:  # the last private versions become real as well
            self.save(point)
        return point.state

    def save(self, point: Checkpoint) -> Checkpoint:
        """What clients keep lasts first: a checkpoint must never speak of more than there is."""
        started = perf_counter()
        self.engine.settle()
        self.checkpoints.save(replace(point, head=self.log.head))
        self.checkpoints.cost = perf_counter() - started
        return point

    def last_of(self, point: Checkpoint) -> int:
        """The exchange that a checkpoint was written after."""
        return (
            exchange_number(self.method, point.round, self.method.plan(point.round)[point.index])
            if point.index >= 0
            else 0
        )


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of a run, each on record.

    One in which nobody's update was accepted is lost: it changes nothing and is tried again, with another sample of
    clients where the phase draws one. After ``lost`` in a row the run stops.
    """

    engine: Engine
    log: Log
    lost: int
    watch: Watch
    again: str | None = None

    def one(
        self, method: AnyMethod, state: State, phase: Phase, round: int, index: int, before: list[int]
    ) -> tuple[State, list[int]]:
        """The state after a phase, and who took part in it."""
        for attempt in range(self.lost):
            cohort = choose(self.engine.roster, method, phase, round, before, attempt, self.engine.accepted)
            exchange = self.engine.exchange(method, state, phase, round, cohort)
            if exchange.accepted or not cohort:
                record(self.log, "exchange", exchange, phase, round, index)
                return state if exchange.update is None else method.merge(state, exchange.update, phase), cohort
            record(self.log, "lost", exchange, phase, round, index, attempt=attempt)
            where, why = f"{self.log.folder}: round {round}, phase {phase.name!r}", why_lost(exchange.refused)
            self.watch.notice(f"{where}, is lost ({attempt + 1} of {self.lost}): {why}")
        again = self.again or f"fedkeel run --out {self.log.folder} --resume"
        other = "" if self.again else ", or choose other settings and another --out"
        raise FedkeelError(
            f"{where}, was lost {self.lost} times in a row (run.lost): {why}; mend that, and {again} tries again{other}"
        )


def record(
    log: Log, event: Literal["exchange", "lost"], exchange: Exchange, phase: Phase, round: int, index: int, **more: int
) -> None:
    log.write(
        event,
        round=round,
        index=index,
        phase=phase.name,
        clients=exchange.accepted + len(exchange.refused),
        refused=[{"client": refusal.client, "reason": refusal.reason} for refusal in exchange.refused],
        bytes_up=exchange.bytes_up,
        bytes_down=exchange.bytes_down,
        client_seconds=exchange.client_seconds,
        server_seconds=exchange.server_seconds,
        **more,
    )


def federated_mean(exchanges: Exchanges, dim: int) -> Tensor:
    """The mean feature of all training rows: one exchange before round 1, on record as round 0."""
    centre, roster = Centre(), exchanges.engine.roster
    state: State = centre.start(Task(dim, 0, len(roster.names), roster.seed))
    cohort: list[int] = []
    for index, phase in enumerate(centre.plan(0)):
        state, cohort = exchanges.one(centre, state, phase, 0, index, cohort)
    return state.shared[MEAN]
