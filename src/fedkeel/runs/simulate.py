"""One run in its folder: assemble the federation, train it, write down what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel import __version__
from fedkeel.core.atomic import write_atomically
from fedkeel.core.method import Method, State, Task, from_settings
from fedkeel.core.watch import Watch
from fedkeel.methods.dual.base import DualTuned
from fedkeel.metrics.accuracy import (
    Evaluation,
    TestSets,
    evaluate,
)
from fedkeel.metrics.drift import drift, linear_head
from fedkeel.metrics.geometry import geometry
from fedkeel.metrics.towers import Own, balance, on_own, pooled, zero_shot_per_class
from fedkeel.models.prepare import Preparation, mean_energy, prepare
from fedkeel.reporting.diagnostics import common_mean
from fedkeel.runs.checkpoint import Journal
from fedkeel.runs.config import Experiment
from fedkeel.runs.events import EVENTS, Log, read
from fedkeel.runs.federation import Federation
from fedkeel.runs.loop import ENGINES, Loop, federated_mean
from fedkeel.runs.model import MODEL, Model, client_file, save_client
from fedkeel.runs.summary import SUMMARY, summarise

MOST_ABROAD = 60
"""In a federation of more clients, personal models are tested on their own client's test set only."""
SHOWN_CLIENTS = 200
"""A record tells of each client up to this many; of more, a sample evenly spaced by size."""


def simulate(exp: Experiment, federation: Federation, folder: Path, watch: Watch) -> None:
    """Run or continue the experiment in a folder that was begun; it holds everything afterwards."""
    torch.set_num_threads(exp.run.threads or os.cpu_count() or 1)
    with Journal(folder, exp.digest()) as journal:
        with Log(folder / EVENTS) as log:
            train(exp, federation, folder, log, journal, watch)
        write_atomically(folder / SUMMARY, summarise(read(folder)).encode())


def train(exp: Experiment, federation: Federation, folder: Path, log: Log, journal: Journal, watch: Watch) -> None:
    method = from_settings(exp.method)
    how: Preparation = exp.data.features if method.reads == "features" else "raw"
    clients = federation.clients(exp.run.seed)
    engine = ENGINES[exp.run.engine](clients)
    shown = shown_clients(federation.manifest.train.sizes)
    x_test, y_test, own_rows = federation.test_rows()
    tests = TestSets(x_test, y_test, own_rows, federation.label_counts())
    validation = federation.manifest.validation.rows if exp.run.keep == "best" else None
    known = read(folder) if log.begun else None
    logged = {event["round"] for event in known.rounds} if known else set()
    if known:
        log.write("resume")
    else:
        data, who = about_data(federation, clients.x, len(y_test)), about_clients(federation, shown)
        if isinstance(method, DualTuned):
            data["zero_shot"] = zero_shot_per_class(tests)
            data["class_test_rows"] = torch.bincount(y_test, minlength=federation.dataset.classes).tolist()
        log.write("start", version=__version__, config=exp.model_dump(mode="json"), data=data, clients=who)
        if method.reads == "features" and (warning := common_mean(data["mean_energy"], data["source"], how)):
            watch.notice(warning)
    mean = federated_mean(clients, engine, log) if how == "centred" else None
    prepare(clients.x, how, mean)
    prepare(x_test, how, mean)
    if method.reads == "features" and (known is None or known.geometry is None):
        # By the true classes, whatever labels the clients see.
        labels, rows = torch.from_numpy(federation.dataset.train_labels.astype(np.int64)), clients.owned.rows
        log.write("geometry", **asdict(geometry(clients.x, labels, torch.from_numpy(rows))))

    drifted = {event["round"] for event in known.drift} if known else set()

    def own_models(state: State, dual: DualTuned) -> list[Own]:
        return [on_own(dual, state, clients.mine(client, dual, state), tests, client) for client in shown]

    balanced = {event["round"] for event in known.balance} if known else set()

    def record_drift(round: int, state: State) -> None:
        """Of the heads after a round, under the loss that the next one trains; of a dual encoder, from zero-shot."""
        if isinstance(method, DualTuned):
            if round not in balanced:
                found_own = pooled(own_models(state, method))
                log.write("balance", round=round, **balance(method, clients, state, round, tests), **found_own)
            return
        found = None if round in drifted else drift(linear_head(method), clients, state, min(round + 1, method.rounds))
        if found:
            log.write("drift", round=round, **asdict(found))

    latest: list[tuple[State, Evaluation]] = []

    def tested(state: State) -> Evaluation:
        """Of the global model; the last round's is the finished one's, and is not tested twice."""
        if not latest or latest[0][0] is not state:
            latest[:] = [(state, evaluate(lambda x: method.predict(state, {}, x), x_test, y_test))]
        return latest[0][1]

    def predict_as(client: int, state: State, x: Tensor) -> Tensor:
        return method.predict(state, clients.mine(client, method, state), x)

    def own_accuracies(state: State) -> list[float | None]:
        return [tests.on_own(partial(predict_as, client, state), client) for client in shown]

    validated = {event["round"]: event["accuracy"] for event in known.validation} if known else {}

    def validate(round: int, state: State) -> None:
        """Keep the state if it is the best so far on the rows that clients hold back for that."""
        rows = torch.from_numpy(validation)
        reached = evaluate(lambda x: method.predict(state, {}, x), clients.x[rows], clients.y[rows]).accuracy
        if reached > max((value for at, value in validated.items() if at < round), default=-1.0):
            journal.keep(round, state)
        if round not in validated:
            log.write("validation", round=round, accuracy=reached)
            validated[round] = reached

    def accuracy(round: int, state: State) -> float:
        if exp.run.drift:
            record_drift(round, state)
        if validation is not None:
            validate(round, state)
        return tested(state).accuracy if method.common else mean_of(own_accuracies(state)) or 0.0

    loop = Loop(method, clients, engine, log, journal, accuracy, lambda t, acc: watch.round(t, method.rounds, acc))
    backbone, dual = (getattr(clients.x, name, None) for name in ("backbone", "dual"))  # of rows that are no tensor
    sizes = clients.x.shape[1], federation.dataset.classes, len(clients.names)
    task = Task(*sizes, exp.run.seed, rows=len(clients.owned.rows), backbone=backbone, dual=dual)
    start = method.start(task)
    if exp.run.drift:
        record_drift(0, start)
    state = loop.rounds(start, logged)
    kept = journal.best() if validation is not None else None
    if kept is not None:
        state = kept.state

    model = finished_model(exp, federation, method, state, mean)
    model.save(folder / MODEL)
    final = tested(state)
    everywhere, per_class = tests.each(final), final.per_class(federation.dataset.classes)
    per_client = [everywhere[client] for client in shown]
    own: dict[str, Any] = {} if kept is None else {"kept_round": kept.round}
    if method.personal:
        before = everywhere if method.common else None
        log.write("personal_test", basis=tests.basis, names=list(clients.names), rows=tests.rows, before=before)
        values = []
        models = own_models(state, method) if isinstance(method, DualTuned) else None
        for place, client in enumerate(shown):
            if models is None:
                on = personal_on(partial(predict_as, client, state), client, tests)
            else:  # elsewhere such a model is not tested: that may take running the item tower for every row
                on = [models[place].accuracy if k == client else None for k in range(len(clients.names))]
            log.write("personal", client=client, name=clients.names[client], rows=int(clients.owned.sizes[client]),
                      on=on, distortion=None, seconds={}, flops={})  # fmt: skip
            values.append(on[client])
        own |= pooled(models) if models is not None else {}
        own |= {"personal": values, "personal_mean": mean_of(values)}
        if not method.common:  # numbers of a model that does not exist would mislead
            per_client, per_class = values, [None] * federation.dataset.classes
        for client, mine in clients.private.items():
            save_client(client_file(folder, clients.names[client]), mine)
    end = final.accuracy if method.common else own["personal_mean"] or 0.0
    log.write("end", accuracy=end, per_class=per_class, per_client=per_client, per_client_basis=tests.basis,
              digest=model.digest, **own)  # fmt: skip


def mean_of(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return float(np.mean(measured)) if measured else None


def personal_on(predict: Callable[[Tensor], Tensor], client: int, tests: TestSets) -> list[float | None]:
    """One client's model on every client's test set, or in a large federation on its own alone."""
    clients = len(tests.label_counts)
    if clients <= MOST_ABROAD:
        return tests.on_all(predict)
    return [tests.on_own(predict, k) if k == client else None for k in range(clients)]


def finished_model(exp: Experiment, federation: Federation, method: Method, state: State, mean: Tensor | None) -> Model:
    dataset, encoded = federation.dataset, federation.features
    how = {"encoder": encoded.encoder, "weights": encoded.weights, "transform": encoded.transform, "kind": dataset.kind}
    data = {**exp.data.model_dump(), **how, "dim": encoded.train.shape[1]}
    return Model(method, state.shared, mean, data, dataset.class_names)


def about_data(federation: Federation, x: Tensor, test_rows: int) -> dict[str, Any]:
    dataset, manifest = federation.dataset, federation.manifest
    return {
        "source": dataset.name,
        "encoder": federation.features.encoder,
        "classes": list(dataset.class_names),
        "train_rows": len(manifest.train.rows),
        "test_rows": test_rows,
        "dim": x.shape[1],
        "mean_energy": mean_energy(x) if isinstance(x, Tensor) else None,
        "class_rows": federation.label_counts().sum(0).tolist(),
        "manifest": manifest.hash,
    }


def shown_clients(sizes: np.ndarray) -> list[int]:
    if len(sizes) <= SHOWN_CLIENTS:
        return list(range(len(sizes)))
    by_size = np.argsort(-sizes, kind="stable")
    return sorted(by_size[np.linspace(0, len(sizes) - 1, SHOWN_CLIENTS).astype(int)].tolist())


def about_clients(federation: Federation, shown: list[int]) -> dict[str, Any]:
    sizes = federation.manifest.train.sizes
    return {
        "count": len(sizes),
        "empty": int((sizes == 0).sum()),
        "names": [federation.manifest.names[k] for k in shown],
        "rows": sizes[shown].tolist(),
        "label_counts": federation.label_counts()[shown].tolist(),
    }
