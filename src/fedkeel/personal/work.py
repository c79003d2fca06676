"""One client's own model: trained from the global one, saved as a difference to it, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.method import State, Visit
from fedkeel.core.tree import Tensor, Tree, learnt
from fedkeel.core.watch import Watch
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.site import as_batch
from fedkeel.engines.sites import Sites
from fedkeel.engines.store import Store
from fedkeel.metrics.accuracy import TestSets
from fedkeel.metrics.calibration import own_temperature
from fedkeel.models.prepare import prepare
from fedkeel.personal.strategy import Strategy
from fedkeel.rows.inputs import Inputs
from fedkeel.runs.config import Experiment
from fedkeel.runs.federation import Federation
from fedkeel.runs.model import Model, save_client
from fedkeel.runs.opening import as_inputs, preparation, prepared_inputs, same_rows

SAME_ROWS = 16
"""Of so many rows features are made again, to see whether they are the same."""
COUNTED_ROWS = 32
"""FLOPs are counted on a batch of at most this many rows."""


@dataclass(frozen=True)
class Work:
    """What personalising takes: the strategy, the global model as a state, the clients and the test rows."""

    strategy: Strategy
    state: State
    sites: Sites
    tests: TestSets

    @classmethod
    def on(cls, strategy: Strategy, model: Model, federation: Federation, experiment: Experiment) -> Work:
        shared, added = model.shared, {}
        how = preparation(model.method, experiment.data)
        reopened = not same_rows(strategy, model.method)
        if reopened:
            federation = _as_inputs(strategy, federation, experiment)
        sites = federation.sites(experiment.run.seed)
        tests = federation.test_sets(sites)
        for rows in (sites.x, tests.x):
            if rows.tensor is not None:
                prepare(rows.tensor, how, model.mean)
        if isinstance(sites.x, Inputs) and isinstance(tests.x, Inputs):
            backbone = sites.x.backbone
            sites = replace(sites, x=prepared_inputs(sites.x, how, model.mean))
            tests = replace(tests, x=prepared_inputs(tests.x, how, model.mean))
            shared = {**backbone.tree(experiment.run.seed), **shared} if reopened else shared
            added = strategy.extra(backbone, experiment.run.seed)
        return cls(strategy, State(shared, added), sites, tests)

    def twin(self) -> Work:
        """The same for another thread."""
        sites = replace(self.sites.twin(), test=None, store=Store())
        return replace(self, sites=sites, tests=replace(self.tests, x=self.tests.x.beside(sites.x)))

    def reads_as(self, federation: Federation) -> bool:
        """Whether the encoder makes of a few rows the features that the run was trained on."""
        some = torch.from_numpy(self.sites.owned.rows[:SAME_ROWS])
        known = federation.rows.train.tensor
        if known is None or not isinstance(self.sites.x, Inputs):
            return True
        made = self.strategy.encoded(self.state.down, replace(self.sites.x.pick(some), prepared=None))
        return bool((made - known[some]).norm() <= 0.02 * known[some].norm())

    def chosen(self, only: Sequence[str], watch: Watch) -> list[int]:
        """The clients to personalise: those asked for, or all that can be."""
        names, sizes = list(self.sites.names), self.sites.owned.sizes
        for name in only:
            if name not in names:
                raise unknown("client", name, names)
        asked = [names.index(name) for name in only] or list(range(len(names)))
        kinds = (self.tests.label_counts > 0).sum(1)
        able = [client for client in asked if kinds[client] > 1]
        single = [names[client] for client in asked if kinds[client] == 1]
        small = [names[client] for client in able if sizes[client] < (self.strategy.batch or 1)]
        if not able:
            raise FedkeelError(
                f"client {names[asked[0]]} has rows of {kinds[asked[0]] or 'no'} class: a personal model needs two, "
                "or it would always say the same; use the global model for it, or a split with more classes per client"
            )
        if single:
            watch.notice(
                f"rows of one class only: {_some(single)}; a model tuned on them would always say that class, so the "
                "global model stays"
            )
        if small:
            watch.notice(
                f"fewer rows than a batch of {self.strategy.batch}: {_some(small)}; each epoch is one step, lower "
                f"method.batch to {int(sizes[[names.index(name) for name in small]].min())} or less for more"
            )
        return able

    def test(self) -> dict[str, Any]:
        """What models are tested on, and the global model there."""
        names, tests = list(self.sites.names), self.tests
        return {"basis": tests.basis, "names": names, "rows": tests.rows, "before": self.on_test_sets({})}

    def on_test_sets(self, mine: Tree) -> list[float | None]:
        """The accuracy of a model on the test set of every client."""
        return self.tests.on_all(lambda x: self.strategy.predict(self.state, mine, x))

    def personalise(self, client: int, engine: Simulated, path: Path) -> dict[str, Any]:
        """Train one client's model, save it, and tell what it is worth."""
        strategy, seconds, flops = self.strategy, {}, {}
        for phase in strategy.plan(1):
            mine = engine.mine(strategy, self.state, client)
            visit = Visit(self.state.down, mine, phase, 1, self.sites.counts[client])
            flops[phase.name] = self.flops(visit, client)
            started = perf_counter()
            exchange = engine.exchange(strategy, self.state, phase, 1, [client])
            seconds[phase.name] = perf_counter() - started
            assert exchange.bytes_up == 0
        kept = engine.mine(strategy, self.state, client)
        self.sites.store.drop(self.sites.names[client])
        mine = {name: value for name, value in kept.items() if name in self.state.down}
        rows = self.sites.rows(client)
        distortion = float((self.features(mine, rows) - self.features({}, rows)).norm(dim=1).mean())
        save_client(path, {name: value - self.state.shared.get(name, 0) for name, value in mine.items()})
        return {
            "client": client,
            "name": self.sites.names[client],
            "rows": len(rows),
            "on": self.on_test_sets(mine),
            "temperature": self.temperature(client, mine),
            "distortion": distortion if isfinite(distortion) else None,
            "seconds": seconds,
            "flops": flops,
        }

    def temperature(self, client: int, mine: Tree) -> float | None:
        """Of the scores of a client's own model, from the rows that it holds back; None without any."""
        rows, labels = self.sites.site(client).rows("validation")
        if not len(labels):
            return None
        with torch.inference_mode():
            return own_temperature(self.strategy, self.strategy.predict(self.state, mine, rows.read()), labels)

    def features(self, mine: Tree, rows: Tensor) -> Tensor:
        return self.strategy.encoded({**self.state.down, **mine}, self.sites.x.pick(rows).read())

    def flops(self, visit: Visit, client: int) -> float:
        """What a phase takes, from one batch that is counted: forward and backward of every row it visits."""
        from torch.utils.flop_counter import FlopCounterMode

        rows = self.sites.rows(client)
        part = rows[:COUNTED_ROWS]
        if not visit.phase.epochs:
            with FlopCounterMode(display=False) as counter:
                self.strategy.measure(self.sites.x.pick(part).read(), self.sites.y[part], visit)
            return float(len(rows) * counter.get_total_flops() / len(part))
        params = {name: value.clone() for name, value in self.strategy.begin(visit).items()}
        with FlopCounterMode(display=False) as before:
            x = self.strategy.once(self.sites.x.pick(part).read(), visit)
        for value in learnt(params).values():
            value.requires_grad_()
        u = np.full(len(part) if visit.phase.draws else 0, 0.5, dtype=np.float32)
        batch = as_batch(x, self.sites.y[part], np.arange(len(part)), u)
        with FlopCounterMode(display=False) as counter:
            self.strategy.loss(params, batch, visit).backward()  # type: ignore[no-untyped-call]
        each_epoch, once = counter.get_total_flops() / len(part), before.get_total_flops() / len(part)
        return float(len(rows) * (visit.phase.epochs * each_epoch + once))


def _as_inputs(strategy: Strategy, federation: Federation, experiment: Experiment) -> Federation:
    """The federation of a run on features, with rows that its encoder reads anew."""
    encoder = {"encoder": federation.rows.encoder}  # "auto" may mean another one where a network is trained
    data = experiment.data.model_copy(update=encoder)
    try:
        return replace(federation, rows=as_inputs(data, federation.dataset, strategy.base))
    except FedkeelError as error:
        raise FedkeelError(
            f"{strategy.name} trains the encoder, which this run cannot: {error}; or personalise its head alone with "
            "--method lp"
        ) from None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"client {shown}" if len(names) == 1 else f"{len(names)} clients ({shown})"
