"""What sources share that read files: fingerprints, lines, columns, labels and attributes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset


def file_sha256(path: Path) -> str:
    """The sha256 of a file; an unreadable one is named."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None


def known_sha256(path: Path, sha256: str, whose: str = "fedkeel") -> str:
    """The sha256 of a file that comes with a package, which must be the one it came with."""
    try:
        found = file_sha256(path)
    except FedkeelError as error:
        raise FedkeelError(f"{error}; install {whose} again") from None
    if found != sha256:
        raise FedkeelError(f"{path} is damaged: it is not the file that comes with {whose}; install {whose} again")
    return found


def digest(parts: Iterable[str | bytes | np.ndarray]) -> str:
    """One sha256 over parts; each is hashed with its length, so moving a boundary changes the result."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype.str}{part.shape}".encode())
            part = np.ascontiguousarray(part).tobytes()
        elif isinstance(part, str):
            part = part.encode()
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def read_lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a text file that say something, each with its place in the file."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FedkeelError(f"{path} is damaged: it is not text; get it again") from None
    found = [(f"line {number}", line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise FedkeelError(f"{path} is empty: get it again")
    return found


def folder_or_id(prefix: str, reference: str) -> Path | None:
    """The folder that ``prefix:reference`` names, or None where it is the id of something on the hub."""
    path = Path(reference).expanduser()
    if path.is_dir():
        return path
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", reference):
        raise FedkeelError(f"{prefix}:{reference}: there is no such folder, and it is not an id such as owner/name")
    return None


def missing_column(where: str, name: str, key: str, columns: Sequence[str]) -> FedkeelError:
    """The error for a column that is not there: names those that are, and the key to set."""
    near = get_close_matches(name, columns, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FedkeelError(f"{where} has no column {name!r}: {hint}its columns are {', '.join(columns)}; set data.{key}")


def index_labels(values: Sequence[Any] | np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as integers, and the class names: the distinct values in sorted order (numbers sort as numbers)."""
    distinct, labels = np.unique(np.asarray(values), return_inverse=True)
    if distinct.dtype.kind not in "biuU":
        raise FedkeelError(f"{where}: labels are {distinct.dtype}; expected whole numbers or strings")
    return labels.astype(np.int64), tuple(str(value) for value in distinct)


def with_attribute(dataset: Dataset, train: Any, test: Any, where: str) -> Dataset:
    """The dataset with an attribute per row, from its values; ``train`` or ``test`` is None where there are none."""
    if train is None:
        return dataset
    parts = [np.asarray(train)] + ([] if test is None else [np.asarray(test)])
    values, names = index_labels(np.concatenate(parts), where)
    return replace(
        dataset,
        train_attribute=values[: len(parts[0])],
        test_attribute=None if test is None else values[len(parts[0]) :],
        attribute_names=names,
    )
