"""Test accuracy without a central test set (``run.evaluate = "federated"``): clients count, only sums leave them."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import State, settings
from fedkeel.engines.base import choose, why_lost
from fedkeel.metrics.tally import Tally
from fedkeel.runs.observers.base import Observer, Round, Running, observer

BASIS = "sums over all clients of hits on their own test rows"


@observer("federated")
class FederatedEvaluation(Observer):
    order = 90

    def __init__(self, run: Running) -> None:
        super().__init__(run)
        self._latest: tuple[State, dict[str, Any]] | None = None
        self._known = {event["round"] for event in run.known.rounds} if run.known else set()

    @classmethod
    def wanted(cls, run: Running) -> bool:
        return run.experiment.run.evaluate == "federated"

    def round_ended(self, round: Round, state: State) -> None:
        if round.number in self._known:
            return
        found = self.tallied(round.number, state)
        seconds = perf_counter() - round.began
        self.run.log.write("tally", round=round.number, **found)
        self.run.log.write("round", round=round.number, accuracy=found["accuracy"], seconds=seconds)
        self.run.watch.round(round.number, self.run.method.rounds, found["accuracy"])

    def tallied(self, round: int, state: State) -> dict[str, Any]:
        """One exchange with everybody: right answers and test rows of each class."""
        method, engine = self.run.method, self.run.engine
        tally = Tally(of=settings(method), classes=engine.roster.classes)
        (phase,) = tally.plan(round)
        cohort = choose(engine.roster, tally, phase, round, [])
        exchange = engine.exchange(tally, tally.asking(state), phase, round, cohort)
        if not exchange.accepted:
            again = self.run.again or f"fedkeel run --out {self.run.log.folder} --resume"
            raise FedkeelError(
                f"round {round} cannot be tested: {why_lost(exchange.refused)}; mend that, and {again} tries again"
            )
        found = tally.sums(exchange.update)
        traffic = {"bytes_up": exchange.bytes_up, "bytes_down": exchange.bytes_down, "clients": exchange.accepted}
        refused = [{"client": refusal.client, "reason": refusal.reason} for refusal in exchange.refused]
        self._latest = state, {**found, **traffic, "refused": refused}
        return self._latest[1]

    def ended(self, state: State) -> dict[str, Any]:
        """The model after the last round was tested already."""
        same = self._latest is not None and self._latest[0] is state
        found = self._latest[1] if self._latest and same else self.tallied(self.run.method.rounds, state)
        right, rows = found["right"], found["rows"]
        per_class = [r / n if n else None for r, n in zip(right, rows, strict=True)]
        own = {"personal_mean": found["personal"], "personal": []} if self.run.method.personal else {}
        return {
            "accuracy": found["accuracy"],
            "per_class": per_class,
            "per_client": [],
            "per_client_basis": BASIS,
            **own,
        }
