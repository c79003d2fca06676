"""From a source to labelled training and test rows, held out and cut in a way that never changes by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.core.watch import to_stderr
from fedkeel.data.class_names import renamed
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.data.shares import by_class, held_out, largest_remainder
from fedkeel.data.sources.base import Source
from fedkeel.data.sources.hf import StoredImages


def load(data: Source, *, seed: int = 0, notice: Callable[[str], None] = to_stderr) -> Dataset:
    """The rows of ``data.source``, checked, with test rows held out and ``data.limit`` applied.

    Held-out rows depend on the content of the source alone; the sample that ``data.limit`` draws also on ``seed``.
    """
    dataset = read(data, notice)
    if not len(dataset.test_labels):
        dataset = _hold_out(dataset, data.holdout)
    _check(dataset)
    if data.limit is not None and data.limit < len(dataset.train_labels):
        dataset = _cut(dataset, data.limit, seed)
    return dataset


def read(data: Source, notice: Callable[[str], None]) -> Dataset:
    """All rows of the source, its classes called as the user calls them."""
    dataset = data.read(notice)
    return renamed(dataset, Path(data.class_names).expanduser()) if data.class_names else dataset


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
    for label, rows in by_class(labels):
        if len(rows) == 1:
            raise FedkeelError(
                f"{dataset.name}: class {dataset.class_names[label]!r} has one row, which cannot be trained on and "
                f"tested; merge it with another class, remove it or give test rows"
            )
    test = held_out(labels, share, generator(0, "holdout", dataset.fingerprint))
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
        train_sha256=_take(dataset.train_sha256, kept),
        test_sha256=_take(dataset.train_sha256, held),
        fingerprint=digest([dataset.fingerprint, kept, held]),
    )


def _sample(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` rows in ascending order, classes in proportion and each at least once."""
    present, counts = np.unique(labels, return_counts=True)
    beyond = np.maximum(counts * count / len(labels) - 1, 0)
    sizes = np.ones(len(present), dtype=np.int64)
    if count > len(present):
        sizes += largest_remainder((count - len(present)) * beyond / beyond.sum())
    chosen = [rng.permutation(rows)[:size] for (_, rows), size in zip(by_class(labels), sizes, strict=True)]
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
        train_sha256=_take(dataset.train_sha256, train),
        test_sha256=_take(dataset.test_sha256, test),
        ready={
            name: replace(ready, train=ready.train[train], test=ready.test[test])
            for name, ready in dataset.ready.items()
        },
        fingerprint=digest([dataset.fingerprint, train, test]),
    )
