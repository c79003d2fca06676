"""A CSV file that names images, or holds texts, and says of each what it is, whose it is and what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedkeel.core.errors import FedkeelError, shortened
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256
from fedkeel.data.sources.base import Columns, register
from fedkeel.data.sources.csv import SPLIT, read_csv
from fedkeel.data.tables import Table, labelled

SPLITS = ("train", "valid", "test")
ALSO_CALLED = {"training": "train", "val": "valid", "validation": "valid", "dev": "valid", "testing": "test"}
"""What files have in their place, in letters of any size."""


@register({"table:FILE.csv": "columns image (paths) or text, label; optionally client, attribute, superclass, split"})
class TableFile(Columns):
    general: ClassVar[bool] = True
    image_column: str = "image"
    """the column of paths of image files; a file without one holds texts"""
    root: str = ""
    """folder that these paths begin at, by default that of the CSV file; itself relative to that"""
    split_column: str = SPLIT
    """the column that says train, valid (or val, validation, dev) or test; without one, data.holdout holds rows out"""
    valid: Literal["drop", "train", "test"] = "drop"
    """rows whose split is valid: leave them out, train on them (partition.validation keeps some), or test on them"""
    empty_label: Literal["error", "zeros", "ones"] = "error"
    """of several label columns, an empty cell (the finding is not mentioned): an error, as other empty cells are, or
    read as 0, or as 1"""

    def read(self, notice: Callable[[str], None]) -> Dataset:
        return self.of_table(read_csv(self.path, self.separator, self.encoding), notice)

    def of_table(self, table: Table, notice: Callable[[str], None]) -> Dataset:
        """The rows of a table, as these settings read it; also of one that was read from elsewhere."""
        images = self.image_column in table.columns or self.chosen("image_column")
        key = "image_column" if images else "text_column"
        if not images and self.text_column not in table.columns:
            raise FedkeelError(
                f"{table.path} has neither a column {self.image_column!r} of paths nor {self.text_column!r}: its "
                f"columns are {', '.join(table.columns)}; set data.image_column or data.text_column"
            )
        used = table.used(self, [key], ["split_column"])
        table = self._filled(table).whole(used, self.empty, notice)
        table, train = self._parted(table.of_one_class(self.label_column, notice), notice)
        cells = table.columns[getattr(self, key)]
        if not images:
            return labelled(self, table, train, "texts", cells, _fingerprint(train, cells), "minilm")
        paths = self._paths(table, cells)
        content = np.array([file_sha256(path) for path in paths])
        made = labelled(self, table, train, "images", paths, _fingerprint(train, content), "efficientnet-lite0")
        return replace(made, train_sha256=content[train], test_sha256=content[~train])

    def _filled(self, table: Table) -> Table:
        """The table with findings in place of empty cells, where the user said which."""
        names = table.several(self.label_column)
        if self.empty_label == "error":
            return table
        if len(names) == 1:
            raise FedkeelError(
                f"data.empty_label = {self.empty_label!r} is for several label columns of ones and zeros, "
                f"data.label_column names {names[0]!r} alone: leave it out, or set data.empty=drop"
            )
        said = {"zeros": "0", "ones": "1"}[self.empty_label]
        filled = {name: [cell if cell.strip() else said for cell in table.columns[name]] for name in names}
        return table._replace(columns={**table.columns, **filled})

    def _parted(self, table: Table, notice: Callable[[str], None]) -> tuple[Table, np.ndarray]:
        """The rows that are used, and which of them are for training."""
        if self.split_column not in table.columns:
            return table, np.ones(len(table.lines), dtype=bool)
        split = [ALSO_CALLED.get(text, text) for text in map(_lowered, table.columns[self.split_column])]
        table = table._replace(columns={**table.columns, self.split_column: split})
        table.says(self.split_column, SPLITS)
        valid = split.count("valid")
        if valid and self.valid == "drop":
            notice(f"{table.path}: {valid:,} rows are for validation: left out (data.valid says train or test)")
            table = table.only([row for row, part in enumerate(split) if part != "valid"])
            split = table.columns[self.split_column]
        return table, np.array([part == "train" or (part == "valid" and self.valid == "train") for part in split])

    def _paths(self, table: Table, cells: Sequence[str]) -> list[Path]:
        """The images, which must be there; a name that no file system takes is not."""
        root = self.path.parent / Path(self.root).expanduser()
        paths = [_found(root, cell.strip()) for cell in cells]
        missing = [row for row, path in enumerate(paths) if not isfile(path)]
        if missing:
            hint = "" if self.chosen("root") else ", or set data.root"
            raise FedkeelError(
                f"{table.path} names {shortened(cells[missing[0]])!r}, and there is no file "
                f"{shortened(str(paths[missing[0]]))} ({len(missing):,} of {len(paths):,} images are missing): put "
                f"them there{hint}"
            )
        return paths


def _lowered(cell: str) -> str:
    return cell.strip().lower()


def _found(root: Path, cell: str) -> Path:
    """Where an image is; a table that was made on Windows has backslashes between folders."""
    plain, other = root / cell, root / cell.replace("\\", "/")
    return plain if isfile(plain) or not isfile(other) else other


def _fingerprint(train: np.ndarray, contents: Iterable[str]) -> str:
    parts = np.where(train, "train", "test").tolist()
    return digest(piece for row in zip(parts, contents, strict=True) for piece in row)
