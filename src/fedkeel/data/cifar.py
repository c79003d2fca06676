"""What the official CIFAR files have in common, as Python's pickles and as plain bytes, wherever they were unpacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.class_names import clean
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256
from fedkeel.data.safe_pickle import read_pickle

PIXELS = 3 * 32 * 32
CIFAR10: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_HUNDRED = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(map(clean, _HUNDRED.split()))


class Batch(NamedTuple):
    images: np.ndarray
    labels: Mapping[str, np.ndarray]
    """by what the file calls them"""


Columns = Mapping[str, Sequence[str]]
"""The names of the classes by what a file calls their labels; in the order of the bytes of a binary file."""


class Layout(NamedTuple):
    """How an official archive unpacks."""

    folder: str
    train: tuple[str, ...]
    test: str
    about: tuple[str, ...]
    """files with the names of the classes"""
    read: Callable[[Path, Columns], Batch]

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, *self.about)


def unpacked(source: str, given: Path, layouts: Sequence[Layout]) -> tuple[Layout, Path]:
    """Which of the layouts a folder has, or the folder in it that an archive unpacks to, and where its files are."""
    for layout in layouts:
        for folder in (given, given / layout.folder):
            there = [name for name in layout.files if (folder / name).is_file()]
            missing = next((name for name in layout.files if name not in there), None)
            if there and missing is None:
                return layout, folder
            if there:
                raise FedkeelError(f"{folder} has no file {missing}: expected {', '.join(layout.files)}")
    wanted = " or ".join(f"{layout.folder} ({', '.join(layout.files)})" for layout in layouts)
    raise FedkeelError(f"{source}: {given} does not hold the official files as they are unpacked: expected {wanted}")


def pickled(path: Path, columns: Columns) -> Batch:
    """A batch as the python version has it: rows of ``data``, and lists of labels."""
    found = read_pickle(path)
    for key in ("data", *columns):
        if key not in found:
            raise FedkeelError(f"{path} has no entry {key}: it holds {', '.join(found) or 'nothing'}; get it again")
    data = found["data"]
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS:
        raise FedkeelError(f"{path}: data is no array of rows of {PIXELS:,} bytes; get the file again")
    for key in columns:
        labels = found[key]
        if not isinstance(labels, list) or len(labels) != len(data) or not all(type(entry) is int for entry in labels):
            raise FedkeelError(f"{path}: {key} is no list of {len(data):,} numbers, one for each row; get it again")
    return _checked(path, data, {key: np.array(found[key], dtype=object) for key in columns}, columns)


def binary(path: Path, columns: Columns) -> Batch:
    """A batch as the binary version has it: a byte for each label, then the bytes of the image."""
    row, size = len(columns) + PIXELS, path.stat().st_size
    if size % row:
        raise FedkeelError(f"{path} has {size:,} bytes, expected rows of {row:,}: it is cut off; get it again")
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, row)
    return _checked(path, rows[:, len(columns) :], {key: rows[:, at] for at, key in enumerate(columns)}, columns)


def _checked(path: Path, rows: np.ndarray, labels: Mapping[str, np.ndarray], columns: Columns) -> Batch:
    """The rows of a file, which has some, with labels that have names."""
    if not len(rows):
        raise FedkeelError(f"{path} is empty; get it again")
    for key, names in columns.items():
        wrong = [label for label in labels[key].tolist() if not 0 <= label < len(names)]
        if wrong:
            raise FedkeelError(
                f"{path} is damaged: it holds label {wrong[0]}, expected 0 to {len(names) - 1}; get it again"
            )
    images = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return Batch(images, {key: values.astype(np.int64) for key, values in labels.items()})


def names_of(path: Path, names: object) -> tuple[str, ...]:
    """The names of classes that a file lists, in words."""
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise FedkeelError(f"{path} has no list of class names; get it again")
    if len(set(names)) < len(names):
        raise FedkeelError(f"{path} names a class twice; get it again")
    return tuple(map(clean, names))


def dataset_of(name: str, layout: Layout, folder: Path, columns: Columns) -> tuple[Dataset, Batch]:
    """The rows in the files of a layout, labelled by the last column, and the training rows with all columns."""
    batches = [layout.read(folder / file, columns) for file in layout.train]
    test = layout.read(folder / layout.test, columns)
    if len(batches) > 1:  # then the test file is as long as each of the others
        most = max(len(batch.images) for batch in batches)
        for file, batch in zip((*layout.train, layout.test), (*batches, test), strict=True):
            if len(batch.images) != most:
                raise FedkeelError(f"{folder / file} has {len(batch.images):,} rows, others {most:,}: get it again")
    train = Batch(
        np.concatenate([batch.images for batch in batches]),
        {key: np.concatenate([batch.labels[key] for batch in batches]) for key in columns},
    )
    key = list(columns)[-1]
    dataset = Dataset(
        name=name,
        kind="images",
        train=train.images,
        train_labels=train.labels[key],
        test=test.images,
        test_labels=test.labels[key],
        class_names=tuple(columns[key]),
        fingerprint=digest(file_sha256(folder / file) for file in layout.files),
        encoder="efficientnet-lite0",
    )
    return dataset, train
