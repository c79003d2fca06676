"""CIFAR-10-C and CIFAR-100-C as they are downloaded: one file for each kind of corruption, which is a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.memory import available
from fedkeel.core.rng import generator
from fedkeel.data.cifar import CIFAR10, CIFAR100
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.data.npy import mapped
from fedkeel.data.shares import held_out
from fedkeel.data.sources.base import Source, register

LABELS = "labels.npy"
OFFICIAL = (
    "brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost", "gaussian_blur", "gaussian_noise",
    "glass_blur", "impulse_noise", "jpeg_compression", "motion_blur", "pixelate", "saturate", "shot_noise", "snow",
    "spatter", "speckle_noise", "zoom_blur",
)  # fmt: skip
"""The kinds of the archive."""
SEVERITIES = 5
"""Each file has all photos once for each, in their order."""


class Corrupted(Source):
    archive: ClassVar[str]
    """the folder that it unpacks to"""
    names: ClassVar[tuple[str, ...]]
    severity: int = Field(3, ge=0, le=SEVERITIES)
    """of the corruption, 1 to 5; 0 = all five"""

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """All kinds are of the same photos: a share ``holdout`` of these is for testing, whatever kind and severity."""
        folder = self.path if (self.path / LABELS).is_file() else self.path / self.archive
        labels = self._labels(folder)
        kinds = sorted(path for path in folder.glob("[!.]*.npy") if path.name != LABELS)
        if not kinds:
            raise FedkeelError(f"{folder} has no file but {LABELS}: expected one for each kind, such as fog.npy")
        if lost := [kind for kind in OFFICIAL if kind not in {path.stem for path in kinds}]:
            told = f"{len(lost)} of the {len(OFFICIAL)} official kinds are not there ({', '.join(lost)})"
            notice(f"{self.source}: {told}, so {len(kinds)} clients")
        files = [_images(path, len(labels) * SEVERITIES) for path in kinds]
        taken = range(SEVERITIES) if self.severity == 0 else [self.severity - 1]
        self._must_fit(files, len(taken) * len(labels))
        content = [image[k * len(labels) : (k + 1) * len(labels)] for image in files for k in taken]
        clients = [path.stem for path in kinds]
        held = held_out(labels, self.holdout, generator(0, "holdout", digest([labels])))
        parts = {name: np.flatnonzero(rows) for name, rows in (("train", ~held), ("test", held))}
        images = {name: _gathered(content, photos) for name, photos in parts.items()}
        client = {name: np.repeat(clients, len(taken) * len(photos)) for name, photos in parts.items()}
        label = {name: np.tile(labels[photos], len(content)) for name, photos in parts.items()}
        return Dataset(
            name=self.source.partition(":")[0],
            kind="images",
            train=images["train"],
            train_labels=label["train"],
            test=images["test"],
            test_labels=label["test"],
            class_names=self.names,
            fingerprint=digest([*clients, labels, *content, *parts.values()]),
            encoder="efficientnet-lite0",
            train_client=client["train"],
            test_client=client["test"],
        )

    def _labels(self, folder: Path) -> np.ndarray:
        """Those of the photos, which are there once for each severity."""
        path = folder / LABELS
        if not path.is_file():
            raise FedkeelError(
                f"{self.source}: {self.path} holds neither {LABELS} nor a folder {self.archive} with it: expected the "
                "official folder as it is unpacked, with one .npy file for each kind"
            )
        labels = mapped(path)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) % SEVERITIES:
            raise FedkeelError(
                f"{path} is {labels.dtype} {labels.shape}: expected a whole number for each row, as many rows for each "
                f"of {SEVERITIES} severities"
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= len(self.names)))
        if len(wrong):
            raise FedkeelError(f"{path} row {wrong[0]} is {labels[wrong[0]]}: expected 0 to {len(self.names) - 1}")
        first, *others = np.split(labels.astype(np.int64), SEVERITIES)
        if any((first != other).any() for other in others):
            raise FedkeelError(f"{path}: expected the same labels {SEVERITIES} times, once for each severity")
        return first

    def _must_fit(self, files: Sequence[np.ndarray], rows: int) -> None:
        wanted, left = len(files) * rows * math.prod(files[0].shape[1:]), available()
        if wanted > left:
            raise FedkeelError(
                f"{self.source} with data.severity = {self.severity} takes {wanted / 2**30:.1f} GB, but "
                f"{left / 2**30:.1f} GB of memory are free: use a machine with more, one severity, or fewer kinds"
            )


@register({"cifar10-c:FOLDER": "CIFAR-10-C, a client for each kind of corruption, from the official folder"})
class Cifar10C(Corrupted):
    archive = "CIFAR-10-C"
    marks = ("CIFAR-10-C", LABELS)
    names = CIFAR10


@register({"cifar100-c:FOLDER": "CIFAR-100-C, a client for each kind of corruption, from the official folder"})
class Cifar100C(Corrupted):
    archive = "CIFAR-100-C"
    marks = ("CIFAR-100-C", LABELS)
    names = CIFAR100


def _images(path: Path, rows: int) -> np.ndarray:
    images = mapped(path)
    if images.dtype != np.uint8 or images.shape != (rows, 32, 32, 3):
        raise FedkeelError(
            f"{path} is {images.dtype} {images.shape}: expected uint8 {(rows, 32, 32, 3)}, one row for each of {LABELS}"
        )
    return images


def _gathered(content: Sequence[np.ndarray], photos: np.ndarray) -> np.ndarray:
    """The same rows of several arrays, one array after the other."""
    made = np.empty((len(content), len(photos), *content[0].shape[1:]), dtype=np.uint8)
    for array, into in zip(content, made, strict=True):
        into[:] = array[photos]
    return made.reshape(-1, *made.shape[2:])
