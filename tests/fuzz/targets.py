"""Everything that reads what others wrote, or what may have been damaged since: one target each.

A target takes bytes, whole ones that were changed mostly, and says what must hold of them. What it raises must be a
``FedkeelError``; what it accepts must be what was written, or, where a user wrote it, something that makes sense.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

import fedkeel as fk
from fedkeel.core.message import Down, Up, decode, encode
from fedkeel.core.method import State
from fedkeel.core.tree import Tree, digest
from fedkeel.data.dataset import Dataset
from fedkeel.data.images import open_image
from fedkeel.data.loading import load as load_data
from fedkeel.data.manifest import Manifest
from fedkeel.data.sources.base import Source
from fedkeel.engines.store import Store
from fedkeel.models.cache import encoded_by
from fedkeel.models.encoders import Encoder
from fedkeel.runs import config, events
from fedkeel.runs.checkpoint import Checkpoint, Checkpoints
from fedkeel.runs.model import Model, load_client, save_client
from fedkeel.runs.variant import Variant
from fuzz.mutations import (
    ODD,
    TOKENS,
    Bytes,
    changed,
    json_bytes,
    jsonl_bytes,
    npz_bytes,
    png_bytes,
    safetensors_bytes,
)  # fmt: skip

SMALL: dict[str, Any] = {
    "data": {"source": "digits", "limit": 60},
    "partition": {"kind": "dirichlet", "clients": 3, "alpha": 1.0},
    "method": {"name": "fedavg", "rounds": 2},
}


@dataclass(frozen=True)
class Target:
    inputs: Bytes
    check: Callable[[bytes], None]


TARGETS: dict[str, Callable[[Path], Target]] = {}
"""By name, each made with a folder of its own."""
SLOW = {"resume", "predict"}
"""A whole command for every example."""


def target(make: Callable[[Path], Target]) -> Callable[[Path], Target]:
    TARGETS[make.__name__.replace("_", "-")] = make
    return make


@cache
def _run() -> Path:
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return fk.run(out=folder / "run", **SMALL).folder


def finished(home: Path) -> Path:
    """The folder of a small run."""
    return shutil.copytree(_run(), home / "whole")


def tree(start: float = 0.0) -> Tree:
    return {"head.weight": torch.arange(12.0).reshape(3, 4) + start, "head.bias": torch.full((3,), start)}


# ---- what a user writes


def read_back(experiment: config.Experiment, home: Path) -> None:
    """What was accepted is complete: written down and read again it is the same."""
    path = home / "again.toml"
    path.write_text(experiment.toml(), encoding="utf-8")
    assert config.load(path).digest() == experiment.digest()


@target
def config_file(home: Path) -> Target:
    path = home / "config.toml"
    whole = fk.experiment(**SMALL).toml().encode() + b'\n[x]\na = [1, 2.5, {b = "c"}]\nd = 1979-05-27T07:32:00Z\n'
    sound = [fk.experiment(**SMALL).toml().encode(), whole]
    sound.append(b'[method]\nname = "ova-lp"\nrounds = 3\n[data]\nsource = "digits"\n[partition]\nkind = "shards"\n')

    def check(data: bytes) -> None:
        path.write_bytes(data)
        read_back(config.load(path), home)

    return Target(st.sampled_from(sound).flatmap(changed), check)


@target
def config_set(home: Path) -> Target:
    """``--set key=value``, with a key that exists mostly, and a value that nobody expects."""
    sections = fk.experiment(**SMALL).model_dump(mode="json")
    keys = [f"{section}.{key}" for section, values in sections.items() for key in values]
    odd = [json.dumps(value) for value in ODD if value is not None] + [one.decode("latin-1") for one in TOKENS]
    odd += ["1e9", "999999999999", "'a'", '"a"', "[1, 2]", "{}", "2026-01-01", "fedavg", "dirichlet:alpha=1", "csv:x"]
    pairs = st.tuples(
        st.sampled_from([*keys, *sections, "x", "x.y", "", "method.x.y"]), st.one_of(st.sampled_from(odd), st.text())
    )
    texts = st.lists(st.one_of(pairs.map("=".join), st.text()), min_size=1, max_size=3)

    def check(data: bytes) -> None:
        read_back(config.load(None, json.loads(data)), home)

    return Target(texts.map(lambda said: json.dumps(said).encode()), check)


@target
def variant(home: Path) -> Target:
    names = st.sampled_from(["ova-lp:stages=1", "dirichlet:alpha=0.1:balance=true", "fedavg", "a:b=", "a::", ":"])
    texts = st.one_of(
        st.text(), names.flatmap(lambda name: changed(name.encode())).map(lambda data: data.decode("latin-1"))
    )

    def check(data: bytes) -> None:
        found = Variant.parse(json.loads(data))
        assert os.sep not in found.label
        assert str(found)

    return Target(texts.map(lambda text: json.dumps(text).encode()), check)


def sound_rows(dataset: Dataset) -> None:
    """Everything a run trusts of a source."""
    for rows, labels, client in (
        (dataset.train, dataset.train_labels, dataset.train_client),
        (dataset.test, dataset.test_labels, dataset.test_client),
    ):
        assert len(rows) == len(labels) > 0
        assert client is None or len(client) == len(labels)
        assert labels.min() >= 0
        assert labels.max() < dataset.classes
    assert all(isinstance(name, str) for name in dataset.class_names)
    if dataset.kind == "features":
        assert np.isfinite(dataset.train).all()


@target
def csv(home: Path) -> Target:
    path = home / "rows.csv"
    rows = [
        f'"text {row}, with ""quotes""",{"ab"[row % 2]},c{row % 3},{["train", "test"][row % 5 == 0]}'
        for row in range(20)
    ]
    whole = "\n".join(["text,label,client,split", *rows, ""]).encode()
    other = b"text;label\r\n" + b"".join(b"caf\xe9 %d;%d\r\n" % (row, row % 2) for row in range(12))

    def check(data: bytes) -> None:
        path.write_bytes(data)
        sound_rows(load_data(Source.of(source=f"csv:{path}"), notice=lambda text: None))

    return Target(st.one_of(changed(whole), changed(whole), changed(other)), check)


@target
def npz(home: Path) -> Target:
    path = home / "rows.npz"
    draw = np.random.default_rng(0)
    labels = np.arange(12) % 3
    arrays = {"x": draw.normal(size=(12, 4)), "y": labels, "x_test": draw.normal(size=(6, 4)), "y_test": labels[:6]}
    arrays |= {"client": np.array(["a", "b"] * 6), "class_names": np.array(["u", "v", "w"])}
    images = {"x": draw.integers(0, 256, (12, 4, 4, 3), dtype=np.uint8), "y": labels.astype(str)}
    wholes = []
    for content in (arrays, images):
        file = io.BytesIO()
        np.savez_compressed(file, **content)  # type: ignore[arg-type]
        wholes.append(file.getvalue())

    def check(data: bytes) -> None:
        path.write_bytes(data)
        sound_rows(load_data(Source.of(source=f"npz:{path}"), notice=lambda text: None))

    return Target(st.sampled_from(wholes).flatmap(npz_bytes), check)


@target
def image(home: Path) -> Target:
    files = []
    for mode, format in (("RGB", "PNG"), ("I;16", "PNG"), ("P", "PNG"), ("RGB", "JPEG"), ("L", "GIF"), ("RGB", "BMP")):
        file = io.BytesIO()
        Image.new(mode, (9, 7)).save(file, format)
        files.append(file.getvalue())

    def check(data: bytes) -> None:
        found = open_image(data, 0)
        assert found.mode == "RGB"

    return Target(
        st.one_of(st.sampled_from(files).flatmap(changed), st.sampled_from(files[:3]).flatmap(png_bytes)), check
    )


# ---- what comes over the wire


@target
def message(home: Path) -> Target:
    sound = [
        encode(Up("run-7", 3, "train", "site-1", 17.0, tree())),
        encode(Down("run-7", 3, "train", tree(), 2001)),
    ]

    def check(data: bytes) -> None:
        found = decode(data)
        again = decode(encode(found))
        assert type(again) is type(found)
        assert digest(again.arrays) == digest(found.arrays)
        assert str({**vars(again), "arrays": 0}) == str({**vars(found), "arrays": 0})

    return Target(st.one_of(st.sampled_from(sound).flatmap(safetensors_bytes), st.binary()), check)


# ---- what a run wrote, and reads again: any damage is found, or changes nothing


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
    kept.commit()
    kept.close()

    def check(data: bytes) -> None:
        for beside in home.glob("private.sqlite*"):
            beside.unlink()
        path.write_bytes(data)
        opened = Store(path, "run")
        try:
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

    def of(name: str) -> Bytes:
        kinds = json_bytes if name.endswith(".json") else changed
        return kinds(wholes[name]).map(lambda content: name.encode() + b"\0" + content)

    return Target(st.sampled_from(names).flatmap(of), check)


# ---- whole commands on a folder of which one file was damaged


def _damaged(home: Path, command: Callable[[Path], Any]) -> Target:
    whole = finished(home)
    there = command(whole)
    names = sorted(
        path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file() and path.suffix != ".html"
    )

    def check(data: bytes) -> None:
        name, _, content = data.partition(b"\0")
        folder = home / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        (folder / name.decode()).write_bytes(content)
        assert command(folder) == there

    def of(name: str) -> Bytes:
        kinds = {".json": json_bytes, ".jsonl": jsonl_bytes, ".safetensors": safetensors_bytes}
        content = (whole / name).read_bytes()
        kind = kinds.get(Path(name).suffix, changed) if content else lambda _: st.binary(max_size=20)
        return kind(content).map(lambda new: name.encode() + b"\0" + new)

    return Target(st.sampled_from(names).flatmap(of), check)


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
