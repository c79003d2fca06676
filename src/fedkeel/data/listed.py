"""Images that list files name: where each is, whether it is for training or testing, and what class it has."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError, shortened, unknown
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256, read_lines
from fedkeel.data.sources.base import Source

Cut = Callable[[str], tuple[str, str]]
"""From an entry to the image's place below the folder of all images and its class; ValueError if it says neither."""
MANY = 20_000
"""Images whose reading, for the fingerprint, takes long enough to be told."""


class Listed(NamedTuple):
    """The images of a list, in its order."""

    names: list[str]
    """where each is below the folder of all images"""
    paths: list[Path]
    classes: list[str]
    """as the list calls them"""


def joined(*parts: Listed) -> Listed:
    """One list after the other."""
    return Listed(*([entry for column in columns for entry in column] for columns in zip(*parts, strict=True)))


def find(source: Source, *places: str) -> Path | None:
    """The first of these places that is there: in the source's folder, or in a folder of it, as archives have one."""
    folder = source.path
    if not folder.is_dir():
        raise FedkeelError(f"{source.source}: there is no folder {folder}")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    there = (top / place for top in (folder, *inside) for place in places if os.path.exists(top / place))
    return next(there, None)


def must_find(source: Source, *places: str) -> Path:
    """The same of what must be there."""
    found = find(source, *places)
    if found is None:
        raise FedkeelError(
            f"{source.source}: neither {source.path} nor a folder in it has {' or '.join(places)}: give the folder in "
            "which the dataset was unpacked, with the names that it came with"
        )
    return found


def read_list(path: Path, images: Path, cut: Cut, expected: str) -> Listed:
    """The images of a list file, which lie below the folder ``images``."""
    return listed(path, read_lines(path), images, cut, expected)


def listed(path: Path, entries: Iterable[tuple[str, str]], images: Path, cut: Cut, expected: str) -> Listed:
    """The images that the entries of a file name, each told with its place there; all of them must exist."""
    found = Listed([], [], [])
    for place, entry in entries:
        try:
            name, label = cut(entry)
        except ValueError:
            name = label = ""
        inside = PurePosixPath(name)
        if not label or inside.is_absolute() or ".." in inside.parts:
            raise FedkeelError(f"{path} {place} is {shortened(entry, 100)!r}: expected {expected}")
        if not os.path.isfile(images / name):  # unlike Path's, it takes a name of any length
            raise FedkeelError(
                f"{path} {place} names {shortened(name, 100)}, which is not in {images}: unpack the whole dataset there"
            )
        found.names.append(name)
        found.paths.append(images / name)
        found.classes.append(label)
    return found


def numbered(entry: str) -> tuple[str, str]:
    """An entry such as ``train/n01440764/n01440764_190.JPEG 0``."""
    name, number = entry.rsplit(maxsplit=1)
    return name, str(int(number))


def names_of_numbers(where: Path, images: Listed, call: Callable[[str], str]) -> dict[str, str]:
    """What the classes of a numbered list are called, in their order: ``call`` says it of the place of each image."""
    found: dict[str, str] = {}
    for name, number in zip(map(call, images.names), images.classes, strict=True):
        if found.setdefault(number, name) != name:
            raise FedkeelError(
                f"{where}: class {number} has images of {found[number]!r} and of {name!r}: expected a number for each "
                "class; get the lists again"
            )
    names = {number: found[number] for number in sorted(found, key=int)}
    if twice := next((name for name, count in Counter(names.values()).items() if count > 1), None):
        raise FedkeelError(f"{where}: {twice!r} has several numbers: expected one for each class; get the lists again")
    return names


def dataset_of(
    source: Source,
    train: Listed,
    test: Listed,
    class_names: Mapping[str, str],
    notice: Callable[[str], None],
    client: Callable[[str], str] | None = None,
) -> Dataset:
    """Their images as rows. ``class_names`` has what to call each class of the lists, in the order of the labels.

    ``client`` says from the place of an image whose it is.
    """
    both = joined(train, test)
    if strange := next((label for label in both.classes if label not in class_names), None):
        raise unknown(f"class in {source.source}:", strange, class_names)
    for part, listed_there in (("training", {*train.classes}), ("test", {*test.classes})):
        if lost := next((name for label, name in class_names.items() if label not in listed_there), None):
            raise FedkeelError(f"{source.source}: no {part} image is listed of class {lost!r}: get the lists again")
    if len(both.paths) >= MANY:
        notice(f"{source.source}: reading {len(both.paths):,} images for their fingerprint")
    position = {label: at for at, label in enumerate(class_names)}
    labels = np.array([position[label] for label in both.classes], dtype=np.int64)
    content = np.array([file_sha256(path) for path in both.paths])
    clients = None if client is None else np.array([client(name) for name in both.names])
    end = len(train.paths)
    return Dataset(
        name=source.source,
        kind="images",
        train=train.paths,
        train_labels=labels[:end],
        test=test.paths,
        test_labels=labels[end:],
        class_names=tuple(class_names.values()),
        fingerprint=digest([str(end), *(part for pair in zip(both.names, content, strict=True) for part in pair)]),
        encoder="efficientnet-lite0",
        train_client=None if clients is None else clients[:end],
        test_client=None if clients is None else clients[end:],
        train_sha256=content[:end],
        test_sha256=content[end:],
    )
