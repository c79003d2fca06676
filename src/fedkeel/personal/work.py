"""One client's own model: trained from the global one, saved as a difference to it, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.method import State, Visit
from fedkeel.core.tree import Tree, learnt
from fedkeel.core.watch import Watch
from fedkeel.engines.alone import as_batch
from fedkeel.engines.base import Clients
from fedkeel.metrics.accuracy import TestSets
from fedkeel.models.backbone import Backbone
from fedkeel.models.prepare import Preparation, as_rows, prepare, prepared
from fedkeel.personal.strategy import Strategy
from fedkeel.runs.config import Experiment
from fedkeel.runs.federation import Federation, to_be_read
from fedkeel.runs.model import Model, save_client

SAME_ROWS = 16
"""Of so many rows features are made again, to see whether they are the same."""
COUNTED_ROWS = 32
"""FLOPs are counted on a batch of at most this many rows."""


@dataclass(frozen=True)
class Work:
    """What personalising takes: the strategy, the global model as a state, the clients and the test rows."""

    strategy: Strategy
    state: State
    clients: Clients
    tests: TestSets

    @classmethod
    def on(cls, strategy: Strategy, model: Model, federation: Federation, experiment: Experiment) -> Work:
        shared, added = model.shared, {}
        how: Preparation = experiment.data.features if model.method.reads == "features" else "raw"
        if strategy.reads == "inputs" and model.method.reads == "features":
            federation = _as_inputs(strategy, federation, experiment)
        clients = federation.clients(experiment.run.seed)
        rows: Any
        rows, labels, owned = federation.test_rows()
        counts = federation.label_counts()
        if strategy.reads == "features":
            prepare(clients.x, how, model.mean)
            prepare(rows, how, model.mean)
        else:
            finish = None if how == "raw" else partial(prepared, how=how, mean=model.mean)
            inputs: Any = clients.x
            clients = replace(clients, x=replace(inputs, prepared=finish))
            rows = replace(rows, prepared=finish)
            backbone: Backbone = inputs.backbone
            if model.method.reads == "features":
                shared = {**backbone.tree(experiment.run.seed), **shared}
            added = strategy.extra(backbone, experiment.run.seed)
        return cls(strategy, State(shared, added), clients, TestSets(rows, labels, owned, counts))

    def twin(self) -> Work:
        """The same for another thread."""
        inputs: Any = self.clients.x
        x, rows = inputs, self.tests.x
        if self.strategy.reads == "inputs":
            x = inputs.twin()
            rows = replace(rows, backbone=x.backbone)
        return replace(self, clients=replace(self.clients, x=x, private={}), tests=replace(self.tests, x=rows))

    def reads_as(self, federation: Federation) -> bool:
        """Whether the encoder makes of a few rows the features that the run was trained on."""
        some = self.clients.owned.rows[:SAME_ROWS]
        raw: Any = replace(self.clients.x[torch.from_numpy(some)], prepared=None)  # type: ignore[type-var]
        made, known = self.strategy.encoded(self.state.down, raw), as_rows(federation.features.train[some])
        return bool((made - known).norm() <= 0.02 * known.norm())

    def chosen(self, only: Sequence[str], watch: Watch) -> list[int]:
        """The clients to personalise: those asked for, or all that can be."""
        names, sizes = list(self.clients.names), self.clients.owned.sizes
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
        names, tests = list(self.clients.names), self.tests
        return {"basis": tests.basis, "names": names, "rows": tests.rows, "before": self.on_test_sets({})}

    def on_test_sets(self, mine: Tree) -> list[float | None]:
        """The accuracy of a model on the test set of every client."""
        return self.tests.on_all(lambda x: self.strategy.predict(self.state, mine, x))

    def personalise(self, client: int, engine: Any, path: Path) -> dict[str, Any]:
        """Train one client's model, save it, and tell what it is worth."""
        strategy, seconds, flops = self.strategy, {}, {}
        for phase in strategy.plan(1):
            visit = self.visit(client, phase)
            flops[phase.name] = self.flops(visit, client)
            started = perf_counter()
            exchange = engine.exchange(strategy, self.state, phase, 1, [client])
            seconds[phase.name] = perf_counter() - started
            assert exchange.bytes_up == 0
        mine = {name: value for name, value in self.clients.private.pop(client).items() if name in self.state.down}
        rows = self.clients.rows(client)
        distortion = float((self.features(mine, rows) - self.features({}, rows)).norm(dim=1).mean())
        save_client(path, {name: value - self.state.shared.get(name, 0) for name, value in mine.items()})
        return {
            "client": client,
            "name": self.clients.names[client],
            "rows": len(rows),
            "on": self.on_test_sets(mine),
            "distortion": distortion if isfinite(distortion) else None,
            "seconds": seconds,
            "flops": flops,
        }

    def visit(self, client: int, phase: Any) -> Visit:
        mine = self.clients.mine(client, self.strategy, self.state)
        return Visit(self.state.down, mine, phase, 1, self.clients.counts[client])

    def features(self, mine: Tree, rows: Tensor) -> Tensor:
        return self.strategy.encoded({**self.state.down, **mine}, self.clients.x[rows])

    def flops(self, visit: Visit, client: int) -> float:
        """What a phase takes, from one batch that is counted: forward and backward of every row it visits."""
        rows = self.clients.rows(client)
        part = rows[:COUNTED_ROWS]
        if not visit.phase.epochs:
            with FlopCounterMode(display=False) as counter:
                self.strategy.measure(self.clients.x[part], self.clients.y[part], visit)
            return float(len(rows) * counter.get_total_flops() / len(part))
        params = {name: value.clone() for name, value in self.strategy.begin(visit).items()}
        with FlopCounterMode(display=False) as before:
            x = self.strategy.once(self.clients.x[part], visit)
        for value in learnt(params).values():
            value.requires_grad_()
        u = np.full(len(part) if visit.phase.draws else 0, 0.5, dtype=np.float32)
        batch = as_batch(x, self.clients.y[part], np.arange(len(part)), u)
        with FlopCounterMode(display=False) as counter:
            self.strategy.loss(params, batch, visit).backward()  # type: ignore[no-untyped-call]
        each_epoch, once = counter.get_total_flops() / len(part), before.get_total_flops() / len(part)
        return float(len(rows) * (visit.phase.epochs * each_epoch + once))


def _as_inputs(strategy: Strategy, federation: Federation, experiment: Experiment) -> Federation:
    """The federation of a run on features, with rows that its encoder reads anew."""
    encoder = {"encoder": federation.features.encoder}  # "auto" may mean another one where a network is trained
    experiment = experiment.model_copy(update={"data": experiment.data.model_copy(update=encoder)})
    try:
        return replace(federation, features=to_be_read(experiment, federation.dataset, strategy.base))
    except FedkeelError as error:
        raise FedkeelError(
            f"{strategy.name} trains the encoder, which this run cannot: {error}; or personalise its head alone with "
            "--method lp"
        ) from None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"client {shown}" if len(names) == 1 else f"{len(names)} clients ({shown})"
