"""How a dual encoder leaves zero-shot, round by round, beside the clients' own models. For simulations."""

from __future__ import annotations

from fedkeel.core.method import State
from fedkeel.methods.dual.base import DualTuned, dual_of
from fedkeel.metrics.towers import Own, balance, client_drift, on_own, pooled
from fedkeel.runs.observers.base import Observer, Round, Running, Simulation, observer


@observer("balance")
class BalanceObserver(Observer):
    order = 20

    @classmethod
    def wanted(cls, run: Running) -> bool:
        return run.simulation is not None and run.experiment.run.drift and dual_of(run.method) is not None

    def started(self, state: State) -> None:
        self.measure(0, state)

    def round_ended(self, round: Round, state: State) -> None:
        self.measure(round.number, state)

    def measure(self, round: int, state: State) -> None:
        run, seen, method = self.run, self.run.simulated, dual_of(self.run.method)
        assert method is not None
        if run.known is not None and any(event["round"] == round for event in run.known.balance):
            return
        sites = seen.engine.sites
        found = balance(method, sites, state, round, seen.tests)
        apart = client_drift(method, sites, state, round, lambda client: seen.engine.mine(method, state, client))
        own = pooled(own_models(seen, method, state))
        run.log.write("balance", round=round, **found, client_drift=apart, **own)


def own_models(seen: Simulation, method: DualTuned, state: State) -> list[Own]:
    """Of the clients that are shown, each model on the client's own test set."""
    return [on_own(method, state, seen.engine.mine(method, state, client), seen.tests, client) for client in seen.shown]
