"""FGVC-Aircraft (Maji et al., arXiv 1306.5151) as it is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import read_lines
from fedkeel.data.listed import dataset_of, must_find, read_list
from fedkeel.data.sources.base import Source, register

TRAIN, TEST = "images_variant_trainval.txt", "images_variant_test.txt"


@register(
    {"aircraft:FOLDER": "FGVC-Aircraft as downloaded: data/ with images/, variants.txt and the lists of the variants"}
)
class Aircraft(Source):
    marks: ClassVar[tuple[str, ...]] = (f"data/{TRAIN}", TRAIN)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The official split, by the 100 variants."""
        folder = must_find(self, *self.marks).parent
        names = {name: clean(name) for _, name in read_lines(folder / "variants.txt")}
        train, test = (
            read_list(folder / part, folder / "images", _cut, "an image's number and its variant")
            for part in (TRAIN, TEST)
        )
        return dataset_of(self, train, test, names, notice)


def _cut(entry: str) -> tuple[str, str]:
    image, variant = entry.split(maxsplit=1)
    return f"{image}.jpg", variant
