"""Files of published datasets, as somebody may have downloaded them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import small_cifar
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fuzz.given import sound_rows
from fuzz.mutations import Make, changed, lines_changed, npy_bytes, one_of, pickle_bytes
from fuzz.target import Target, target


def one_file_changed(folder: Path, source: str, names: tuple[str, ...], way: Callable[[bytes], Make]) -> Target:
    """A dataset of which one file is changed: its name, a zero, and what it holds."""
    wholes = {name: (folder / name).read_bytes() for name in names}
    ways = {name: way(whole) for name, whole in wholes.items()}

    def make(draw: Random) -> bytes:
        name = draw.choice(names)
        return name.encode() + b"\0" + ways[name](draw)

    def check(data: bytes) -> None:
        name, _, content = data.partition(b"\0")
        for other, whole in wholes.items():
            (folder / other).write_bytes(content if other.encode() == name else whole)
        sound_rows(load(Source.of(source=source), notice=lambda text: None))

    return Target(make, check)


@target
def cifar_pickle(home: Path) -> Target:
    folder = small_cifar.cifar_100(home, train=8, test=4)
    return one_file_changed(folder, f"cifar100:{folder}", ("train", "test", "meta"), pickle_bytes)


@target
def cifar_pickle_of_protocol_0(home: Path) -> Target:
    folder = small_cifar.cifar_10(home, each=10)
    return one_file_changed(folder, f"cifar10:{folder}", ("batches.meta",), pickle_bytes)


@target
def cifar_bytes(home: Path) -> Target:
    folder = small_cifar.cifar_100(home, "binary", train=8, test=4)
    names = ("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt")
    return one_file_changed(folder, f"cifar100:{folder}", names, changed)


@target
def npy(home: Path) -> Target:
    folder = small_cifar.cifar_c(home, each=2)
    return one_file_changed(folder, f"cifar10-c:{folder}", ("labels.npy", "fog.npy"), npy_bytes)


@target
def tinyimagenet(home: Path) -> Target:
    folder = small_cifar.tiny_imagenet(home, train=1, test=1)
    names = ("wnids.txt", "words.txt", "val/val_annotations.txt")
    way = lambda whole: one_of(changed(whole), lines_changed(whole))  # noqa: E731
    return one_file_changed(folder, f"tinyimagenet:{folder}", names, way)
