"""ImageNet-LT (Liu et al., CVPR 2019): the images of ImageNet's 1,000 classes, and the lists that make a long tail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from fedkeel.core.errors import FedkeelError
from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.listed import dataset_of, find, must_find, names_of_numbers, numbered, read_lines, read_list
from fedkeel.data.sources.base import Source, register

TRAIN, TEST = "ImageNet_LT_train.txt", "ImageNet_LT_test.txt"
NAMES = ("classnames.txt", "LOC_synset_mapping.txt", "words.txt")
"""What files are called that say what WordNet ids stand for; the user's own comes first."""


@register({"imagenet-lt:FOLDER": f"ImageNet-LT: {TRAIN}, {TEST}, names of classes, train/ and val/"})
class ImageNetLT(Source):
    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The official lists; images lie where they name them, or as Kaggle's archive has them."""
        lists = must_find(self, TRAIN).parent
        images = must_find(self, "train", "ILSVRC/Data/CLS-LOC/train").parent
        train, test = (
            read_list(lists / part, images, numbered, "train/n01440764/n01440764_190.JPEG 0") for part in (TRAIN, TEST)
        )
        ids = names_of_numbers(lists / TRAIN, train, lambda name: PurePosixPath(name).parent.name)
        return dataset_of(self, train, test, dict(zip(ids, self._names(list(ids.values())), strict=True)), notice)

    def _names(self, ids: list[str]) -> list[str]:
        """The first name of each id; all of them where another id has the same, and with the id where that has all."""
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
        names = [clean(words[wnid].partition(",")[0]) for wnid in ids]
        names = [name if one else clean(words[wnid].replace(",", "")) for wnid, name, one in _alone(ids, names)]
        return [name if one else f"{name} ({wnid})" for wnid, name, one in _alone(ids, names)]


def _read_names(path: Path) -> dict[str, str]:
    """What the lines of a file say of WordNet ids: ``n01440764 tench, Tinca tinca``."""
    found = {}
    for place, line in read_lines(path):
        match = re.fullmatch(r"(n\d{8})\s+(\S.*)", line)
        if match is None:
            raise FedkeelError(f"{path} {place} is {line[:100]!r}: expected an id and a name, such as n01440764 tench")
        found[match[1]] = match[2]
    return found


def _alone(ids: list[str], names: list[str]) -> list[tuple[str, str, bool]]:
    """Each id with its name and whether nobody else has that."""
    count = Counter(names)
    return [(wnid, name, count[name] == 1) for wnid, name in zip(ids, names, strict=True)]
