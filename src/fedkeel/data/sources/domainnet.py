"""DomainNet (Peng et al., ICCV 2019) as it is downloaded: six styles of images, one client each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

from fedkeel.core.errors import FedkeelError
from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import read_lines
from fedkeel.data.listed import Listed, dataset_of, joined, listed, must_find, names_of_numbers, numbered
from fedkeel.data.sources.base import Source, register

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TEN = frozenset(
    ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra")
)
"""The classes of FedBN (Li et al., ICLR 2021) and of those that follow it."""


@register(
    {"domainnet:FOLDER": "DomainNet as downloaded: clipart/ ... sketch/ with clipart_train.txt, clipart_test.txt ..."}
)
class DomainNet(Source):
    marks: ClassVar[tuple[str, ...]] = (f"{DOMAINS[0]}_train.txt",)

    classes: Literal["ten", "all"] = "ten"
    """ten: bird, feather, headphones, ice cream, teapot, tiger, whale, windmill, wine glass and zebra; all: all 345"""

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The official split of each domain; the domain is the client."""
        folder = must_find(self, *self.marks).parent
        train, test = (
            joined(*(self._images(folder, f"{domain}_{part}.txt") for domain in DOMAINS)) for part in ("train", "test")
        )
        names = names_of_numbers(folder, train, lambda name: clean(PurePosixPath(name).parent.name))
        return dataset_of(self, train, test, names, notice, client=lambda name: name.partition("/")[0])

    def _images(self, folder: Path, name: str) -> Listed:
        """Of a list the classes that are wanted: folders of others need not be there."""
        entries = read_lines(folder / name)
        if self.classes == "ten":
            entries = [(place, entry) for place, entry in entries if _wanted(entry)]
        if not entries:
            raise FedkeelError(
                f"{folder / name} names nothing of the ten classes: get it again, or set data.classes=all"
            )
        return listed(folder / name, entries, folder, numbered, "domain/class/image.jpg number")


def _wanted(entry: str) -> bool:
    """Whether an entry is of one of the ten classes; one that says nothing is kept, to be told."""
    path, _, number = entry.rpartition(" ")
    return not number.isdigit() or PurePosixPath(path).parent.name in TEN
