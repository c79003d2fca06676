"""Personalise a finished run: every client trains its own model from the global one, and nothing leaves it.

One client after the other, so memory does not grow with the federation. What is finished is on disk: a personal model
as its difference to the run's, and a line of what it is worth. The same command continues after an interruption.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedkeel import __version__
from fedkeel.atomic import claim, write_atomically
from fedkeel.config import Experiment, assignment, checked, nested
from fedkeel.data.dataset import Dataset
from fedkeel.engines.alone import as_batch
from fedkeel.engines.base import Clients
from fedkeel.engines.threads import Places, side_by_side
from fedkeel.errors import FedkeelError, unknown
from fedkeel.events import EVENTS, PERSONAL, Log, Record, read
from fedkeel.federation import Federation, Watch, assemble, to_be_read
from fedkeel.folder import CONFIG, stored
from fedkeel.grid import Variant
from fedkeel.loop import ENGINES
from fedkeel.method import State, Visit, settings
from fedkeel.metrics.accuracy import TestSets
from fedkeel.models.backbone import Backbone
from fedkeel.models.prepare import Preparation, as_rows, prepare, prepared
from fedkeel.personal.strategy import Strategy, find
from fedkeel.result import CLIENTS, MODEL, Model, client_file, load_client, save_client
from fedkeel.simulate import about_clients, about_data
from fedkeel.tree import Tree, digest, learnt

NO_SETTINGS = ("rounds", "participation", "of")
"""Fields of a strategy that users cannot set."""
SAME_ROWS = 16
"""Of so many rows features are made again, to see whether they are the same."""
COUNTED_ROWS = 32
"""FLOPs are counted on a batch of at most this many rows."""


def with_settings(variant: Variant, texts: Iterable[str]) -> Variant:
    """The variant with ``method.key=value`` texts laid over it."""
    said = nested(dict(assignment(text) for text in texts))
    others = [section for section in said if section != "method"]
    if others:
        raise FedkeelError(
            f"--set {others[0]}: a run keeps its data, split and seed when it is personalised; set method.* only, e.g. "
            "method.epochs=10"
        )
    changes = said.get("method", {})
    if not isinstance(changes, dict) or "name" in changes:
        raise FedkeelError(
            "--set method: --method names the way to personalise; --set takes its settings, e.g. method.epochs=10"
        )
    return Variant(variant.name, {**variant.settings, **changes})


def strategy_of(variant: Variant, run: Model, where: str = "--set") -> Strategy:
    """The strategy with its settings, for the model of a run."""
    found = find(variant.name)
    if run.method.reads == "dual":
        raise FedkeelError(
            f"method {run.method.name} has a dual encoder, and personalize goes on from heads and whole networks only: "
            "use the models that the run left each client, fedkeel predict --client NAME"
        )
    for key in NO_SETTINGS:
        if key in variant.settings:
            raise FedkeelError(
                f"{where}: method.{key} means nothing to {variant.name}, which every client does once "
                "and by itself: leave it out"
            )
    strategy = checked(found, {"rounds": 1, **variant.settings}, where, prefix="method.")
    return strategy.on(run.method)


def personalize(
    run: Path, variant: Variant, dataset: Dataset, engine: str, only: Sequence[str], watch: Watch
) -> Record:
    """Personalise the run in a folder, or go on with it; gives the record in ``RUN/personal/LABEL``."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    experiment, model = stored(run), Model.load(run / MODEL)
    torch.set_num_threads(experiment.run.threads or os.cpu_count() or 1)
    strategy = strategy_of(variant, model)
    federation = assemble(experiment, dataset, watch)
    if federation.manifest.hash != read(run).start["data"]["manifest"]:
        raise FedkeelError(f"{run}: the data are not those that the run was trained on; restore them, or run again")
    used = federation.features
    if (used.weights, used.transform) != (model.data["weights"], model.data["transform"]):
        raise FedkeelError(
            f"{run}: the encoder {used.encoder} is not the one that the run was trained with, its weights "
            "or settings have changed; restore it, or run again"
        )
    work = Work.on(strategy, model, federation, experiment)
    if strategy.reads != model.method.reads and not work.reads_as(federation):
        watch.notice(
            f"{dataset.name} keeps less of its rows than its features were made of, so the global model is worse on "
            "what the encoder reads here than it was in the run; the record has both"
        )
    chosen = work.chosen(only, watch)
    folder = run / PERSONAL / variant.label
    config = {**experiment.model_dump(mode="json", exclude_none=True), "method": _plain(settings(strategy))}
    _begin(folder, config)
    busy = f"{folder} is in use by another command: wait for it, or choose other settings"
    with claim(folder / CLIENTS, folder / CONFIG, busy), Log(folder / EVENTS) as log:
        if not log.begun:
            data = about_data(federation, work.clients.x, len(work.tests.y))
            everybody = list(range(len(work.clients.names)))
            who = about_clients(federation, everybody)
            log.write("start", version=__version__, config=config, data=data, clients=who, model=model.digest)
        known = _of_this(model, read(folder))
        if known.personal_test is None:
            log.write("personal_test", **work.test())
        done = {event["client"]: event for event in known.personal}
        files = {client: client_file(folder, work.clients.names[client]) for client in chosen}
        open_ones = [client for client in chosen if client not in done or not files[client].exists()]

        def personalise(place: Work, client: int) -> dict[str, Any]:
            return place.personalise(client, ENGINES[engine](place.clients), files[client])

        for event in side_by_side(personalise, open_ones, Places(work, work.twin)):
            log.write("personal", **event)
            if event["distortion"] is None:
                watch.notice(f"client {event['name']}: its model diverged, lower method.lr")
            left = open_ones.index(event["client"]) + 1 - len(open_ones)
            watch.client(len(chosen) + left, len(chosen), event["on"][event["client"]])
        digest_of_all = _digest(folder)
        if known.end is None or known.end["digest"] != digest_of_all:
            log.write("end", digest=digest_of_all)
    return read(folder)


def _plain(section: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null."""
    kept = {key: value for key, value in section.items() if value is not None}
    return {key: _plain(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _begin(folder: Path, config: dict[str, Any]) -> None:
    """Write down how the models are made, or make sure that they were begun in the same way."""
    text = tomli_w.dumps(config)
    if not (folder / CONFIG).exists():
        (folder / CLIENTS).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / CONFIG, text.encode())
    elif (folder / CONFIG).read_text(encoding="utf-8") != text:
        raise FedkeelError(f"{folder} was made with other settings: delete it to make it anew")


def _of_this(model: Model, record: Record) -> Record:
    """The record, of models that were made from this one: their files hold differences to it."""
    if record.start.get("model", model.digest) != model.digest:
        raise FedkeelError(
            f"{record.folder} was made from another model than the run has now: delete it to make it anew"
        )
    return record


def _digest(folder: Path) -> str:
    """Of all personal models together."""
    paths = sorted((folder / CLIENTS).glob("*.safetensors"))
    return sha256("".join(f"{path.stem} {digest(load_client(path))}\n" for path in paths).encode()).hexdigest()


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


def personal_model(run: Path, client: str, label: str | None) -> Model:
    """A client's own model: of the way to personalise that is named, or of the only one that there is."""
    model = Model.load(run / MODEL)
    if model.method.personal:
        return replace(model, mine=load_client(_of_client(run, client)))
    made = sorted(path.name for path in (run / PERSONAL).glob("*") if (path / CLIENTS).is_dir())
    if not made:
        raise FedkeelError(f"{run} has no personal models: fedkeel personalize {run} --method lp-ft makes them")
    if label is None and len(made) > 1:
        raise FedkeelError(f"{run} was personalised in {len(made)} ways: say which with --personal {made[0]}")
    if label is not None and label not in made:
        raise unknown(f"personal models of {run}:", label, made)
    folder = run / PERSONAL / (label or made[0])
    _of_this(model, read(folder))
    moved = load_client(_of_client(folder, client))
    strategy = from_settings_of(folder)
    shared = dict(model.shared)
    if strategy.reads == "inputs" and model.method.reads == "features":
        shared = {**Backbone.of(model.encoder([])).tree(0), **shared}
    mine = {name: shared[name] + value if name in shared else value for name, value in moved.items()}
    return replace(model, method=strategy, shared=shared, mine=mine)


def _of_client(folder: Path, client: str) -> Path:
    path = client_file(folder, client)
    if not path.exists():
        names = read(folder).start["clients"]["names"]
        if client not in names:
            raise unknown("client", client, names)
        raise FedkeelError(f"client {client} has no model in {folder}: it keeps the global one; leave out --client")
    return path


def from_settings_of(folder: Path) -> Strategy:
    section = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))["method"]
    return find(section["name"])(**{key: value for key, value in section.items() if key != "name"})
