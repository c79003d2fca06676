"""The round loop: plan, broadcast, train, gate, reduce, merge, checkpoint, observe. It knows a roster, never a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from fedkeel.core.method import AnyMethod, Phase, State, Task, exchange_number
from fedkeel.core.tree import Tensor
from fedkeel.engines.base import Engine, Exchange, choose
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

    def rounds(self, start: State) -> State:
        """Run or continue all rounds."""
        done = self.checkpoints.newest() or Checkpoint(1, -1, start, self.engine.accepted.copy())
        self.engine.resume(done.accepted, self.last_of(done))
        point = saved = done
        try:
            for round in range(done.round, self.method.rounds + 1):
                began, cohort = perf_counter(), list[int]()
                for index, phase in enumerate(self.method.plan(round)):
                    cohort = choose(self.engine.roster, self.method, phase, round, cohort)
                    if (round, index) <= (done.round, done.index):
                        continue
                    state = exchanged(self.method, self.engine, self.log, point.state, phase, round, index, cohort)
                    point = Checkpoint(round, index, state, self.engine.accepted)
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


def exchanged(
    method: AnyMethod, engine: Engine, log: Log, state: State, phase: Phase, round: int, index: int, cohort: list[int]
) -> State:
    """The state after one exchange, which is put on record."""
    exchange = engine.exchange(method, state, phase, round, cohort)
    record(log, exchange, phase, round, index)
    return state if exchange.update is None else method.merge(state, exchange.update, phase)


def record(log: Log, exchange: Exchange, phase: Phase, round: int, index: int) -> None:
    log.write(
        "exchange",
        round=round,
        index=index,
        phase=phase.name,
        clients=exchange.accepted + len(exchange.refused),
        refused=[{"client": refusal.client, "reason": refusal.reason} for refusal in exchange.refused],
        bytes_up=exchange.bytes_up,
        bytes_down=exchange.bytes_down,
        client_seconds=exchange.client_seconds,
        server_seconds=exchange.server_seconds,
    )


def federated_mean(engine: Engine, dim: int, log: Log) -> Tensor:
    """The mean feature of all training rows: one exchange before round 1, on record as round 0."""
    centre, roster = Centre(), engine.roster
    state, cohort = centre.start(Task(dim, 0, len(roster.names), roster.seed)), list[int]()
    for index, phase in enumerate(centre.plan(0)):
        cohort = choose(roster, centre, phase, 0, cohort)
        state = exchanged(centre, engine, log, state, phase, 0, index, cohort)
    return state.shared[MEAN]
