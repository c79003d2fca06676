"""Digits of five domains, one client each: a pack that is read whole or refused."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import file_sha256
from fedkeel.data.sources.base import EMBEDDED, Source, register

PACK = EMBEDDED / "digits5.npz"
DOMAINS = ("fonts", "mfeat", "mnist", "mnist-photos", "optdigits")
"""As ``partition.kind = "column"`` orders them."""
SIDE = 28


@register({"digits5": "5,000 + 2,500 digits of 28 x 28 pixels from five domains, one client each; comes with fedkeel"})
class Digits5(Source):
    source: str = "digits5"

    def read(self, notice: Callable[[str], None]) -> Dataset:
        return load_digits5()


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
