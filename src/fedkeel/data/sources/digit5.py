"""Digit5: digits of five domains, one client each, in the files that FedBN and DomainBed take them from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.digit_files import Digits, Parts, alike, cells, cropped, four_idx, of_variables
from fedkeel.data.files import digest
from fedkeel.data.listed import find
from fedkeel.data.sources.base import Source, register
from fedkeel.data.sources.npz import read_npz

IDX = "train-images-idx3-ubyte"
FILES: Mapping[str, Mapping[str, Callable[[Path], Parts]]] = {
    "mnist": {
        "mnist_data.mat": of_variables(
            *((f"train_{side}", "label_train", f"test_{side}", "label_test") for side in (32, 28))
        )
    }
    | {f"{folder}{IDX}{packed}": four_idx for folder in ("", "raw/") for packed in ("", ".gz")},
    "mnist-m": {"mnistm_with_label.mat": of_variables(("train", "label_train", "test", "label_test"))},
    "svhn": {"svhn_train_32x32.mat": cropped, "train_32x32.mat": cropped},
    "synthdigits": {
        "syn_number.mat": of_variables(("train_data", "train_label", "test_data", "test_label")),
        "synth_train_32x32.mat": cropped,
    },
    "usps": {"usps_28x28.mat": cells},
}
"""Of each domain the files that it comes in, the most usual first, and who reads them."""
PICKLES = ("*.pkl", "*/*.pkl", "*/*/*.pkl")


@register({"digit5:FOLDER": "MNIST, MNIST-M, SVHN, SynthDigits and USPS in their usual .mat files, one client each"})
class Digit5(Source):
    marks: ClassVar[tuple[str, ...]] = (*FILES["mnist-m"], "mnist-m.npz")

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """All rows of each domain's own parts, as 32 x 32 pixels in colour; the domain is the client."""
        domains = [self._domain(domain) for domain in FILES]

        def part(which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            images, labels = zip(*(both[which] for both in domains), strict=True)
            clients = np.repeat(np.array(list(FILES)), [len(rows) for rows in labels])
            return np.concatenate(images), np.concatenate(labels), clients

        train, train_labels, train_client = part(0)
        test, test_labels, test_client = part(1)
        return Dataset(
            name=self.source,
            kind="images",
            train=train,
            train_labels=train_labels,
            test=test,
            test_labels=test_labels,
            class_names=tuple("0123456789"),
            fingerprint=digest([train, train_labels, train_client, test, test_labels, test_client]),
            encoder="pixels",
            train_client=train_client,
            test_client=test_client,
        )

    def _domain(self, domain: str) -> Parts:
        """Its training and test rows, of the first of its files that is there."""
        formats = {**FILES[domain], f"{domain}.npz": _npz}
        for name, read in formats.items():
            if path := find(self, name):
                train, test = read(path)
                return alike(train, path), alike(test, path)
        pickles = next((found for pattern in PICKLES for found in self.path.glob(pattern)), None)
        instead = f"; {pickles.name} is a pickle, and those are not read, as they may run code" if pickles else ""
        raise FedkeelError(
            f"{self.source}: neither {self.path} nor a folder in it has {domain}: expected {', '.join(FILES[domain])} "
            f"or {domain}.npz with the arrays x, y, x_test and y_test{instead}"
        )


def _npz(path: Path) -> Parts:
    """The same arrays as of a source ``npz:FILE``."""
    arrays = read_npz(path)
    names = ("x", "y", "x_test", "y_test")
    if missing := next((name for name in names if name not in arrays), None):
        raise FedkeelError(f"{path} has no array {missing}: expected {', '.join(names)}")
    return Digits(arrays["x"], arrays["y"]), Digits(arrays["x_test"], arrays["y_test"])
