"""One simulated run in its folder: assemble the federation, train it, write down what came of it."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedkeel import __version__
from fedkeel.core.method import AnyMethod, State, Task, from_settings
from fedkeel.core.roster import Roster
from fedkeel.core.watch import SILENT, Watch
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.store import Store
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.dual.base import DualTuned, dual_of
from fedkeel.methods.dual.peft.prompt import Prompt
from fedkeel.metrics.features import common_mean
from fedkeel.metrics.towers import zero_shot_per_class
from fedkeel.models.dual import Dual
from fedkeel.models.prepare import Preparation, mean_energy, prepare
from fedkeel.runs.checkpoint import Checkpoints
from fedkeel.runs.config import Experiment
from fedkeel.runs.ending import end, sum_up
from fedkeel.runs.events import EVENTS, Log, damaged, read
from fedkeel.runs.federation import Federation
from fedkeel.runs.loop import Exchanges, Loop, federated_mean
from fedkeel.runs.model import MODEL, Model
from fedkeel.runs.observers.base import Running, Simulation, observers_of
from fedkeel.runs.opening import preparation
from fedkeel.runs.summary import SUMMARY

ENGINES: dict[str, type[Simulated]] = {"local": LocalEngine, "wire": WireEngine}


def simulate(exp: Experiment, federation: Federation, folder: Path, watch: Watch) -> None:
    """Run or continue the experiment in a folder that was begun; it holds everything afterwards."""
    torch.set_num_threads(exp.run.threads or os.cpu_count() or 1)
    with Checkpoints(folder, exp.digest()) as checkpoints:
        (folder / SUMMARY).unlink(missing_ok=True)  # of what is no longer whole, and is about to be
        with Log(folder / EVENTS) as log:
            train(exp, federation, log, checkpoints, watch)
        sum_up(folder, log)


def fit(exp: Experiment, federation: Federation) -> Model:
    """The finished model alone: nobody tests it, so there need be no test rows, and nothing is left on disk."""
    with TemporaryDirectory(prefix="fedkeel-") as name:
        folder = Path(name)
        with Checkpoints(folder, exp.digest()) as checkpoints, Log(folder / EVENTS) as log:
            train(exp, federation, log, checkpoints, SILENT, observed=False)
        return Model.load(folder / MODEL)


def train(
    exp: Experiment, federation: Federation, log: Log, checkpoints: Checkpoints, watch: Watch, observed: bool = True
) -> None:
    method = from_settings(exp.method)
    if (done := checkpoints.newest()) is not None:  # before anything is written
        log.must_hold(done.head)
    how = preparation(method, exp.data)
    roster = roster_of(exp, federation, how)
    sites = federation.sites(exp.run.seed, Store(checkpoints.private, roster.run))
    engine = ENGINES[exp.run.engine](sites, roster)
    run = Running(
        exp, method, engine, log, checkpoints, watch, read(log.folder) if log.begun else None,
        Simulation(federation, engine, federation.test_sets(sites)),
    )  # fmt: skip
    begin(run, how)
    lost = exp.run.lost
    asking = Exchanges(ENGINES[exp.run.engine](sites, roster), log, lost, watch)
    mean = federated_mean(asking, sites.x.dim) if how == "centred" else None
    for rows in (sites.x, run.simulated.tests.x):
        if rows.tensor is not None:
            prepare(rows.tensor, how, mean)
    observers = observers_of(run) if observed else []
    start = method.start(task_of(run))
    with closing(sites.store):
        for observer in observers:
            observer.started(start)
        state = Loop(method, engine, log, checkpoints, observers, lost, watch).rounds(start)
        end(run, state, lambda last: finished_model(exp, federation, method, last, mean), observers)


def roster_of(exp: Experiment, federation: Federation, how: Preparation) -> Roster:
    longest = None if how == "raw" else 1.0
    class_names = federation.dataset.class_names
    return federation.enrolment().roster(exp.digest()[:16], exp.run.seed, class_names, longest)


def task_of(run: Running) -> Task:
    """What the method starts from."""
    x, roster = run.simulated.engine.sites.x, run.engine.roster
    sizes = x.dim, roster.classes, len(roster.names)
    return Task(*sizes, roster.seed, int(roster.rows.sum()), x.reader, len(roster.able))


def begin(run: Running, how: Preparation) -> None:
    """The first event of a run, or that it goes on."""
    if run.known is not None:
        if run.known.start["experiment"] != run.experiment.digest():
            raise damaged(run.log.folder, "is of another configuration than config.toml")
        run.log.write("resume")
        return
    seen, exp = run.simulated, run.experiment
    data = about_data(seen.federation, seen.engine.sites.x.tensor, len(seen.tests.y))
    if (tuned := dual_of(run.method)) is not None:
        data["zero_shot"] = zero_shot_per_class(seen.tests)
        data["read_as"] = names_read_as(tuned, seen.engine.sites.x.reader)
        data["class_test_rows"] = torch.bincount(seen.tests.y, minlength=run.engine.roster.classes).tolist()
    who = about_clients(seen.federation, seen.shown)
    about = {"version": __version__, "provenance": asdict(seen.federation.provenance), "experiment": exp.digest()}
    run.log.write("start", **about, config=exp.model_dump(mode="json"), data=data, clients=who)
    if data["mean_energy"] is not None and (warning := common_mean(data["mean_energy"], data["source"], how)):
        run.watch.notice(warning)


def finished_model(
    exp: Experiment, federation: Federation, method: AnyMethod, state: State, mean: torch.Tensor | None
) -> Model:
    dataset, rows = federation.dataset, federation.rows
    how = {"encoder": rows.encoder, "weights": rows.weights, "transform": rows.transform, "kind": dataset.kind}
    data = {**exp.data.model_dump(), **how, "dim": rows.train.dim}
    return Model(method, state.shared, mean, data, dataset.class_names)


def names_read_as(method: DualTuned, dual: object) -> dict[str, Any]:
    """What a dual encoder reads of the classes: their names, in words, and what stands around them."""
    assert isinstance(dual, Dual)
    prompted = {"ending": dual.ending} if isinstance(method.module, Prompt) else {}
    return {"names": list(dual.class_names), "template": dual.template, **prompted}


def about_data(federation: Federation, features: torch.Tensor | None, test_rows: int) -> dict[str, Any]:
    dataset, manifest = federation.dataset, federation.manifest
    return {
        "source": dataset.name,
        "encoder": federation.rows.encoder,
        "classes": list(dataset.class_names),
        "train_rows": len(manifest.train.rows),
        "test_rows": test_rows,
        "dim": federation.rows.train.dim,
        "mean_energy": None if features is None else mean_energy(features),
        "class_rows": federation.label_counts().sum(0).tolist(),
        "duplicates": asdict(federation.duplicates),
        "manifest": manifest.hash,
    }


def about_clients(federation: Federation, shown: list[int]) -> dict[str, Any]:
    sizes = federation.manifest.train.sizes
    return {
        "count": len(sizes),
        "empty": int((sizes == 0).sum()),
        "names": [federation.manifest.names[k] for k in shown],
        "rows": sizes[shown].tolist(),
        "label_counts": federation.label_counts()[shown].tolist(),
    }
