"""Oxford-IIIT Pet (Parkhi et al., CVPR 2012) as it is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.listed import dataset_of, must_find, names_of_numbers, read_list
from fedkeel.data.sources.base import Source, register


@register({"pets:FOLDER": "Oxford-IIIT Pet as downloaded: images/ and annotations/ with trainval.txt and test.txt"})
class Pets(Source):
    marks: ClassVar[tuple[str, ...]] = ("annotations/trainval.txt",)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The official split of 37 breeds; a class is called after its images, such as Abyssinian_100.jpg."""
        lists = must_find(self, *self.marks).parent
        images = must_find(self, "images")
        train, test = (
            read_list(lists / f"{part}.txt", images, _cut, "image class species breed, such as Abyssinian_100 1 1 1")
            for part in ("trainval", "test")
        )
        names = names_of_numbers(lists / "trainval.txt", train, lambda name: clean(name.rpartition("_")[0]))
        return dataset_of(self, train, test, names, notice)


def _cut(entry: str) -> tuple[str, str]:
    image, number, _, _ = entry.split()
    return f"{image}.jpg", str(int(number))
