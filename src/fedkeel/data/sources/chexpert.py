"""CheXpert as it is downloaded: chest radiographs with fourteen findings, of which many are uncertain or not mentioned.

Irvin et al., CheXpert: A Large Chest Radiograph Dataset with Uncertainty Labels and Expert Comparison, AAAI 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.sources.base import Source, register
from fedkeel.data.sources.csv import read_csv
from fedkeel.data.sources.table import TableFile
from fedkeel.data.tables import Table

LISTS = {"train.csv": "train", "valid.csv": "test"}
"""The official lists, and what their rows are for."""
IMAGE, SPLIT = "Path", "split"
POSITIVE, NEGATIVE, UNCERTAIN, EMPTY = "1.0", "0.0", "-1.0", ""
Rule = Literal["drop", "zeros", "ones"]
UNKNOWN = ("", "Unknown")
"""What an attribute says where nobody knows."""


@register({"chexpert:FOLDER": "CheXpert (train.csv, valid.csv), two findings or one, with the patient's sex"})
class Chexpert(Source):
    marks: ClassVar[tuple[str, ...]] = ("train.csv",)

    label_column: str = "Edema,No Finding"
    """two or more findings: each row is of the one that it has, rows with none or several are left out; or one
    finding: rows with it and without it"""
    attribute_column: str = "Sex"
    """what else is known of a row, for partition.kind = spurious"""
    uncertain: Rule = "drop"
    """labels that are uncertain (-1): leave the row out, read them as 0, or as 1"""
    empty: Rule = "zeros"
    """labels that are empty (the finding is not mentioned): leave the row out, read them as 0, or as 1"""

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Training rows from train.csv, test rows from valid.csv."""
        home = self._home()
        findings = [name.strip() for name in self.label_column.split(",")]
        columns: dict[str, list[str]] = {}
        for name, part in LISTS.items():
            read = self._known(read_csv(home / name), findings, notice)
            columns.setdefault(SPLIT, []).extend([part] * len(read.lines))
            for column in (IMAGE, self.attribute_column, *findings):
                columns.setdefault(column, []).extend(read.columns[column])
        columns[IMAGE] = [_below(path) for path in columns[IMAGE]]
        if len(findings) == 1:
            columns[findings[0]] = [
                findings[0] if cell == POSITIVE else f"no {findings[0]}" for cell in columns[findings[0]]
            ]
        table = Table(home, columns, list(range(len(columns[SPLIT]))))
        reader = TableFile(
            source=self.source, root=str(home.absolute()), image_column=IMAGE, label_column=self.label_column,
            attribute_column=self.attribute_column,
        )  # fmt: skip
        return reader.of_table(table, notice)

    def _home(self) -> Path:
        """The folder of the lists: that which was named, or the only one in it."""
        found = [place for place in (self.path, *sorted(self.path.glob("*"))) if (place / "train.csv").is_file()]
        if not found:
            raise FedkeelError(
                f"{self.source}: there is no train.csv in {self.path} or in a folder there: expected train.csv, "
                "valid.csv, train/ and valid/ as the archive has them"
            )
        if len(found) > 1 and found[0] != self.path:
            names = ", ".join(place.name for place in found)
            raise FedkeelError(f"{self.source} holds several folders with a train.csv ({names}): name one of them")
        return found[0]

    def _known(self, table: Table, findings: list[str], notice: Callable[[str], None]) -> Table:
        """The rows whose findings and attribute are known, or are by the rules, as ones and zeros."""
        if IMAGE not in table.columns:
            raise FedkeelError(f"{table.path} has no column {IMAGE}: it is not CheXpert's list")
        table.must_have([*((name, "label_column") for name in findings), (self.attribute_column, "attribute_column")])
        meanings = {POSITIVE: POSITIVE, NEGATIVE: NEGATIVE, UNCERTAIN: self.uncertain, EMPTY: self.empty}
        meanings = {cell: {"ones": POSITIVE, "zeros": NEGATIVE}.get(rule, rule) for cell, rule in meanings.items()}
        for finding in findings:
            said = table.says(finding, tuple(meanings))
            table = table._replace(columns={**table.columns, finding: [meanings[cell] for cell in said]})
        unclear = {row for finding in findings for row, cell in enumerate(table.columns[finding]) if cell == "drop"}
        strange = {row for row, cell in enumerate(table.columns[self.attribute_column]) if cell in UNKNOWN} - unclear
        if unclear or strange:
            notice(
                f"{table.path}: {len(unclear) + len(strange):,} of {len(table.lines):,} rows left out: "
                f"{len(unclear):,} with uncertain or empty labels, {len(strange):,} of unknown {self.attribute_column}"
            )
        return table.only([row for row in range(len(table.lines)) if row not in unclear | strange])


def _below(path: str) -> str:
    """A path without the name of the dataset's own folder, which it begins with."""
    first, _, rest = path.partition("/")
    return path if first in ("train", "valid", "test") else rest
