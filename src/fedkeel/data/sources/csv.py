"""A CSV file of texts."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256
from fedkeel.data.sources.base import AUTO, Columns, register
from fedkeel.data.tables import Table, labelled

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
SPLIT = "split"
"""The column that says which rows are for training and which for testing."""


@register({"csv:FILE": "columns text, label and optionally client, attribute, superclass and split (train or test)"})
class Csv(Columns):
    general: ClassVar[bool] = True

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Texts and labels from a CSV file, with clients and a train/test split where it has such columns."""
        table = read_csv(self.path, self.separator, self.encoding)
        parted = [SPLIT] if SPLIT in table.columns else []
        table = table.whole(table.used(self, ["text_column"], []) + parted, self.empty, notice)
        table = table.of_one_class(self.label_column, notice)
        train = np.ones(len(table.lines), dtype=bool)
        if parted:
            train = np.array([value == "train" for value in table.says(SPLIT, ("train", "test"))])
        fingerprint = digest([file_sha256(self.path), self.text_column, self.label_column, *table.reading])
        return labelled(self, table, train, "texts", table.columns[self.text_column], fingerprint, "minilm")


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
