"""The best round so far, by the rows that clients hold back for that (``run.keep = "best"``). For simulations."""

from __future__ import annotations

from fedkeel.core.method import State
from fedkeel.metrics.accuracy import evaluate
from fedkeel.runs.observers.base import Observer, Round, Running, observer


@observer("validation")
class Validation(Observer):
    order = 30

    def __init__(self, run: Running) -> None:
        super().__init__(run)
        self._reached = {event["round"]: event["accuracy"] for event in run.known.validation} if run.known else {}

    @classmethod
    def wanted(cls, run: Running) -> bool:
        return run.simulation is not None and run.experiment.run.keep == "best"

    def round_ended(self, round: Round, state: State) -> None:
        """Keep the state if it is the best so far; only then it is on record that the round was judged."""
        if round.number in self._reached:
            return
        run, sites, rows = self.run, self.run.simulated.engine.sites, self.run.simulated.validation_rows
        reached = evaluate(lambda x: run.method.predict(state, {}, x), sites.x.pick(rows), sites.y[rows]).accuracy
        if reached > max((value for at, value in self._reached.items() if at < round.number), default=-1.0):
            run.checkpoints.keep(round.number, state)
        run.log.write("validation", round=round.number, accuracy=reached)
        self._reached[round.number] = reached
