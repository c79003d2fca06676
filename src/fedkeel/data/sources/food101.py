"""Food-101 (Bossard et al., ECCV 2014) as it is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import read_lines
from fedkeel.data.listed import dataset_of, must_find, read_list
from fedkeel.data.sources.base import Source, register


@register({"food101:FOLDER": "Food-101 as downloaded: images/ and meta/ with classes.txt, train.txt and test.txt"})
class Food101(Source):
    marks: ClassVar[tuple[str, ...]] = ("meta/train.txt",)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The official split: 750 images of each of 101 dishes to train on, 250 to test."""
        meta = must_find(self, *self.marks).parent
        images = meta.parent / "images"
        names = {name: clean(name) for _, name in read_lines(meta / "classes.txt")}
        train, test = (read_list(meta / f"{part}.txt", images, _cut, "class/image") for part in ("train", "test"))
        return dataset_of(self, train, test, names, notice)


def _cut(entry: str) -> tuple[str, str]:
    dish, _ = entry.split("/")
    return f"{entry}.jpg", dish
