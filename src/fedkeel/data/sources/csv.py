"""A CSV file of texts."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset, with_superclass_column
from fedkeel.data.files import digest, file_sha256, index_labels, missing_column, with_attribute
from fedkeel.data.sources.base import Columns, register

LONGEST_TEXT = 1 << 24


@register({"csv:FILE": "columns text, label and optionally client, attribute, superclass and split (train or test)"})
class Csv(Columns):
    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Texts and labels from a CSV file, with clients and a train/test split where it has such columns."""
        path = self.path
        table = read_csv(path)
        texts = table.column(self.text_column, "text_column")
        labels, class_names = index_labels(table.column(self.label_column, "label_column"), str(path))
        clients = None
        if self.client_column in table.columns or self.chosen("client_column"):
            clients = np.array(table.column(self.client_column, "client_column"))
        attribute = None
        if self.attribute_column in table.columns or self.chosen("attribute_column"):
            attribute = np.array(table.column(self.attribute_column, "attribute_column"))
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
            fingerprint=digest([file_sha256(path), self.text_column, self.label_column]),
            encoder="minilm",
            train_client=None if clients is None else clients[train],
            test_client=None if clients is None else clients[~train],
        )
        if self.superclass_column in table.columns or self.chosen("superclass_column"):
            superclass = table.column(self.superclass_column, "superclass_column")
            dataset = with_superclass_column(dataset, labels, superclass, f"{path} column {self.superclass_column!r}")
        if attribute is None:
            return dataset
        return with_attribute(dataset, attribute[train], attribute[~train], f"{path} column {self.attribute_column!r}")


class Table(NamedTuple):
    """A CSV file: its columns by name, and the line on which each row starts."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def column(self, name: str, key: str) -> list[str]:
        """The values of a column, none of them empty."""
        if name not in self.columns:
            raise missing_column(str(self.path), name, key, list(self.columns))
        for value, line in zip(self.columns[name], self.lines, strict=True):
            if not value.strip():
                raise FedkeelError(f"{self.path} line {line}: column {name!r} is empty; fill it in or remove the row")
        return self.columns[name]


def read_csv(path: Path) -> Table:
    """Read a CSV file in UTF-8 whose first line names the columns; rows of another width are named."""
    csv.field_size_limit(LONGEST_TEXT)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            start = reader.line_num + 1
            for row in reader:
                if row:  # an empty line is no row
                    rows.append(row)
                    lines.append(start)
                start = reader.line_num + 1
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FedkeelError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except csv.Error as error:
        raise FedkeelError(f"{path} line {reader.line_num}: {error}; expected CSV with quoted texts") from None
    if not rows:
        raise FedkeelError(f"{path} has no rows: expected a line with column names and one line per row")
    if len(set(header)) < len(header):
        raise FedkeelError(f"{path} names a column twice ({', '.join(header)}): rename one")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise FedkeelError(
                f"{path} line {line} has {len(row)} fields, the first line has {len(header)}: quote texts with commas"
            )
    return Table(path, {name: [row[i] for row in rows] for i, name in enumerate(header)}, lines)
