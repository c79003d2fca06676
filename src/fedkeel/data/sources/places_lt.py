"""Places-LT (Liu et al., CVPR 2019): the images of Places365, and the lists that make a long tail of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import ClassVar

from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import read_lines
from fedkeel.data.listed import dataset_of, must_find, names_of_numbers, numbered, read_list
from fedkeel.data.sources.base import Source, register

TRAIN, TEST = "Places_LT_train.txt", "Places_LT_test.txt"


@register({"places-lt:FOLDER": f"Places-LT: {TRAIN} and {TEST} with the folders of Places365 that they name"})
class PlacesLT(Source):
    marks: ClassVar[tuple[str, ...]] = (TRAIN,)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Both ways in which the lists are handed on: of ``data_256`` and ``val_256``, and of ``train`` and ``val``."""
        lists = must_find(self, *self.marks).parent
        _, first = read_lines(lists / TRAIN)[0]
        images = must_find(self, first.partition("/")[0]).parent
        train, test = (
            read_list(lists / part, images, numbered, "folder/.../image.jpg number") for part in (TRAIN, TEST)
        )
        return dataset_of(self, train, test, names_of_numbers(lists / TRAIN, train, _place), notice)


def _place(name: str) -> str:
    """data_256/a/apartment_building/outdoor/00000001.jpg and train/apartment_building-outdoor/00000001.jpg alike."""
    folders = PurePosixPath(name).parts[1:-1]
    words = folders[1:] if folders and len(folders[0]) == 1 else folders
    return clean(" ".join(words).replace("-", " "))
