"""CIFAR-100 as it is downloaded: the python or the binary version, with its superclasses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from fedkeel.core.errors import FedkeelError
from fedkeel.data.cifar import Layout, binary, dataset_of, names_of, pickled, unpacked
from fedkeel.data.dataset import Dataset, with_superclass_column
from fedkeel.data.safe_pickle import read_pickle
from fedkeel.data.sources.base import Source, register

PYTHON = Layout("cifar-100-python", ("train",), "test", ("meta",), pickled)
BINARY = Layout(
    "cifar-100-binary", ("train.bin",), "test.bin", ("coarse_label_names.txt", "fine_label_names.txt"), binary
)
LEVELS = ("coarse", "fine")
"""As the bytes of a row stand in the binary version; the last is the class."""


@register({"cifar100:FOLDER": "60,000 photos of 32 x 32 pixels in 100 classes, from cifar-100-python or -binary"})
class Cifar100(Source):
    marks: ClassVar[tuple[str, ...]] = (PYTHON.folder, BINARY.folder, *PYTHON.about, *BINARY.about)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Fine labels are the classes, coarse ones their superclasses."""
        layout, folder = unpacked(self.source, self.path, (PYTHON, BINARY))
        columns = {f"{level}_labels": _names(layout, folder, level) for level in LEVELS}
        dataset, train = dataset_of("cifar100", layout, folder, columns)
        coarse = [columns["coarse_labels"][label] for label in train.labels["coarse_labels"].tolist()]
        return with_superclass_column(dataset, dataset.train_labels, coarse, f"{folder / layout.train[0]}")


def _names(layout: Layout, folder: Path, level: str) -> tuple[str, ...]:
    if layout is PYTHON:
        about = folder / PYTHON.about[0]
        return names_of(about, read_pickle(about).get(f"{level}_label_names"))
    about = folder / f"{level}_label_names.txt"
    try:
        return names_of(about, about.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        raise FedkeelError(f"cannot read {about} as text; get it again") from None
