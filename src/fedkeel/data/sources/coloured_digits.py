"""Digits in a colour that says nothing about them, until they are dealt out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.data.sources.base import Source, register
from fedkeel.data.sources.digits5 import SHA256, read_pack

COLOURS = ("green", "red")
CHANNEL = (1, 0)
"""The channel of each colour."""


@register(
    {"coloured-digits": "1,000 + 500 digits, below five or not, in a colour that says nothing; comes with fedkeel"}
)
class ColouredDigits(Source):
    source: str = "coloured-digits"

    def read(self, notice: Callable[[str], None]) -> Dataset:
        return load_coloured_digits()


def load_coloured_digits() -> Dataset:
    """The MNIST rows of the pack, below five or not; of each digit every other row is red, the others are green.

    The colour is the attribute. Here it says nothing about the class; ``partition.kind = "spurious"`` deals the rows
    out so that for each client it does.
    """
    arrays = read_pack()

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
        fingerprint=digest([SHA256, "coloured"]),
        encoder="pixels",
        train_attribute=train_colour,
        test_attribute=test_colour,
        attribute_names=COLOURS,
    )
