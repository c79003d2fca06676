"""The models that a method leaves each client, at home and on the other clients' test rows. For simulations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fedkeel.core.method import State
from fedkeel.core.tree import Tensor
from fedkeel.methods.dual.base import dual_of
from fedkeel.metrics.accuracy import TestSets
from fedkeel.metrics.calibration import own_temperature
from fedkeel.metrics.towers import pooled
from fedkeel.runs.model import client_file, save_client
from fedkeel.runs.observers.balance import own_models
from fedkeel.runs.observers.base import Observer, Running, mean_of, observer

MOST_ABROAD = 60
"""In a federation of more clients, personal models are tested on their own client's test set only."""


@observer("personal")
class PersonalModels(Observer):
    order = 95

    @classmethod
    def wanted(cls, run: Running) -> bool:
        return run.simulation is not None and run.method.personal

    def ended(self, state: State) -> dict[str, Any]:
        run, seen, method = self.run, self.run.simulated, self.run.method
        engine, tests, names = seen.engine, seen.tests, list(seen.engine.roster.names)
        before = tests.each(seen.tested(method, state)) if method.common else None
        run.log.write("personal_test", basis=tests.basis, names=names, rows=tests.rows, before=before)
        dual = dual_of(method)
        models = None if dual is None else own_models(seen, dual, state)
        values = []
        for at, client in enumerate(seen.shown):
            if models is None:
                on = personal_on(partial(self.predict, client, state), client, tests)
            else:  # elsewhere such a model is not tested: that may take running the item tower for every row
                on = [models[at].accuracy if k == client else None for k in range(len(names))]
            run.log.write("personal", client=client, name=names[client], rows=int(engine.roster.rows[client]),
                          on=on, temperature=self.temperature(client, state), distortion=None, seconds={},
                          flops={})  # fmt: skip
            values.append(on[client])
        own = engine.sites.store.clients()
        for name in own:
            save_client(client_file(run.log.folder, name), engine.mine(method, state, engine.numbers[name]))
        found = {**(pooled(models) if models is not None else {}), "personal": values, "personal_mean": mean_of(values)}
        found["own"] = own
        if method.common:
            return found
        # Numbers of a model that does not exist would mislead.
        nothing = {"per_client": values, "per_class": [None] * engine.roster.classes}
        return {**found, **nothing, "accuracy": found["personal_mean"] or 0.0}

    def temperature(self, client: int, state: State) -> float | None:
        """From the rows that the client holds back; None without any."""
        rows, labels = self.run.simulated.engine.sites.site(client).rows("validation")
        if not len(labels):
            return None
        with torch.inference_mode():
            return own_temperature(self.run.method, self.predict(client, state, rows.read()), labels)

    def predict(self, client: int, state: State, x: Any) -> Tensor:
        method = self.run.method
        return method.predict(state, self.run.simulated.engine.mine(method, state, client), x)


def personal_on(predict: Any, client: int, tests: TestSets) -> list[float | None]:
    """One client's model on every client's test set, or in a large federation on its own alone."""
    clients = len(tests.label_counts)
    if clients <= MOST_ABROAD:
        return tests.on_all(predict)
    return [tests.on_own(predict, k) if k == client else None for k in range(clients)]
