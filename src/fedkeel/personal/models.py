"""Personalise a finished run: every client trains its own model from the global one, and nothing leaves it.

One client after the other, so memory does not grow with the federation. What is finished is on disk: a personal model
as its difference to the run's, and a line of what it is worth. The same command continues after an interruption.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedkeel import __version__
from fedkeel.core.atomic import claim, folder_atomically, write_atomically
from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.method import settings
from fedkeel.core.pulse import heard
from fedkeel.core.tree import digest
from fedkeel.core.watch import Progress, Watch
from fedkeel.engines.threads import Places, in_parallel
from fedkeel.methods.dual.base import dual_of
from fedkeel.models.backbone import Backbone
from fedkeel.personal.plan import Wish, outline, rows_to_read, unfinished
from fedkeel.personal.strategy import STRATEGIES, Strategy
from fedkeel.personal.work import Work
from fedkeel.runs.config import Experiment, assignment, checked, nested
from fedkeel.runs.events import EVENTS, PERSONAL, Log, Record, personalised, read
from fedkeel.runs.federation import Federation
from fedkeel.runs.folder import CONFIG, sealed, sealed_text, stored
from fedkeel.runs.model import CLIENTS, Model, client_file, load_client, makes_clients
from fedkeel.runs.opening import same_rows
from fedkeel.runs.simulate import ENGINES, about_clients, about_data
from fedkeel.runs.variant import Variant

NO_SETTINGS = ("rounds", "participation", "of")
"""Fields of a strategy that users cannot set."""
COMMAND = "the same fedkeel personalize"
"""What writes the files in a folder of personal models."""


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
    found = STRATEGIES[variant.name]
    if dual_of(run.method) is not None:
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
    run: Path, variant: Variant, rows: Callable[[Experiment], Federation], wish: Wish, watch: Watch
) -> Record:
    """Personalise the run in a folder, or go on with it; gives the record in ``RUN/personal/LABEL``.

    ``rows`` gives the clients with their rows: all of a simulation, or a real site alone.
    """
    if wish.engine not in ENGINES:
        raise unknown("engine", wish.engine, ENGINES)
    experiment, model = stored(run), Model.of(run)
    torch.set_num_threads(experiment.run.threads or os.cpu_count() or 1)
    strategy = strategy_of(variant, model)
    federation = rows(experiment)
    if federation.manifest.hash != read(run).start["data"]["manifest"]:
        raise FedkeelError(f"{run}: the data are not those that the run was trained on; restore them, or run again")
    used = federation.rows
    if (used.weights, used.transform) != (model.data["weights"], model.data["transform"]):
        raise FedkeelError(
            f"{run}: the encoder {used.encoder} is not the one that the run was trained with, its weights "
            "or settings have changed; restore it, or run again"
        )
    reopened = not same_rows(strategy, model.method)
    if reopened:
        watch.notice(f"opening the encoder {used.encoder}: {strategy.name} trains it, so it reads the rows anew")
    work = Work.on(strategy, model, federation, experiment)
    if reopened and not work.reads_as(federation):
        watch.notice(
            f"{federation.dataset.name} keeps less of its rows than its features were made of, so the global model is "
            "worse on what the encoder reads here than it was in the run; the record has both"
        )
    chosen = work.chosen(wish.only, watch)
    folder = run / PERSONAL / variant.label
    config = {**experiment.model_dump(mode="json", exclude_none=True), "method": _plain(settings(strategy))}
    _begin(folder, config)
    busy = f"{folder} is in use by another command: wait for it, or choose other settings"
    with claim(folder / CLIENTS, folder / CONFIG, busy), Log(folder / EVENTS) as log:
        if not log.begun:
            data = about_data(federation, work.sites.x.tensor, len(work.tests.y))
            everybody = list(range(len(work.sites.names)))
            who = about_clients(federation, everybody)
            log.write("start", version=__version__, config=config, data=data, clients=who, model=model.digest)
        _make(work, chosen, wish, _of_this(model, read(folder)), log, watch)
    return read(folder)


def _make(work: Work, chosen: Sequence[int], wish: Wish, known: Record, log: Log, watch: Watch) -> None:
    """The models of the chosen clients, as far as they are not there: each is on disk, then on record."""
    done = {event["client"] for event in known.personal}
    files = {client: client_file(log.folder, work.sites.names[client]) for client in chosen}
    left = [client for client in chosen if client not in done or not files[client].exists()]
    if left or known.end is None:
        log.write("asked", clients=list(chosen), only=list(wish.only), words=list(wish.words))
    watch.notice(outline(work, len(chosen), len(left)))
    rows = rows_to_read(work, left, known.personal_test is not None)
    progress = Progress(rows or len(left), watch.share)

    def personalise(place: Work, client: int) -> dict[str, Any]:
        return place.personalise(client, ENGINES[wish.engine](place.sites), files[client])

    everybody = len(work.sites.names)
    with heard(progress.add), closing(in_parallel(personalise, left, Places(work, work.twin), everybody)) as made:
        if known.personal_test is None:
            log.write("personal_test", **work.test())
        for number, event in enumerate(made, len(chosen) - len(left) + 1):
            log.write("personal", **event)
            if event["distortion"] is None:
                watch.notice(f"client {event['name']}: its model diverged, lower method.lr")
            watch.client(number, len(chosen), event["on"][event["client"]])
            progress.add(0 if rows else 1)
    digest_of_all = _digest(log.folder)
    if left or known.end is None or known.end["digest"] != digest_of_all:
        log.write("end", digest=digest_of_all)


def _plain(section: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null."""
    kept = {key: value for key, value in section.items() if value is not None}
    return {key: _plain(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _begin(folder: Path, config: dict[str, Any]) -> None:
    """Write down how the models are made, or make sure that they were begun in the same way."""
    text = sealed(tomli_w.dumps(config))
    if not folder.exists():
        with folder_atomically(folder) as new:
            (new / CLIENTS).mkdir()
            write_atomically(new / CONFIG, text)
    if not (folder / CONFIG).exists():
        write_atomically(folder / CONFIG, text)
    elif sealed_text(folder / CONFIG, COMMAND) != text.decode():
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


def personal_model(run: Path, client: str, label: str | None) -> Model:
    """A client's own model: of the way to personalise that is named, or of the only one that there is."""
    model = Model.of(run)
    if model.method.personal:
        mine = load_client(_of_client(run, client))
        return replace(model, mine=mine, temperature=_temperature(read(run), client))
    folder = _finished(run, label).folder
    record = _of_this(model, read(folder))
    moved = load_client(_of_client(folder, client))
    strategy = from_settings_of(folder)
    shared = dict(model.shared)
    if not same_rows(strategy, model.method):
        shared = {**Backbone.of(model.encoder([])).tree(0), **shared}
    mine = {name: shared[name] + value if name in shared else value for name, value in moved.items()}
    return replace(model, method=strategy, shared=shared, mine=mine, temperature=_temperature(record, client))


def _temperature(record: Record, client: str) -> float | None:
    """What the client fitted on its own validation rows."""
    return next((event.get("temperature") for event in record.personal if event["name"] == client), None)


def _finished(run: Path, label: str | None) -> Record:
    """The record of the way to personalise that is named, or of the only one; an attempt that has not ended is none."""
    damage = list[str]()
    every = {record.folder.name: record for record in personalised(run, damage.append)}
    if damage and label not in every:  # it may be the one that is meant
        raise FedkeelError(damage[0])
    ended = [name for name, record in every.items() if record.end]
    if not every:
        command = f"fedkeel personalize {shlex.quote(str(run))}"
        raise FedkeelError(f"{run} has no personal models: {command} makes them")
    if label is None and len(ended) > 1:
        raise FedkeelError(f"{run} was personalised in {len(ended)} ways: say which with --personal {ended[0]}")
    if label is not None and label not in every:
        raise unknown(f"personal models of {run}:", label, ended or every)
    found = every[label or (ended or list(every))[0]]
    if found.end is None:
        raise FedkeelError(f"{found.folder} is not finished: {unfinished(found)}")
    return found


def _of_client(folder: Path, client: str) -> Path:
    path = client_file(folder, client)
    if not path.exists():
        record = read(folder)
        names = record.start["clients"]["names"]
        if client not in names:
            raise unknown("client", client, names)
        made = [event["name"] for event in record.personal] if record.post_hoc else (record.end or {}).get("own", ())
        if client in made:
            raise FedkeelError(f"there is no {path}: {makes_clients(folder)}")
        wish = Wish.behind(record)
        if wish.only and client not in wish.only:
            more = replace(wish, only=(client,)).command(folder.parent.parent)
            raise FedkeelError(f"client {client} has no model in {folder}: it was not asked for; {more} makes it")
        raise FedkeelError(f"client {client} has no model in {folder}: it keeps the global one; leave out --client")
    return path


def from_settings_of(folder: Path) -> Strategy:
    section = tomllib.loads(sealed_text(folder / CONFIG, COMMAND))["method"]
    return STRATEGIES[section["name"]](**{key: value for key, value in section.items() if key != "name"})
