"""The round loop: plan, broadcast, train, gate, reduce, merge, journal, evaluate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

from fedkeel.core.method import Method, Phase, State, Task
from fedkeel.engines.base import Clients, Engine, Exchange, choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.centre import MEAN, Centre
from fedkeel.runs.checkpoint import Checkpoint, Journal
from fedkeel.runs.events import Log

ENGINES: dict[str, Callable[[Clients], Engine]] = {"local": LocalEngine, "wire": WireEngine}


@dataclass(frozen=True)
class Loop:
    """What the rounds of one run share."""

    method: Method
    clients: Clients
    engine: Engine
    log: Log
    journal: Journal
    evaluate: Callable[[int, State], float]
    finished: Callable[[int, float], None] = lambda round, accuracy: None

    def rounds(self, start: State, logged: set[int]) -> State:
        """Run or continue all rounds; ``logged`` are the rounds whose outcome is on record already."""
        done = self.journal.newest() or Checkpoint(1, -1, start, {})
        self.clients.private.update(done.private)
        state = done.state
        for round in range(done.round, self.method.rounds + 1):
            started = perf_counter()
            cohort: list[int] = []
            for index, phase in enumerate(self.method.plan(round)):
                cohort = choose(self.clients, self.method, phase, round, cohort)
                if (round, index) <= (done.round, done.index):
                    continue
                exchange = self.engine.exchange(self.method, state, phase, round, cohort)
                if exchange.update is not None:
                    state = self.method.merge(state, exchange.update, phase)
                record(self.log, exchange, phase, round, index)
                self.journal.save(Checkpoint(round, index, state, self.clients.private))
            if round not in logged:
                accuracy = self.evaluate(round, state)
                self.log.write("round", round=round, accuracy=accuracy, seconds=perf_counter() - started)
                self.finished(round, accuracy)
        return state


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


def federated_mean(clients: Clients, engine: Engine, log: Log) -> Tensor:
    """The mean feature of all training rows: one exchange before round 1, on record as round 0."""
    centre = Centre()
    state = centre.start(Task(clients.x.shape[1], 0, len(clients.names), clients.seed))
    cohort: list[int] = []
    for index, phase in enumerate(centre.plan(0)):
        cohort = choose(clients, centre, phase, 0, cohort)
        exchange = engine.exchange(centre, state, phase, 0, cohort)
        if exchange.update is not None:
            state = centre.merge(state, exchange.update, phase)
        record(log, exchange, phase, 0, index)
    return state.shared[MEAN]
