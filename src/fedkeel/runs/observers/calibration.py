"""The temperature of the finished model's scores, from the clients' validation rows, and what scores are worth.

It is fitted after the last round in one exchange, from which sums leave (metrics/calibration.py); then the scores are
held against the test rows, with and without it. Without validation rows there is none.
"""

from __future__ import annotations

from typing import Any

import torch

from fedkeel.core.method import State, settings
from fedkeel.engines.base import Exchange, choose
from fedkeel.metrics.accuracy import logits_of
from fedkeel.metrics.calibration import AFTER, BEFORE, Looking, Reliable, Temperature, both_bins, reliability
from fedkeel.runs.loop import record
from fedkeel.runs.observers.base import Observer, Running, observer


@observer("calibration")
class Calibration(Observer):
    order = 80

    @classmethod
    def wanted(cls, run: Running) -> bool:
        return run.method.common

    def ended(self, state: State) -> dict[str, Any]:
        temperature, rows = self.fitted(state) if self.run.experiment.partition.validation else (None, 0)
        bins = self.binned(state, temperature or 1.0)
        told = {"before": reliability(bins[BEFORE])} if bins is not None else {}
        if bins is not None and temperature is not None:
            told["after"] = reliability(bins[AFTER])
        return {"calibration": {"temperature": temperature, "validation_rows": rows, **told}}

    def fitted(self, state: State) -> tuple[float | None, int]:
        """On record as an exchange of the round after the last, which no round's costs contain."""
        asks = Temperature(of=settings(self.run.method))
        exchange = self.exchanged(asks, asks.asking(state))
        (phase,) = asks.plan(self.round)
        record(self.run.log, "exchange", exchange, phase, self.round, 0)
        return asks.found(exchange.update)

    def binned(self, state: State, temperature: float) -> dict[str, torch.Tensor] | None:
        """The test rows by confidence, of the server's own or as sums from the clients; None where nobody has any."""
        method = self.run.method
        if self.run.experiment.run.evaluate == "federated":
            asks = Reliable(of=settings(method))
            return asks.found(self.exchanged(asks, asks.asking(state, temperature)).update)
        if self.run.simulation is None:
            return None
        tests, first, found = self.run.simulated.tests, 0, Reliable(of=settings(method)).nothing()
        classes = self.run.engine.roster.classes
        for logits in logits_of(lambda x: method.predict(state, {}, x), tests.x, classes):
            bins = both_bins(method, logits, tests.y[first : first + len(logits)], temperature)
            found = {name: found[name] + value for name, value in bins.items()}
            first += len(logits)
        return found

    def exchanged(self, asks: Looking, state: State) -> Exchange:
        (phase,) = asks.plan(self.round)
        cohort = choose(self.run.engine.roster, asks, phase, self.round, [])
        return self.run.engine.exchange(asks, state, phase, self.round, cohort)

    @property
    def round(self) -> int:
        return self.run.method.rounds + 1
