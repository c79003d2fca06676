"""A table in memory: its columns by name, which of its rows are read, and the dataset that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset, Kind, with_superclass_column
from fedkeel.data.files import index_labels, missing_column
from fedkeel.data.sources.base import Columns, Empty

SHOWN = 5
"""Lines that are named, of those with empty cells."""
Notice = Callable[[str], None]


class Table(NamedTuple):
    """Columns by name, and the line of the file on which each row starts."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]
    reading: tuple[str, ...] = ()
    """how it was read where that is not the usual way: part of the fingerprint"""

    def several(self, text: str) -> list[str]:
        """The columns that a setting names: one, or several with commas between them."""
        return [text] if text in self.columns else [name.strip() for name in text.split(",")]

    def must_have(self, columns: Iterable[tuple[str, str]]) -> None:
        """Make sure that there are these columns, each with the setting that names it."""
        for name, key in columns:
            if name not in self.columns:
                raise missing_column(str(self.path), name, key, list(self.columns))

    def used(self, data: Columns, must: Sequence[str], may: Sequence[str]) -> list[str]:
        """The columns that these settings name: those that must be there, and others that are or that the user named.

        Those of the class, the client and what else is known of a row are among the others.
        """
        must, may = (*must, "label_column"), ("client_column", "attribute_column", "superclass_column", *may)
        named = [(name, key) for key in (*must, *may) for name in self.several(getattr(data, key))]
        used = [(name, key) for name, key in named if name in self.columns or key in must or data.chosen(key)]
        self.must_have(used)
        return list(dict.fromkeys(name for name, _ in used))

    def only(self, rows: Sequence[int], *why: str) -> Table:
        """The table of these rows."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return Table(self.path, columns, [self.lines[row] for row in rows], (*self.reading, *why))

    def whole(self, names: Sequence[str], empty: Empty, notice: Notice) -> Table:
        """The table without rows that have an empty cell in these columns, if asked for; else they are told."""
        blank = {name: [k for k, value in enumerate(self.columns[name]) if not value.strip()] for name in names}
        rows = sorted({row for found in blank.values() for row in found})
        if not rows:
            return self
        lines = [str(self.lines[row]) for row in rows]
        where = ", ".join(f"{len(found):,} in column {name!r}" for name, found in blank.items() if found)
        first = ", ".join(lines[:SHOWN]) + (", ..." if len(lines) > SHOWN else "")
        what = f"{self.path}: {len(rows):,} of {len(self.lines):,} rows have empty cells ({where}; line {first})"
        if empty == "error":
            raise FedkeelError(f"{what}: fill them in, or leave these rows out with data.empty=drop")
        if len(rows) == len(self.lines):
            raise FedkeelError(f"{what}: no row is left")
        notice(f"{what}: left out")
        left_out = set(rows)
        return self.only([row for row in range(len(self.lines)) if row not in left_out], "without", *lines)

    def says(self, name: str, known: Sequence[str]) -> list[str]:
        """A column that has no other values than these."""
        for value, line in zip(self.columns[name], self.lines, strict=True):
            if value not in known:
                expected = f"{', '.join(known[:-1])} or {known[-1] or 'nothing'}"
                raise FedkeelError(f"{self.path} line {line}: {name} is {value!r}; expected {expected}")
        return self.columns[name]

    def of_one_class(self, text: str, notice: Notice) -> Table:
        """The table with a column ``text`` of classes, where ``text`` may name several columns of ones and zeros.

        Then the class of a row is the column that has its one; rows with none, or with several, are left out.
        """
        names = self.several(text)
        if len(names) == 1:
            return self
        ones = zip(*([_is_one(cell) for cell in self.says(name, ONES_AND_ZEROS)] for name in names), strict=True)
        found = [[name for name, one in zip(names, row, strict=True) if one] for row in ones]
        kept = [row for row, mine in enumerate(found) if len(mine) == 1]
        if len(kept) < len(found):
            which = f"{len(found) - len(kept):,} of {len(found):,} rows have none or several of {', '.join(names)}"
            if not kept:
                raise FedkeelError(f"{self.path}: {which}: no row is left")
            notice(f"{self.path}: {which}: left out")
        table = self.only(kept)
        return table._replace(columns={**table.columns, text: [found[row][0] for row in kept]})


ONES_AND_ZEROS = ("0", "0.0", "1", "1.0")


def _is_one(cell: str) -> bool:
    return cell.startswith("1")


def labelled(
    data: Columns, table: Table, train: np.ndarray, kind: Kind, rows: Sequence[Any], fingerprint: str, encoder: str
) -> Dataset:
    """These rows, those of ``train`` to train on, with all that the table says of them."""
    columns = table.columns
    labels, class_names = index_labels(columns[data.label_column], str(table.path))
    clients = columns.get(data.client_column)
    dataset = Dataset(
        name=data.source,
        kind=kind,
        train=[row for row, here in zip(rows, train, strict=True) if here],
        train_labels=labels[train],
        test=[row for row, here in zip(rows, train, strict=True) if not here],
        test_labels=labels[~train],
        class_names=class_names,
        fingerprint=fingerprint,
        encoder=encoder,
        train_client=None if clients is None else np.array(clients)[train],
        test_client=None if clients is None else np.array(clients)[~train],
    )
    superclass = columns.get(data.superclass_column)
    if superclass is not None:
        where = f"{table.path} column {data.superclass_column!r}"
        dataset = with_superclass_column(dataset, labels, superclass, where)
    attributes = table.several(data.attribute_column)
    twice = {*attributes} & {*table.several(data.label_column)}
    if twice and data.chosen("attribute_column"):
        raise FedkeelError(
            f"{data.source}: data.attribute_column names {min(twice)!r}, which is the label: all rows of a class would "
            "have the same attribute; name something else that is known of a row"
        )
    if twice or not all(name in columns for name in attributes):
        return dataset
    return with_attributes(dataset, [columns[name] for name in attributes], train)


def with_attributes(dataset: Dataset, columns: Sequence[Sequence[str]], train: np.ndarray) -> Dataset:
    """The dataset with an attribute per row: what these columns say of it together."""
    values, index = np.unique(np.array(columns).T, axis=0, return_inverse=True)
    index = index.reshape(-1)
    return replace(
        dataset,
        train_attribute=index[train],
        test_attribute=index[~train],
        attribute_names=tuple(", ".join(value) for value in values.tolist()),
        attribute_parts=tuple(map(tuple, values.T.tolist())) if len(columns) > 1 else (),
    )
