"""ImageNet-LT (Liu et al., CVPR 2019): the images of ImageNet's 1,000 classes, and the lists that make a long tail."""

from __future__ import annotations

import re
from collections.abc import Callable
from os.path import isfile
from pathlib import Path, PurePosixPath
from typing import ClassVar

from fedkeel.core.errors import FedkeelError
from fedkeel.data.class_names import of_wordnet
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import read_lines
from fedkeel.data.listed import Cut, dataset_of, find, must_find, names_of_numbers, numbered, read_list
from fedkeel.data.sources.base import Source, register

TRAIN, TEST = "ImageNet_LT_train.txt", "ImageNet_LT_test.txt"
NAMES = ("classnames.txt", "LOC_synset_mapping.txt", "words.txt")
"""What files are called that say what WordNet ids stand for; the user's own comes first."""


@register({"imagenet-lt:FOLDER": f"ImageNet-LT: {TRAIN}, {TEST}, names of classes, train/ and val/"})
class ImageNetLT(Source):
    marks: ClassVar[tuple[str, ...]] = (TRAIN,)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The official lists; images lie where they name them, or as Kaggle's archive has them."""
        lists = must_find(self, *self.marks).parent
        images = must_find(self, "train", "ILSVRC/Data/CLS-LOC/train").parent
        train, test = (
            read_list(lists / part, images, _cut(images), "train/n01440764/n01440764_190.JPEG 0")
            for part in (TRAIN, TEST)
        )
        ids = names_of_numbers(lists / TRAIN, train, lambda name: PurePosixPath(name).parent.name)
        return dataset_of(self, train, test, dict(zip(ids, self._names(list(ids.values())), strict=True)), notice)

    def _names(self, ids: list[str]) -> list[str]:
        """What a file says of these ids."""
        path = find(self, *NAMES)
        if path is None:
            raise FedkeelError(
                f"{self.source}: classes are WordNet ids such as {ids[0]}, and no file says what they stand for: put "
                f"{NAMES[1]} (of Kaggle's ImageNet) into {self.path}, or a {NAMES[0]} with lines such as "
                "'n01440764 tench'"
            )
        words = _read_names(path)
        unknown = next((wnid for wnid in ids if wnid not in words), None)
        if unknown is not None:
            raise FedkeelError(f"{path} has no line about {unknown}: add one, such as {unknown} tench")
        return of_wordnet({wnid: words[wnid] for wnid in ids})


def _cut(images: Path) -> Cut:
    """An entry says where its image is, or where it would be: in ILSVRC's own archive validation images lie flat."""

    def cut(entry: str) -> tuple[str, str]:
        name, number = numbered(entry)
        top, *_, last = PurePosixPath(name).parts
        flat = f"{top}/{last}"
        return (flat if top == "val" and not isfile(images / name) and isfile(images / flat) else name), number

    return cut


def _read_names(path: Path) -> dict[str, str]:
    """What the lines of a file say of WordNet ids: ``n01440764 tench, Tinca tinca``."""
    found = {}
    for place, line in read_lines(path):
        match = re.fullmatch(r"(n\d{8})\s+(\S.*)", line)
        if match is None:
            raise FedkeelError(f"{path} {place} is {line[:100]!r}: expected an id and a name, such as n01440764 tench")
        found[match[1]] = match[2]
    return found
