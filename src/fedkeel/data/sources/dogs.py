"""Stanford Dogs (Khosla et al., 2011) as it is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.listed import dataset_of, listed, must_find, names_of_numbers, numbered
from fedkeel.data.mat import read_mat
from fedkeel.data.sources.base import Source, register

TRAIN, TEST = "train_list.mat", "test_list.mat"


@register({"dogs:FOLDER": f"Stanford Dogs as downloaded: Images/, {TRAIN} and {TEST}"})
class Dogs(Source):
    marks: ClassVar[tuple[str, ...]] = (TRAIN, f"lists/{TRAIN}")

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """The official split of 120 breeds; a class is called after its folder, such as n02085620-Chihuahua."""
        lists = must_find(self, *self.marks).parent
        images = must_find(self, "Images", "images")
        train, test = (
            listed(lists / part, _entries(lists / part), images, numbered, "a path and a number")
            for part in (TRAIN, TEST)
        )
        names = names_of_numbers(lists / TRAIN, train, lambda name: clean(PurePosixPath(name).parent.name))
        return dataset_of(self, train, test, names, notice)


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Each image and the number of its class, as a line of a text file would have them."""
    files, labels = (np.asarray(value).ravel() for value in read_mat(path, ("file_list", "labels")))
    if len(files) != len(labels) or not len(files):
        raise FedkeelError(f"{path} has {len(files)} files and {len(labels)} labels: expected as many; get it again")
    yield from ((f"row {row}", f"{name} {label}") for row, (name, label) in enumerate(zip(files, labels, strict=True)))
