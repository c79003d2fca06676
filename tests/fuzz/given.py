"""What users and other machines give: their texts, tables, arrays and images, and messages."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

import fedkeel as fk
import small_tables
from fedkeel.core.message import Down, Up, decode, encode
from fedkeel.core.tree import digest
from fedkeel.data.dataset import Dataset
from fedkeel.data.images import open_image
from fedkeel.data.loading import load as load_data
from fedkeel.data.sources.base import Source
from fedkeel.runs import config
from fedkeel.runs.variant import Variant
from fuzz.mutations import (
    ODD,
    TOKENS,
    changed,
    npz_bytes,
    one_of,
    png_bytes,
    safetensors_bytes,
    text,
)  # fmt: skip
from fuzz.target import Target, target, tree

SMALL: dict[str, Any] = {
    "data": {"source": "digits", "limit": 60},
    "partition": {"kind": "dirichlet", "clients": 3, "alpha": 1.0},
    "method": {"name": "fedavg", "rounds": 2},
}


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

    return Target(one_of(*map(changed, sound)), check)


@target
def config_set(home: Path) -> Target:
    """``--set key=value``, with a key that exists mostly, and a value that nobody expects."""
    sections = fk.experiment(**SMALL).model_dump(mode="json")
    keys = [f"{section}.{key}" for section, values in sections.items() for key in values]
    odd = [json.dumps(value) for value in ODD if value is not None] + [one.decode("latin-1") for one in TOKENS]
    odd += ["1e9", "999999999999", "'a'", '"a"', "[1, 2]", "{}", "2026-01-01", "fedavg", "dirichlet:alpha=1", "csv:x"]
    known = [*keys, *sections, "x", "x.y", "", "method.x.y"]

    def make(draw: Random) -> bytes:
        pair = lambda: f"{draw.choice(known)}={draw.choice((text(draw), draw.choice(odd), draw.choice(odd)))}"  # noqa: E731
        return json.dumps(
            [draw.choice((pair, pair, lambda: text(draw)))() for _ in range(draw.choice((1, 2)))]
        ).encode()

    def check(data: bytes) -> None:
        read_back(config.load(None, json.loads(data)), home)

    return Target(make, check)


@target
def variant(home: Path) -> Target:
    whole = one_of(
        *(changed(name) for name in (b"ova-lp:stages=1", b"dirichlet:alpha=0.1:balance=true", b"a:b=", b":"))
    )

    def make(draw: Random) -> bytes:
        return json.dumps(draw.choice((text(draw), whole(draw).decode("latin-1")))).encode()

    def check(data: bytes) -> None:
        found = Variant.parse(json.loads(data))
        assert os.sep not in found.label

    return Target(make, check)


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

    return Target(one_of(changed(whole), changed(whole), changed(other)), check)


@target
def table(home: Path) -> Target:
    """With several columns of labels and of attributes."""
    path = small_tables.table(home, 12)
    lines = path.read_text().splitlines()
    more = [f"{line},{row % 2},{(row + 1) % 2}.0" for row, line in enumerate(lines[1:])]
    whole = "\n".join([f"{lines[0]},ill,well", *more, ""]).encode()
    settings = {"label_column": "ill,well", "attribute_column": "client,attribute"}

    def check(data: bytes) -> None:
        path.write_bytes(data)
        sound_rows(load_data(Source.of(source=f"table:{path}", **settings), notice=lambda text: None))

    return Target(changed(whole), check)


@target
def celeba_list(home: Path) -> Target:
    folder = small_tables.celeba(home, 2)
    path = folder / "list_attr_celeba.txt"
    whole = path.read_bytes()

    def check(data: bytes) -> None:
        path.write_bytes(data)
        sound_rows(load_data(Source.of(source=f"celeba:{folder}"), notice=lambda text: None))

    return Target(changed(whole), check)


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

    return Target(one_of(*map(npz_bytes, wholes)), check)


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

    # A few bytes may say, and mean, that there are 179 million pixels of one colour: Pillow refuses more.
    return Target(one_of(*map(changed, files), *map(png_bytes, files[:3])), check, megabytes=1500)


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

    return Target(one_of(*map(safetensors_bytes, sound), lambda draw: draw.randbytes(draw.randrange(300))), check)
