"""What a run wrote and reads again: any damage is found, or changes nothing."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import fedkeel as fk
from fedkeel.core.method import Method, State
from fedkeel.core.sealed import BLANK, KEY, read_tensors, seal
from fedkeel.core.tree import digest
from fedkeel.data.dataset import Dataset
from fedkeel.data.manifest import Manifest
from fedkeel.data.sources.base import Source
from fedkeel.engines.store import Store
from fedkeel.models.cache import encoded_by
from fedkeel.models.encoders import Encoder
from fedkeel.runs import events
from fedkeel.runs.checkpoint import Checkpoint, Checkpoints
from fedkeel.runs.model import Model, load_client, save_client
from fuzz.given import SMALL
from fuzz.mutations import (
    Make,
    changed,
    json_bytes,
    json_changed,
    jsonl_bytes,
    safetensors_bytes,
    written,
)  # fmt: skip
from fuzz.target import Target, target, tree


@cache
def _run() -> Path:
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return fk.run(out=folder / "run", **SMALL).folder


def finished(home: Path) -> Path:
    """The folder of a small run."""
    return shutil.copytree(_run(), home / "whole")


@target
def manifest(home: Path) -> Target:
    path = finished(home) / "manifest.json"
    whole = path.read_bytes()
    there = Manifest.load(path)

    def check(data: bytes) -> None:
        path.write_bytes(data)
        assert Manifest.load(path).hash == there.hash

    return Target(json_bytes(whole), check)


def told(record: events.Record) -> str:
    return json.dumps({**asdict(record), "folder": ""}, sort_keys=True)


@target
def events_file(home: Path) -> Target:
    folder = finished(home)
    whole = (folder / events.EVENTS).read_bytes()
    there = told(events.read(folder))

    def check(data: bytes) -> None:
        (folder / events.EVENTS).write_bytes(data)
        assert told(events.read(folder)) == there

    return Target(jsonl_bytes(whole), check)


@target
def summary(home: Path) -> Target:
    folder = finished(home)
    path = folder / "summary.json"
    there = fk.Result.load(folder).summary

    def check(data: bytes) -> None:
        path.write_bytes(data)
        assert fk.Result.load(folder).summary == there

    return Target(json_bytes(path.read_bytes()), check)


def all_of(model: Model) -> str:
    mean = {} if model.mean is None else {"mean": model.mean}
    return str((digest({**model.shared, **mean}), model.method, model.data, model.class_names))


@target
def model(home: Path) -> Target:
    path = finished(home) / "model.safetensors"
    there = all_of(Model.load(path))

    def check(data: bytes) -> None:
        path.write_bytes(data)
        assert all_of(Model.load(path)) == there

    return Target(safetensors_bytes(path.read_bytes()), check)


@target
def forged_model(home: Path) -> Target:
    """A seal tells damage, not who wrote a file: a model of others may say anything, with a seal that holds."""
    path = finished(home) / "model.safetensors"
    tensors, about = read_tensors(path)
    said = json_changed({key: value for key, value in about.items() if key != KEY})

    def check(data: bytes) -> None:
        about = json.loads(data)
        if not isinstance(about, dict):
            return
        path.write_bytes(seal(save(tensors, metadata={"fedkeel": json.dumps({KEY: BLANK, **about})})))
        found = Model.load(path)
        assert isinstance(found.method, Method)
        assert all(isinstance(name, str) for name in found.class_names)
        assert found.temperature is None or 0 < found.temperature < np.inf

    return Target(lambda draw: written(said(draw)), check)


@target
def client_file(home: Path) -> Target:
    path = home / "clients" / "a.safetensors"
    save_client(path, tree())

    def check(data: bytes) -> None:
        path.write_bytes(data)
        assert digest(load_client(path)) == digest(tree())

    return Target(safetensors_bytes(path.read_bytes()), check)


@target
def checkpoint(home: Path) -> Target:
    there = Checkpoint(3, 1, State(tree(), {"server": torch.ones(2)}), np.array([-1, 3000, 2001], dtype=np.int64))
    with Checkpoints(home, "experiment") as points:
        points.save(there)
    (path,) = (home / "journal").glob("*.safetensors")

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with Checkpoints(home, "experiment") as points:
            found = points.newest()
        assert found is not None
        assert (found.round, found.index) == (3, 1)
        assert digest(found.state.shared) == digest(tree())
        assert digest(found.state.server) == digest(there.state.server)
        assert not found.state.per_client
        assert found.accepted.tolist() == there.accepted.tolist()

    return Target(safetensors_bytes(path.read_bytes()), check)


@target
def store(home: Path) -> Target:
    path = home / "private.sqlite"
    clients = [f"site-{number}" for number in range(5)]
    kept = Store(path, "run")
    for number, client in enumerate(clients):
        kept.write(client, 1000, tree(number))
    kept.commit(settled=1000)
    kept.close()

    def check(data: bytes) -> None:
        for beside in home.glob("private.sqlite*"):
            beside.unlink()
        path.write_bytes(data)
        opened = Store(path, "run")
        try:
            opened.forget_after(1000, settled=1000)  # as a run that goes on from its checkpoint
            for number, client in enumerate(clients):
                found = opened.read(client, 1000)
                assert found is not None, f"{client} is said to have nothing"
                assert digest(found) == digest(tree(number))
        finally:
            opened.close()

    return Target(changed(path.read_bytes()), check)


@target
def features(home: Path) -> Target:
    """A folder of the feature cache: the bytes are its files, one after the other."""

    class Fixed:
        dim = 3

        def encode(self, rows: Any) -> np.ndarray:
            return np.asarray(rows, dtype=np.float32)[:, :3]

    rows = np.arange(40.0).reshape(10, 4)
    labels = np.arange(10) % 2
    dataset = Dataset("rows", "features", rows[:6], labels[:6], rows[6:], labels[6:], ("a", "b"), "f", "fixed")
    data = Source.of(source="digits", cache=str(home))

    def opened() -> bytes:
        encoder = Encoder("fixed", "features", "w", "t", Fixed)  # type: ignore[arg-type]
        found = encoded_by(encoder, data, dataset, notice=lambda text: None)
        return found.train.tobytes() + found.test.tobytes()

    there = opened()
    (folder,) = (path for path in (home / "features").iterdir() if path.is_dir())
    names = sorted(path.name for path in folder.iterdir())
    wholes = {name: (folder / name).read_bytes() for name in names}

    def check(data: bytes) -> None:
        name, _, content = data.partition(b"\0")
        for other, whole in wholes.items():
            (folder / other).write_bytes(whole)
        (folder / name.decode()).write_bytes(content)
        assert opened() == there

    return Target(_files(wholes), check)


# ---- whole commands on a folder of which one file was damaged


def _files(wholes: dict[str, bytes]) -> Make:
    """The name of a file, and what it holds after a change that goes with its kind."""
    kinds = {".json": json_bytes, ".jsonl": jsonl_bytes, ".safetensors": safetensors_bytes}
    ways = {name: kinds.get(Path(name).suffix, changed)(whole) for name, whole in wholes.items() if whole}

    def make(draw: Random) -> bytes:
        name = draw.choice(sorted(ways))
        return name.encode() + b"\0" + ways[name](draw)

    return make


def _damaged(home: Path, command: Callable[[Path], Any]) -> Target:
    whole = finished(home)
    there = command(whole)
    paths = [path for path in whole.rglob("*") if path.is_file() and path.suffix != ".html"]
    wholes = {path.relative_to(whole).as_posix(): path.read_bytes() for path in paths}

    def check(data: bytes) -> None:
        name, _, content = data.partition(b"\0")
        folder = home / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        (folder / name.decode()).write_bytes(content)
        assert command(folder) == there

    return Target(_files(wholes), check)


@target
def resume(home: Path) -> Target:
    """``run --resume`` ends with the result that was there, or says what is damaged."""

    def command(folder: Path) -> Any:
        result = fk.run(out=folder, resume=True)
        return result.digest, result.accuracy, result.curve, digest(result.model.shared)

    return _damaged(home, command)


@target
def predict(home: Path) -> Target:
    rows = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)

    def command(folder: Path) -> Any:
        names, scores = fk.Result.load(folder).predict(rows)
        return names, scores.tobytes()

    return _damaged(home, command)
