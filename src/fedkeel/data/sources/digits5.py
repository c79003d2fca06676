"""Digits of five domains, one client each: a pack that is read whole or refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedkeel.data.dataset import Dataset
from fedkeel.data.files import known_sha256
from fedkeel.data.sources.base import EMBEDDED, Source, register

PACK = EMBEDDED / "digits5.npz"
SHA256 = "4f65427a4839fe9abc0f3ebb17f27aa606b420c92e3afefcf94da1729629e2e1"
DOMAINS = ("fonts", "mfeat", "mnist", "mnist-photos", "optdigits")
"""As ``partition.kind = "column"`` orders them."""


@register({"digits5": "5,000 + 2,500 digits of 28 x 28 pixels from five domains, one client each; comes with fedkeel"})
class Digits5(Source):
    source: str = "digits5"

    def read(self, notice: Callable[[str], None]) -> Dataset:
        return load_digits5()


def read_pack() -> dict[str, np.ndarray]:
    """Images DOMAIN/PART as uint8 (n, 28, 28) or (n, 28, 28, 3), and their labels as DOMAIN/PART/labels."""
    known_sha256(PACK, SHA256)
    with np.load(PACK, allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}


def as_rgb(images: np.ndarray) -> np.ndarray:
    """Grey images (n, h, w) with their one channel three times; colour images as they are."""
    return images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)


def load_digits5() -> Dataset:
    """1,000 training and 500 test rows of each domain; the domain is the client."""
    arrays = read_pack()

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
        fingerprint=SHA256,
        encoder="pixels",
        train_client=train_client,
        test_client=test_client,
    )
