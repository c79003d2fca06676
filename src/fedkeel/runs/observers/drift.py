"""How far clients pull a linear head apart, after every round. For simulations: it takes everybody's gradients."""

from __future__ import annotations

from dataclasses import asdict

from fedkeel.core.method import State
from fedkeel.metrics.drift import drift, linear_head
from fedkeel.runs.observers.base import Observer, Round, Running, observer


@observer("drift")
class DriftObserver(Observer):
    order = 20

    @classmethod
    def wanted(cls, run: Running) -> bool:
        there = run.simulation is not None and run.simulated.engine.sites.x.tensor is not None
        return there and run.experiment.run.drift

    def started(self, state: State) -> None:
        self.measure(0, state)

    def round_ended(self, round: Round, state: State) -> None:
        self.measure(round.number, state)

    def measure(self, round: int, state: State) -> None:
        """Of the heads after a round, under the loss that the next one trains."""
        run, engine = self.run, self.run.simulated.engine
        if run.known is not None and any(event["round"] == round for event in run.known.drift):
            return
        head, next_round = linear_head(run.method), min(round + 1, run.method.rounds)
        found = drift(head, engine.sites, state, next_round, lambda client: engine.mine(head, state, client))
        if found is not None:
            run.log.write("drift", round=round, **asdict(found))
