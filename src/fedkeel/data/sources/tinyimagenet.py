"""TinyImageNet-200 as it is downloaded: its validation images are the test rows, as its test images have no labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.class_names import of_wordnet
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256
from fedkeel.data.sources.base import Source, register
from fedkeel.data.sources.images import image_paths

ARCHIVE = "tiny-imagenet-200"
"""The folder that it unpacks to."""
LIST, WORDS, ANNOTATIONS = "wnids.txt", "words.txt", "val_annotations.txt"


@register({"tinyimagenet:FOLDER": "110,000 photos of 64 x 64 pixels in 200 classes, from tiny-imagenet-200"})
class TinyImageNet(Source):
    marks: ClassVar[tuple[str, ...]] = (ARCHIVE, LIST)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Classes stand in the order of their wnids, and are called what words.txt says first."""
        folder = self.path if (self.path / LIST).is_file() else self.path / ARCHIVE
        if not (folder / LIST).is_file():
            raise FedkeelError(
                f"{self.source}: {self.path} holds neither {LIST} nor a folder {ARCHIVE} with it: expected the "
                f"official folder as it is unpacked (train, val, {LIST}, {WORDS})"
            )
        wnids = sorted({line[0] for line in _lines(folder / LIST, 1)})
        label = {wnid: at for at, wnid in enumerate(wnids)}
        train, test = _train(folder, label), _validation(folder, label)
        paths = [*train, *test]
        labels = np.array([*train.values(), *test.values()], dtype=np.int64)
        content = [file_sha256(path) for path in paths]
        named = (path.relative_to(folder).as_posix() for path in paths)
        return Dataset(
            name="tinyimagenet",
            kind="images",
            train=list(train),
            train_labels=labels[: len(train)],
            test=list(test),
            test_labels=labels[len(train) :],
            class_names=_names(folder / WORDS, wnids),
            fingerprint=digest([labels, *(part for pair in zip(named, content, strict=True) for part in pair)]),
            encoder="efficientnet-lite0",
            train_sha256=np.array(content[: len(train)]),
            test_sha256=np.array(content[len(train) :]),
        )


def _lines(path: Path, fields: int) -> list[list[str]]:
    """The fields of each line of a list, of which so many must be there; empty lines say nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise FedkeelError(f"cannot read {path} ({reason}): get it again from the official archive") from None
    found = [line.split("\t") for line in text.splitlines() if line.strip()]
    for number, line in enumerate(found, 1):
        if len(line) < fields:
            raise FedkeelError(f"{path} line {number}: expected {fields} fields with tabs between them; get it again")
    if not found:
        raise FedkeelError(f"{path} is empty; get it again from the official archive")
    return found


def _train(folder: Path, label: Mapping[str, int]) -> dict[Path, int]:
    """The images of train/wnid/images, and their classes."""
    train = folder / "train"
    there = {path.name for path in train.iterdir() if path.is_dir()} if train.is_dir() else set()
    for wnid in sorted(there ^ set(label)):
        said = f"has a folder {wnid}, which {LIST} does not name"
        raise FedkeelError(f"{train} " + (f"has no folder {wnid}, which {LIST} names" if wnid in label else said))
    found = {wnid: image_paths(train / wnid / "images") for wnid in label}
    for wnid, paths in found.items():
        boxes = train / wnid / f"{wnid}_boxes.txt"  # which nobody needs; it has the names of all
        there = {path.name for path in paths}
        lost = [name for name, *_ in _lines(boxes, 1) if name not in there] if boxes.is_file() else []
        if lost:
            raise FedkeelError(f"{boxes} names {lost[0]}, which is not in {train / wnid / 'images'}")
    return {path: label[wnid] for wnid, paths in found.items() for path in paths}


def _validation(folder: Path, label: Mapping[str, int]) -> dict[Path, int]:
    """The images of val/images, and their classes as val_annotations.txt has them."""
    annotations, images = folder / "val" / ANNOTATIONS, folder / "val" / "images"
    wnids = {name: wnid for name, wnid, *_ in _lines(annotations, 2)}
    there = {path.name: path for path in image_paths(images)}
    for name, wnid in wnids.items():
        if name not in there:
            raise FedkeelError(f"{annotations} names {name}, which is not in {images}")
        if wnid not in label:
            raise FedkeelError(f"{annotations} says {wnid} of {name}, which is not in {LIST}")
    unnamed = sorted(set(there) - set(wnids))
    if unnamed:
        raise FedkeelError(f"{images} holds {unnamed[0]}, of which {annotations} says nothing")
    return {there[name]: label[wnid] for name, wnid in wnids.items()}


def _names(path: Path, wnids: list[str]) -> tuple[str, ...]:
    """What the file says of these ids."""
    said = {wnid: names.strip() for wnid, names, *_ in _lines(path, 2)}
    for wnid in wnids:
        if not said.get(wnid):
            raise FedkeelError(f"{path} has no name for {wnid}; get it again from the official archive")
    return tuple(of_wordnet({wnid: said[wnid] for wnid in wnids}))
