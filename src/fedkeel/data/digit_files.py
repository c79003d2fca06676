"""Files that digits are handed on in, read as they are: pairs of images and labels, to train with and to test."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedkeel.core.errors import FedkeelError
from fedkeel.core.memory import available
from fedkeel.data.mat import read_mat

SIDE = 32
"""Of the images that digits are made to."""


class Digits(NamedTuple):
    images: np.ndarray
    labels: np.ndarray


Parts = tuple[Digits, Digits]
"""To train with and to test."""


def of_variables(*wanted: Sequence[str]) -> Callable[[Path], Parts]:
    """A reader of a MATLAB file with four variables: images and labels to train with, images and labels to test.

    Of several sets of names the first that is there.
    """

    def read(path: Path) -> Parts:
        images, labels, test, test_labels = map(np.asarray, read_mat(path, *wanted))
        return Digits(images, labels), Digits(test, test_labels)

    return read


def cropped(path: Path) -> Parts:
    """Two MATLAB files with the images on the last axis: SVHN's."""

    def part(which: str) -> Digits:
        images, labels = map(np.asarray, read_mat(path.with_name(path.name.replace("train", which)), ("X", "y")))
        return Digits(np.moveaxis(images, -1, 0) if images.ndim == 4 else images, labels)

    return part("train"), part("test")


def cells(path: Path) -> Parts:
    """A MATLAB file with one variable: two by two cells."""
    dataset = np.asarray(read_mat(path, ("dataset",))[0])
    if dataset.shape != (2, 2) or dataset.dtype != object:
        raise FedkeelError(
            f"{path}: dataset is {dataset.dtype} {dataset.shape}: expected two by two cells; get it again"
        )
    train, test = (Digits(*map(np.asarray, row)) for row in dataset)
    return train, test


def four_idx(path: Path) -> Parts:
    """MNIST's own four files, as they are or packed by gzip."""

    def part(which: str) -> Digits:
        images = path.with_name(path.name.replace("train", which))
        return Digits(_idx(images), _idx(images.with_name(images.name.replace("images-idx3", "labels-idx1"))))

    return part("train"), part("t10k")


def _idx(path: Path) -> np.ndarray:
    """The array of an idx file of bytes."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            if (zeros, kind) != (0, 8):
                raise ValueError("it does not begin as an idx file of bytes")
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            if math.prod(shape) > available():
                raise ValueError(f"it says that it holds {math.prod(shape):,} bytes, more than there is memory")
            data = file.read(math.prod(shape) + 1)
    except FileNotFoundError:
        raise FedkeelError(f"there is no file {path}, which belongs to the others there") from None
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise FedkeelError(f"{path} is damaged: {error}; get it again") from None
    if len(data) != math.prod(shape):
        raise FedkeelError(f"{path} is damaged: it is not the {math.prod(shape):,} bytes that it says; get it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def alike(digits: Digits, where: Path) -> Digits:
    """Images as uint8 (n, 32, 32, 3), labels as 0 to 9, however a file has them."""
    images, labels = _in_bytes(_last_colours(digits.images, where), where), _numbers(digits.labels, where)
    if len(images) != len(labels) or not len(images):
        raise FedkeelError(f"{where} has {len(images)} images and {len(labels)} labels: expected as many; get it again")
    if images.shape[1:3] != (SIDE, SIDE):
        images = np.stack([_resized(image) for image in images])
    return Digits(np.ascontiguousarray(np.broadcast_to(images, (*images.shape[:3], 3))), labels)


def _resized(image: np.ndarray) -> np.ndarray:
    made = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    return np.asarray(made.resize((SIDE, SIDE), Image.Resampling.BILINEAR)).reshape(SIDE, SIDE, -1)


def _last_colours(images: np.ndarray, where: Path) -> np.ndarray:
    """(rows, height, width, 1 or 3)."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim == 4 and images.shape[3] not in (1, 3):
        images = np.moveaxis(images, 1, 3)
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
        raise FedkeelError(f"{where} has images of shape {images.shape}: expected (rows, height, width, 1 or 3)")
    return images


def _in_bytes(images: np.ndarray, where: Path) -> np.ndarray:
    """Of 0 to 255; what is not above 1 is taken for shares of it."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind not in "fiu" or not (images.min() >= 0 and images.max() <= 255):
        raise FedkeelError(f"{where} has images of {images.dtype} beyond 0 to 255: expected 0 to 255, or 0 to 1")
    most = 255 if images.max() <= 1 else 1
    return np.round(images * most).astype(np.uint8)


def _numbers(labels: np.ndarray, where: Path) -> np.ndarray:
    """Labels 0 to 9, where a file has these, 10 for 0, or rows that are 1 at the digit and else 0."""
    if labels.dtype.kind in "fiub" and labels.ndim == 2 and labels.shape[1] == 10:
        one_hot = (labels != 0).sum(1) == 1
        labels = np.where(one_hot, labels.argmax(1), -1)
    flat = labels.ravel()
    if flat.dtype.kind not in "fiub" or not np.isin(flat, np.arange(11)).all():
        raise FedkeelError(f"{where} has labels other than 0 to 9, or 1 to 10 with 10 for 0: get it again")
    return flat.astype(np.int64) % 10
