"""CelebA as it is downloaded: aligned faces with forty attributes, each yes or no.

Liu et al., Deep Learning Face Attributes in the Wild, ICCV 2015.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from os.path import isfile
from pathlib import Path
from typing import ClassVar, Literal

from fedkeel.core.errors import FedkeelError, shortened
from fedkeel.data.dataset import Dataset
from fedkeel.data.sources.base import Source, register
from fedkeel.data.sources.csv import read_csv
from fedkeel.data.sources.table import TableFile
from fedkeel.data.tables import Table

IMAGES = "img_align_celeba"
IMAGE, PART = "image_id", "partition"
"""Columns of the lists, as their CSV versions call them."""
PARTS = {"0": "train", "1": "valid", "2": "test"}
YES, NO = "1", "-1"
OPPOSITE = {"Male": "female"}
"""What the lists have no word for."""


@register({"celeba:FOLDER": "CelebA (img_align_celeba, list_attr_celeba, list_eval_partition), one of 40 attributes"})
class Celeba(Source):
    marks: ClassVar[tuple[str, ...]] = ("list_attr_celeba.txt", "list_attr_celeba.csv")

    label_column: str = "Smiling"
    """an attribute: rows with it and without it; or several, such as Black_Hair,Blond_Hair: each row is of the one
    that it has"""
    attribute_column: str = "Male,Blond_Hair"
    """what else is known of a row, for partition.kind = spurious"""
    valid: Literal["drop", "train", "test"] = "drop"
    """rows of the official validation part: leave them out, train on them, or test on them"""

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Rows of the official parts, with the classes and attributes that were asked for."""
        listed, parts = self._list("list_attr_celeba"), self._list("list_eval_partition", PART)
        classes = [name.strip() for name in self.label_column.split(",")]
        attributes = [name.strip() for name in self.attribute_column.split(",")]
        wanted = [*((name, "label_column") for name in classes), *((name, "attribute_column") for name in attributes)]
        listed.must_have(wanted)
        columns = {"image": listed.columns[IMAGE], "split": _parts(listed, parts)}
        for name in [*classes, *attributes]:
            said = listed.says(name, (NO, YES))
            words = ("1", "0") if name in classes and len(classes) > 1 else (_words(name, True), _words(name, False))
            columns[_words(name, True)] = [words[cell == NO] for cell in said]
        reader = TableFile(
            source=self.source, root=str(self._images(columns["image"][0]).absolute()), valid=self.valid,
            label_column=",".join(_words(name, True) for name in classes),
            attribute_column=",".join(_words(name, True) for name in attributes),
        )  # fmt: skip
        return reader.of_table(Table(listed.path, columns, listed.lines), notice)

    def _images(self, first: str) -> Path:
        """The folder of the images: as the archive has it, below Img/ as the download has it, or twice as Kaggle."""
        places = [self.path / place for place in (IMAGES, f"Img/{IMAGES}", f"{IMAGES}/{IMAGES}")]
        return next((place for place in places if isfile(place / first)), places[0])

    def _list(self, name: str, *needed: str) -> Table:
        """One of the official lists, in the folder or in one of its folders, or as a CSV file as Kaggle has it."""
        places = [self.path / f"{name}.txt", *sorted(self.path.glob(f"*/{name}.txt")), self.path / f"{name}.csv"]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise FedkeelError(
                f"{self.source}: there is no {name}.txt in {self.path}: expected list_attr_celeba.txt, "
                f"list_eval_partition.txt and {IMAGES}/"
            )
        table = read_csv(path) if path.suffix == ".csv" else _read_list(path)
        absent = [column for column in (IMAGE, *needed) if column not in table.columns]
        if absent:
            raise FedkeelError(f"{path} has no column {absent[0]}: it is not CelebA's list")
        return table


def _read_list(path: Path) -> Table:
    """A list with spaces between its columns; one with names has their number of rows above them."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FedkeelError(f"{path} is no text: it is not the official list, or damaged; get it again") from None
    names, skipped = [PART], 0
    if len(lines) > 1 and (said := lines[0].strip()).isdigit():
        names, skipped = lines[1].split(), 2
        if said != str(len(lines) - 2):
            raise FedkeelError(
                f"{path} lists {len(lines) - 2} images, and its first line says {shortened(said)}: get it again"
            )
    rows = [list(map(sys.intern, line.split())) for line in lines[skipped:]]
    odd = next((row for row, cells in enumerate(rows) if len(cells) != len(names) + 1), None)
    if odd is not None or not rows:
        where = f"line {(odd or 0) + skipped + 1} has {len(rows[odd or 0]) if rows else 0} fields"
        raise FedkeelError(f"{path} {where}: expected an image and {len(names)} more; get it again")
    columns = dict(zip([IMAGE, *names], map(list, zip(*rows, strict=True)), strict=True))
    return Table(path, columns, [row + skipped + 1 for row in range(len(rows))])


def _parts(listed: Table, parts: Table) -> list[str]:
    """The part of each image: the two lists name the same ones."""
    part = dict(zip(parts.columns[IMAGE], parts.says(PART, tuple(PARTS)), strict=True))
    images = listed.columns[IMAGE]
    odd = sorted(part.keys() ^ {*images})
    if odd:
        raise FedkeelError(
            f"{parts.path} and {listed.path} do not list the same images ({len(odd):,} are in one only, such as "
            f"{odd[0]}): get both from one place"
        )
    return [PARTS[part[image]] for image in images]


def _words(name: str, holds: bool) -> str:
    """What the attribute says, in words: blond hair, not blond hair."""
    words = name.replace("_", " ").lower()
    return words if holds else OPPOSITE.get(name, f"not {words}")
