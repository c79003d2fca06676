"""Describable Textures (Cimpoi et al., CVPR 2014) as it is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.listed import dataset_of, joined, must_find, read_list
from fedkeel.data.sources.base import Source, register


@register(
    {"dtd:FOLDER": "Describable Textures as downloaded: images/ and labels/ with train1.txt, val1.txt, test1.txt"}
)
class Dtd(Source):
    marks: ClassVar[tuple[str, ...]] = ("labels/train1.txt",)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The first of the ten official splits, its training and validation images to train on."""
        labels = must_find(self, *self.marks).parent
        images = labels.parent / "images"
        train, held, test = (
            read_list(labels / f"{part}1.txt", images, _cut, "texture/image.jpg") for part in ("train", "val", "test")
        )
        train = joined(train, held)
        names = {name: clean(name) for name in sorted({*train.classes, *test.classes})}
        return dataset_of(self, train, test, names, notice)


def _cut(entry: str) -> tuple[str, str]:
    texture, _ = entry.split("/")
    return entry, texture
