"""What a source gives: labelled rows, before any encoder has seen them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedkeel.core.errors import FedkeelError

Kind = Literal["features", "images", "texts"]


@dataclass(frozen=True)
class Ready:
    """Features that were encoded before, and by what."""

    train: np.ndarray
    test: np.ndarray
    weights: str
    transform: str


@dataclass(frozen=True)
class Dataset:
    """Training and test rows with integer labels.

    ``train`` and ``test`` hold one entry per row: a float array (n, d) for "features", a uint8 array (n, h, w, 3)
    or a list of image paths for "images", a list of strings or an array of token ids (n, t; 0 = padding) for "texts".
    """

    name: str
    kind: Kind
    train: Sequence[Any] | np.ndarray
    train_labels: np.ndarray
    test: Sequence[Any] | np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    fingerprint: str
    """sha256 over the content of all rows: half of the feature cache's key."""
    encoder: str
    """The encoder that ``data.encoder = "auto"`` stands for."""
    train_client: np.ndarray | None = None
    test_client: np.ndarray | None = None
    """The user's own client name per row, where the source has one (arrays of str)."""
    train_attribute: np.ndarray | None = None
    test_attribute: np.ndarray | None = None
    """What else is known of each row, such as a patient's sex, as positions in ``attribute_names``."""
    attribute_names: tuple[str, ...] = ()
    attribute_parts: tuple[tuple[str, ...], ...] = ()
    """Where several columns make the attribute: of each column, what it says in each of the attribute's values."""
    superclasses: tuple[int, ...] | None = None
    """The superclass of every class, as a position in ``superclass_names``; -1 where a class has no rows to say so."""
    superclass_names: tuple[str, ...] = ()
    train_sha256: np.ndarray | None = None
    test_sha256: np.ndarray | None = None
    """Of each row, where rows are files that were hashed for the fingerprint."""
    ready: dict[str, Ready] = field(default_factory=dict)
    """Features that come with the source, by encoder name."""

    @property
    def classes(self) -> int:
        return len(self.class_names)


def named(class_names: Sequence[str]) -> bool:
    """Whether the names of the classes say something; mere numbers do not."""
    return not all(re.fullmatch(r"\s*[+-]?\d+\s*", name) for name in class_names)


def with_superclasses(dataset: Dataset, names: Sequence[str | None]) -> Dataset:
    """The dataset with the superclass of every class, by name; None for a class of which nothing is known."""
    distinct = sorted({name for name in names if name is not None})
    position = {name: at for at, name in enumerate(distinct)}
    known = tuple(-1 if name is None else position[name] for name in names)
    return replace(dataset, superclasses=known, superclass_names=tuple(distinct))


def with_superclass_column(dataset: Dataset, labels: np.ndarray, values: Sequence[str], where: str) -> Dataset:
    """The dataset with superclasses as rows with these labels tell them; a class lies in exactly one."""
    names: list[str | None] = [None] * dataset.classes
    for label, name in sorted(set(zip(labels.tolist(), values, strict=True))):
        other = names[label]
        if other is not None:
            raise FedkeelError(
                f"{where}: class {dataset.class_names[label]!r} has rows in the superclasses {other!r} and {name!r}; "
                "expected one for each class: mend the rows, or rename the column if it means something else"
            )
        names[label] = name
    return with_superclasses(dataset, names)
