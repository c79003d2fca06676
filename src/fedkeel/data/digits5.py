"""Digits of five domains, one client each, and coloured digits: a pack that is read whole or refused."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256

PACK = Path(__file__).parent / "embedded" / "digits5.npz"
DOMAINS = ("fonts", "mfeat", "mnist", "mnist-photos", "optdigits")
"""As ``partition.kind = "column"`` orders them."""
SIDE = 28
COLOURS = ("green", "red")
CHANNEL = (1, 0)
"""The channel of each colour."""


def read_pack(path: Path = PACK) -> dict[str, np.ndarray]:
    """Images DOMAIN/PART as uint8 (n, 28, 28) or (n, 28, 28, 3), and their labels as DOMAIN/PART/labels."""
    again = "install fedkeel again"
    try:
        with np.load(path, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror or error}; {again}") from None
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise FedkeelError(f"{path} is damaged ({error}): {again}") from None
    for name in (f"{domain}/{part}" for domain in DOMAINS for part in ("train", "test")):
        images, labels = arrays.get(name), arrays.get(f"{name}/labels")
        if images is None or labels is None or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
            raise FedkeelError(f"{path} is damaged: {name} is not whole; {again}")
        if images.shape[1:] not in ((SIDE, SIDE), (SIDE, SIDE, 3)):
            raise FedkeelError(f"{path} is damaged: {name} has shape {images.shape}; {again}")
    return arrays


def as_rgb(images: np.ndarray) -> np.ndarray:
    """Grey images (n, h, w) with their one channel three times; colour images as they are."""
    return images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)


def load_digits5(path: Path = PACK) -> Dataset:
    """1,000 training and 500 test rows of each domain; the domain is the client."""
    arrays = read_pack(path)

    def part(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        images = [as_rgb(arrays[f"{domain}/{name}"]) for domain in DOMAINS]
        labels = [arrays[f"{domain}/{name}/labels"].astype(np.int64) for domain in DOMAINS]
        clients = np.repeat(np.array(DOMAINS), [len(rows) for rows in images])
        return np.concatenate(images), np.concatenate(labels), clients

    train, train_labels, train_client = part("train")
    test, test_labels, test_client = part("test")
    return Dataset(
        name="digits5",
        kind="images",
        train=train,
        train_labels=train_labels,
        test=test,
        test_labels=test_labels,
        class_names=tuple("0123456789"),
        fingerprint=file_sha256(path),
        encoder="pixels",
        train_client=train_client,
        test_client=test_client,
    )


def load_coloured_digits(path: Path = PACK) -> Dataset:
    """The MNIST rows of the pack, below five or not; of each digit every other row is red, the others are green.

    The colour is the attribute. Here it says nothing about the class; ``partition.kind = "spurious"`` deals the rows
    out so that for each client it does.
    """
    arrays = read_pack(path)

    def part(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        grey, digit = arrays[f"mnist/{name}"], arrays[f"mnist/{name}/labels"].astype(np.int64)
        colour = np.zeros(len(digit), dtype=np.int64)
        for value in range(10):
            colour[np.flatnonzero(digit == value)[::2]] = COLOURS.index("red")
        images = np.zeros((*grey.shape, 3), dtype=np.uint8)
        images[np.arange(len(grey)), :, :, np.array(CHANNEL)[colour]] = grey
        return images, (digit >= 5).astype(np.int64), colour

    train, train_labels, train_colour = part("train")
    test, test_labels, test_colour = part("test")
    return Dataset(
        name="coloured-digits",
        kind="images",
        train=train,
        train_labels=train_labels,
        test=test,
        test_labels=test_labels,
        class_names=("below five", "five or more"),
        fingerprint=digest([file_sha256(path), "coloured"]),
        encoder="pixels",
        train_attribute=train_colour,
        test_attribute=test_colour,
        attribute_names=COLOURS,
    )
