"""Test rows that are training rows as well: a model may know them by heart, and the test is no test.

Rows are the same if their content is, byte by byte: a text, the bytes of an image file, the numbers of an array. What
is dropped, where that is asked for, are the copies that clients train or choose with. The test rows stay, so that
accuracies with and without the copies are of the same rows, and of those that others test on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.core.rng import generator
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import file_sha256
from fedkeel.data.manifest import Manifest

CHUNK = 4096
"""Rows that are hashed at a time."""


@dataclass(frozen=True)
class Duplicates:
    test_rows: int
    """test rows that are training or validation rows as well"""
    other_label: int
    """those of them that have another label there"""
    train_rows: int
    """training and validation rows that are test rows as well"""
    dropped: bool

    def told(self, tested: int) -> str:
        """In one line."""
        wrong = f", {self.other_label:,} of them with another label" if self.other_label else ""
        what = f"{self.test_rows:,} of {tested:,} test rows are training rows as well{wrong}"
        if self.dropped:
            return f"{what}: their {self.train_rows:,} copies are not trained on (data.duplicates = drop)"
        return f"{what}: set data.duplicates=drop to train without their {self.train_rows:,} copies"


def without_copies(
    dataset: Dataset, manifest: Manifest, drop: bool, notice: Callable[[str], None]
) -> tuple[Manifest, Duplicates]:
    """The split, without the copies if they are to be dropped, and how many there are; told if there are any."""
    used = np.concatenate([manifest.train.rows, manifest.validation.rows])
    ready = dataset.ready.values()
    mine = _Part(dataset.train, dataset.train_labels, dataset.train_sha256, [made.train for made in ready])
    others = _Part(dataset.test, dataset.test_labels, dataset.test_sha256, [made.test for made in ready])
    tested = np.arange(len(dataset.test))
    if len(manifest.test.rows) and manifest.test_rows == "train":
        others, tested = mine, manifest.test.rows
    copies, found = _copies(mine, used, others, tested)
    duplicates = replace(found, dropped=drop)
    if len(copies):
        notice(duplicates.told(len(tested)))
    if drop and len(copies):
        manifest = replace(
            manifest, train=manifest.train.without(copies), validation=manifest.validation.without(copies)
        )
    return manifest, duplicates


@dataclass(frozen=True)
class _Part:
    rows: Sequence[Any] | np.ndarray
    labels: np.ndarray
    sha256: np.ndarray | None = None
    features: Sequence[np.ndarray] = ()
    """that come with the source: they may be of more than it keeps of a row"""

    def hashes(self) -> np.ndarray:
        """A number for each row; equal rows have equal ones, and others nearly never."""
        if self.sha256 is not None:
            return np.fromiter(map(hash, self.sha256.tolist()), np.int64, len(self.rows))
        if isinstance(self.rows, np.ndarray):
            return sum((_hashes(features) for features in self.features), _hashes(self.rows))
        return np.fromiter(map(hash, map(_content, self.rows)), np.int64, len(self.rows))

    def content(self, row: int) -> Any:
        own = _content(self.rows[row]) if self.sha256 is None else self.sha256[row]
        return own, *(features[row].tobytes() for features in self.features)


def _copies(mine: _Part, used: np.ndarray, others: _Part, tested: np.ndarray) -> tuple[np.ndarray, Duplicates]:
    """Which of the rows in use are tested as well."""
    ours = mine.hashes()
    theirs = ours if others is mine else others.hashes()
    labels: dict[Any, set[int]] = {}
    of_tests: dict[Any, list[int]] = {}
    for row in tested[np.isin(theirs[tested], ours[used])].tolist():  # few: nearly all of them are duplicates
        of_tests.setdefault(others.content(row), []).append(int(others.labels[row]))
    copies = []
    for row in used[np.isin(ours[used], theirs[tested])].tolist():
        if (content := mine.content(row)) in of_tests:
            copies.append(row)
            labels.setdefault(content, set()).add(int(mine.labels[row]))
    both = [(label, labels[content]) for content, those in of_tests.items() if content in labels for label in those]
    wrong = sum(known != {label} for label, known in both)
    return np.array(copies, dtype=np.int64), Duplicates(len(both), wrong, len(copies), dropped=False)


def _content(row: Any) -> Any:
    if isinstance(row, np.ndarray):
        return row.tobytes()
    return file_sha256(row) if isinstance(row, Path) else row


def _hashes(rows: np.ndarray) -> np.ndarray:
    """The words of each row times fixed odd numbers, summed: quick, and whoever collides is compared byte by byte."""
    width = int(np.prod(rows.shape[1:])) * rows.itemsize
    words = -(-width // 8)
    factors = generator(0, "duplicates").integers(0, 2**64, size=words, dtype=np.uint64) | np.uint64(1)
    found = np.empty(len(rows), dtype=np.uint64)
    for first in range(0, len(rows), CHUNK):
        part = np.ascontiguousarray(rows[first : first + CHUNK])
        octets = part.reshape(len(part), -1).view(np.uint8)
        if width % 8:
            octets = np.pad(octets, ((0, 0), (0, 8 * words - width)))
        found[first : first + len(part)] = octets.view(np.uint64) @ factors
    return found
