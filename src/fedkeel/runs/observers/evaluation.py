"""Test accuracy after every round, on test rows that the server has (``run.evaluate = "central"``)."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from fedkeel.core.method import State
from fedkeel.runs.observers.base import Observer, Round, Running, mean_of, observer


@observer("evaluation")
class EvaluationObserver(Observer):
    order = 90

    def __init__(self, run: Running) -> None:
        super().__init__(run)
        self._known = {event["round"] for event in run.known.rounds} if run.known else set()

    @classmethod
    def wanted(cls, run: Running) -> bool:
        return run.simulation is not None and run.experiment.run.evaluate == "central"

    def round_ended(self, round: Round, state: State) -> None:
        if round.number in self._known:
            return
        method, run = self.run.method, self.run
        accuracy = run.simulated.tested(method, state).accuracy if method.common else mean_of(self.on_own(state)) or 0.0
        run.log.write("round", round=round.number, accuracy=accuracy, seconds=perf_counter() - round.began)
        run.watch.round(round.number, method.rounds, accuracy)

    def ended(self, state: State) -> dict[str, Any]:
        seen = self.run.simulated
        final = seen.tested(self.run.method, state)
        everywhere = seen.tests.each(final)
        return {
            "accuracy": final.accuracy,
            "per_class": final.per_class(self.run.engine.roster.classes),
            "per_client": [everywhere[client] for client in seen.shown],
            "per_client_basis": seen.tests.basis,
        }

    def on_own(self, state: State) -> list[float | None]:
        """Of methods without a global model, each client's own on its own test set."""
        seen, method = self.run.simulated, self.run.method

        def accuracy(client: int) -> float | None:
            mine = seen.engine.mine(method, state, client)
            return seen.tests.on_own(lambda x: method.predict(state, mine, x), client)

        return [accuracy(client) for client in seen.shown]
