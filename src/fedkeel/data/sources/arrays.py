"""Rows that Python holds: nothing of them is written down but a fingerprint, by which a configuration names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.data.sources.base import register
from fedkeel.data.sources.npz import NPZ_ARRAYS, Npz

PREFIX = "arrays:"
WHERE = "data given from Python:"
HELD: WeakSet[Arrays] = WeakSet()
"""What somebody holds at present."""


class Arrays:
    """Labelled rows for ``data=`` of a command; ``(x, y)`` and ``(x, y, client)`` are short for it.

    ``x`` is numbers (rows, features), images (rows, height, width, 1 or 3) or a list of texts; ``y`` holds whole
    numbers or strings, ``client`` whose row it is. Without ``x_test`` and ``y_test`` a share of the rows is held out,
    as from every source. ``class_names`` and the other arrays are those of an npz file.
    """

    def __init__(self, x: Any, y: Any, client: Any = None, **others: Any) -> None:
        given = {"x": x, "y": y, "client": client, **others}
        arrays = {name: _as_array(name, value) for name, value in given.items() if value is not None}
        dataset = InMemory(source=f"{PREFIX}new").dataset_of(arrays, WHERE, "")
        fingerprint = _fingerprint(dataset)
        self.source = f"{PREFIX}{fingerprint[:16]}"
        """What a configuration calls these rows."""
        self.dataset = replace(dataset, name=self.source, fingerprint=fingerprint)
        HELD.add(self)

    @classmethod
    def of(cls, data: Any) -> Arrays:
        """What ``data=`` of a command says."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, tuple) or len(data) not in (2, 3):
            got = f"{len(data)} values" if isinstance(data, tuple) else type(data).__name__
            raise FedkeelError(
                f"data is {got}: expected (x, y), (x, y, client), fedkeel.Arrays(x, y, ...), or the name or settings "
                "of a source"
            )
        return cls(*data)

    @property
    def named(self) -> bool:
        """Whether the rows say whose they are."""
        return self.dataset.train_client is not None


@register({f"{PREFIX}FINGERPRINT": "rows that Python holds: fedkeel.run(data=(x, y, client))"})
class InMemory(Npz):
    by_content: ClassVar[bool] = True

    def read(self, notice: Callable[[str], None]) -> Dataset:
        held = [arrays.dataset for arrays in HELD if arrays.source == self.source]
        if not held:
            raise FedkeelError(
                f"data.source = {self.source!r}: these rows were given from Python and are not on disk; give the same "
                "again there, with data=(x, y, client)"
            )
        same = next((dataset for dataset in held if _fingerprint(dataset) == dataset.fingerprint), None)
        if same is None:
            raise FedkeelError(f"{WHERE} the rows changed after fedkeel.Arrays was made of them: make it anew")
        return same


def _as_array(name: str, value: Any) -> np.ndarray:
    if name not in NPZ_ARRAYS:
        raise unknown(f"array in {WHERE}", name, NPZ_ARRAYS)
    texts = name in ("x", "x_test") and isinstance(value, Sequence) and any(isinstance(entry, str) for entry in value)
    try:  # as strings of NumPy's, all texts would be as long as the longest
        array = np.array(value, dtype=object) if texts else np.asarray(value)
    except ValueError:
        raise FedkeelError(f"{WHERE} array {name} is no array: its entries are not of one shape") from None
    if array.dtype == object and name not in ("x", "x_test"):
        if not all(isinstance(entry, str) for entry in array.ravel()):
            raise FedkeelError(f"{WHERE} array {name} holds Python objects: expected whole numbers or strings")
        return array.astype(str)
    return array


def _fingerprint(dataset: Dataset) -> str:
    """Of all that there is, in the form in which it is used."""
    parts: list[str | bytes | np.ndarray] = [dataset.kind, "\0".join(dataset.class_names)]
    for rows in (dataset.train, dataset.test):
        parts += [str(len(rows)), *([rows] if isinstance(rows, np.ndarray) else rows)]
    parts += [dataset.train_labels, dataset.test_labels, repr(dataset.superclasses), repr(dataset.superclass_names)]
    for column in (dataset.train_client, dataset.test_client, dataset.train_attribute, dataset.test_attribute):
        parts += [""] if column is None else [str(len(column)), "\0".join(map(str, column.tolist()))]
    return digest([*parts, "\0".join(dataset.attribute_names)])
