"""A CSV file of texts."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset, with_superclass_column
from fedkeel.data.files import digest, file_sha256, index_labels, missing_column, with_attribute
from fedkeel.data.sources.base import AUTO, Columns, Empty, register

LONGEST_TEXT = 1 << 24
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Those that are looked for."""
MARKS = {
    codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""What a file begins with that says its encoding; the mark of UTF-32 begins with that of UTF-16."""
LOOKED_AT = 100
"""Rows by which a separator is judged."""
SHOWN = 5
"""Lines that are named, of those with empty cells."""


@register({"csv:FILE": "columns text, label and optionally client, attribute, superclass and split (train or test)"})
class Csv(Columns):
    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Texts and labels from a CSV file, with clients and a train/test split where it has such columns."""
        path = self.path
        table = read_csv(path, self.separator, self.encoding)
        table = table.whole(self._used(table), self.empty, notice)
        texts = table.columns[self.text_column]
        labels, class_names = index_labels(table.columns[self.label_column], str(path))
        clients, attribute, superclass = (
            table.columns.get(name) for name in (self.client_column, self.attribute_column, self.superclass_column)
        )
        train = np.ones(len(texts), dtype=bool)
        if "split" in table.columns:
            for row, (value, line) in enumerate(zip(table.columns["split"], table.lines, strict=True)):
                if value not in ("train", "test"):
                    raise FedkeelError(f"{path} line {line}: split is {value!r}; expected train or test")
                train[row] = value == "train"
        dataset = Dataset(
            name=self.source,
            kind="texts",
            train=[text for text, here in zip(texts, train, strict=True) if here],
            train_labels=labels[train],
            test=[text for text, here in zip(texts, train, strict=True) if not here],
            test_labels=labels[~train],
            class_names=class_names,
            fingerprint=digest([file_sha256(path), self.text_column, self.label_column, *table.reading]),
            encoder="minilm",
            train_client=None if clients is None else np.array(clients)[train],
            test_client=None if clients is None else np.array(clients)[~train],
        )
        if superclass is not None:
            dataset = with_superclass_column(dataset, labels, superclass, f"{path} column {self.superclass_column!r}")
        if attribute is None:
            return dataset
        values = np.array(attribute)
        return with_attribute(dataset, values[train], values[~train], f"{path} column {self.attribute_column!r}")

    def _used(self, table: Table) -> list[str]:
        """The columns that are read: those that must be there, and others that are or that the user named."""
        must = ("text_column", "label_column")
        keys = (*must, "client_column", "attribute_column", "superclass_column")
        named = [(getattr(self, key), key) for key in keys]
        used = [(name, key) for name, key in named if name in table.columns or key in must or self.chosen(key)]
        table.must_have(used)
        return [name for name, _ in used] + (["split"] if "split" in table.columns else [])


class Table(NamedTuple):
    """A CSV file: its columns by name, and the line on which each row starts."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]
    reading: tuple[str, ...] = ()
    """how it was read where that is not the usual way: part of the fingerprint"""

    def must_have(self, columns: Iterable[tuple[str, str]]) -> None:
        """Make sure that there are these columns, each with the setting that names it."""
        for name, key in columns:
            if name not in self.columns:
                raise missing_column(str(self.path), name, key, list(self.columns))

    def whole(self, names: Sequence[str], empty: Empty, notice: Callable[[str], None]) -> Table:
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
        kept = [row for row in range(len(self.lines)) if row not in left_out]
        columns = {name: [values[row] for row in kept] for name, values in self.columns.items()}
        return Table(self.path, columns, [self.lines[row] for row in kept], (*self.reading, "without", *lines))


def read_csv(path: Path, separator: str = AUTO, encoding: str = AUTO) -> Table:
    """Read a CSV file whose first line names the columns; rows of another width are named."""
    csv.field_size_limit(LONGEST_TEXT)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        coded = _encoding(path) if encoding == AUTO else encoding
        if coded == "utf-8":
            coded = "utf-8-sig"  # which takes a mark at the start, or none
        cut = _separator(path, coded) if separator == AUTO else separator
        with path.open(encoding=coded, newline="") as file:
            reader = csv.reader(file, delimiter=cut, strict=True)
            header = next(reader, [])
            start = reader.line_num + 1
            for row in reader:
                if row:  # an empty line is no row
                    rows.append(row)
                    lines.append(start)
                start = reader.line_num + 1
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeError as error:
        raise _not_in(path, coded, error) from None
    except csv.Error as error:
        raise FedkeelError(f"{path} line {reader.line_num}: {error}; expected CSV with quoted texts") from None
    if not rows:
        raise FedkeelError(f"{path} has no rows: expected a line with column names and one line per row")
    if len(set(header)) < len(header):
        raise FedkeelError(f"{path} names a column twice ({', '.join(header)}): rename one")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise FedkeelError(
                f"{path} line {line} has {len(row)} fields, the first line has {len(header)}: quote texts with "
                f"{SEPARATORS.get(cut, repr(cut))}, or set data.separator"
            )
    usual = cut == "," and coded == "utf-8-sig"
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    return Table(path, columns, lines, () if usual else (cut, coded))


def _encoding(path: Path) -> str:
    """UTF-8, unless the first bytes say otherwise."""
    with path.open("rb") as file:
        start = file.read(4)
    marked = next((name for mark, name in MARKS.items() if start.startswith(mark)), None)
    if marked is None and b"\0" in start:
        likely = "utf-16-be" if start.startswith(b"\0") else "utf-16-le"
        raise FedkeelError(
            f"{path} begins with NUL bytes and is no UTF-8: set data.encoding={likely}, or save it as UTF-8"
        )
    return marked or "utf-8"


def _separator(path: Path, encoding: str) -> str:
    """What cuts the first line into columns; where several could, the one that cuts most of the next lines alike."""
    with path.open(encoding=encoding, newline="") as file:
        first = file.readline(LONGEST_TEXT)
    able = [mark for mark in SEPARATORS if any(len(row) > 1 for row in _records([first], mark))]
    if len(able) < 2:
        return able[0] if able else ","

    def alike(mark: str) -> int:
        with path.open(encoding=encoding, newline="") as file:
            header, *rows = _records(file, mark)
        return sum(len(row) == len(header) for row in rows)

    return max(able, key=alike)


def _records(lines: Iterable[str], separator: str) -> list[list[str]]:
    """The first rows, as far as they can be read."""
    found: list[list[str]] = []
    with suppress(csv.Error):
        found.extend(islice(csv.reader(lines, delimiter=separator, strict=True), LOOKED_AT))
    return found


def _not_in(path: Path, encoding: str, error: UnicodeError) -> FedkeelError:
    """The error for a file in another encoding: it names the line, which a decoder in the midst of a file cannot."""
    told = encoding.removesuffix("-sig").upper()
    other = "set data.encoding, e.g. cp1252 (Windows in western Europe), latin-1 or gb18030, or save it as UTF-8"
    try:
        data = path.read_bytes()
        data.decode(encoding)
    except UnicodeDecodeError as bad:
        line = data.count(b"\n", 0, bad.start) + 1
        return FedkeelError(f"{path} line {line} is not {told} (byte 0x{data[bad.start]:02x}): {other}")
    except UnicodeError as bad:
        error = bad
    return FedkeelError(f"{path} is not {told} ({error}): {other}")
