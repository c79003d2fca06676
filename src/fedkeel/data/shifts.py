"""Making data worse on purpose: the settings, a long tail over the classes, and clients that label differently."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.core.settings import Section
from fedkeel.data.dataset import Dataset
from fedkeel.data.manifest import Manifest

MAPS = ("next", "blocks", "superclass", "cifar10", "mnist")
"""Names that ``noise_map`` has for which class is mistaken for which."""


class Shift(Section):
    long_tail: float = Field(1.0, ge=1)
    """imbalance factor: rows of the largest class over rows of the smallest; 1 = off"""
    order: Literal["label", "random"] = "label"
    """which class is the largest of the long tail and which the next: by label, or in an order that the seed draws"""
    noise: Literal["none", "symmetric", "asymmetric"] = "none"
    noise_ratio: float = Field(0.0, ge=0, le=1)
    """share of each client's training labels that the noise is applied to"""
    noise_map: str = ""
    """of asymmetric noise, what a class is mistaken for: next (the next label, the last one for the first), blocks (the
    same within blocks of five labels), superclass (the same within its superclass), cifar10, mnist, or pairs of labels
    such as 3:5,5:3"""
    flip: float = Field(0.0, ge=0, le=1)
    """share of the classes whose labels each client exchanges among one another, in all its rows; 0 = off"""
    corruption: str = "none"
    """of images: none, per-client (each client has one kind) or the kind that everybody has, such as fog"""
    severity: int = Field(3, ge=1, le=5)
    """of the corruption"""

    @field_validator("noise_map")
    @classmethod
    def _names_labels(cls, text: str) -> str:
        if text and text not in MAPS and not re.fullmatch(r"\d{1,9}:\d{1,9}(,\d{1,9}:\d{1,9})*", text):
            raise ValueError(f"expected {', '.join(MAPS)}, or pairs of labels such as 3:5,5:3")
        return text

    @model_validator(mode="after")
    def _says_what_labels_become(self) -> Self:
        if self.noise == "asymmetric" and not self.noise_map:
            raise FedkeelError(
                "shift.noise = 'asymmetric' needs shift.noise_map, what a class is mistaken for: next (the next "
                "label), blocks (the next of five, as FedLTF does with CIFAR-100), superclass, cifar10, mnist, or "
                "pairs of labels such as 3:5,5:3"
            )
        return self


def long_tail(labels: np.ndarray, classes: int, factor: float, seed: int, order: str = "label") -> np.ndarray:
    """The rows kept, ascending, so that the class in place c has max(1, int(n_max * (1 / factor) ** (c / (C - 1)))).

    Classes stand in the order of their label, as in FedPuReL, or with ``order`` "random", which is our addition, in one
    that the seed draws; ``factor`` 1 keeps everything. n_max is the largest whole number for which no class is asked
    for more rows than it has: for balanced data that is the paper's N / C, for other data it keeps the exponential
    shape where N / C would ask small classes for rows that do not exist. A class without rows stays without.
    """
    if not factor >= 1:
        raise FedkeelError(f"shift.long_tail = {factor:g}: expected 1 (off) or more, as 100 for a tail of 1 in 100")
    if factor == 1:
        return np.arange(len(labels))
    if classes < 2:
        raise FedkeelError(
            f"shift.long_tail = {factor:g} needs at least 2 classes, the data have {classes}; set it to 1"
        )
    present = np.bincount(labels, minlength=classes)
    place = np.arange(classes)
    if order == "random":
        place = generator(seed, "long-tail", "order").permutation(classes)
    shape = (1 / factor) ** (place / (classes - 1))
    held = present > 0
    n_max = int((present[held] / shape[held]).min()) if held.any() else 0
    kept = [
        generator(seed, "long-tail", label).choice(
            np.flatnonzero(labels == label), size=max(1, int(n_max * shape[label])), replace=False
        )
        for label in np.flatnonzero(held).tolist()
    ]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *kept]))


def flip_maps(clients: int, ratio: float, classes: int, seed: int) -> np.ndarray:
    """What each client calls each class, (clients, classes).

    Every client draws int(ratio * C + 1 / 2) classes and passes their labels around in a random circle; two of them
    swap. A higher ratio draws more classes to those of a lower one.
    """
    count = int(ratio * classes + 0.5)
    if not 0 <= ratio <= 1:
        raise FedkeelError(f"shift.flip = {ratio:g}: expected a share between 0 and 1")
    if ratio and count < 2:
        raise FedkeelError(
            f"shift.flip = {ratio:g} of {classes} classes is {count}: exchanging labels takes two; "
            f"set it to {min(1.0, 2 / classes):.2g} or more, or to 0"
        )
    maps = np.tile(np.arange(classes), (clients, 1))
    for client in range(clients):
        circle = generator(seed, "label-flip", client).permutation(classes)[:count]
        maps[client, circle] = np.roll(circle, 1)
    return maps


def flipped(dataset: Dataset, manifest: Manifest, ratio: float, seed: int) -> tuple[Dataset, Manifest]:
    """The data with every client's own labels in all its rows, train, validation and test; and the split that says so.

    The paper says only that labels are flipped at each client (LP-FT, Section 5). That a client is tested by its own
    labels is our reading: with half of them flipped, the paper's local accuracy of 91 % can be nothing else.
    """
    if not ratio:
        return dataset, manifest
    if not len(manifest.test.rows):
        raise FedkeelError(
            f"shift.flip = {ratio:g} without test rows of each client, which are labelled its way as well: "
            "set partition.test, e.g. partition.test=0.2"
        )
    maps = flip_maps(len(manifest.names), ratio, dataset.classes, seed)
    labels = {"train": dataset.train_labels.copy(), "test": dataset.test_labels.copy()}
    tested = (manifest.test_rows, manifest.test)
    for part, owned in (("train", manifest.train), ("train", manifest.validation), tested):
        owner = np.repeat(np.arange(owned.clients), owned.sizes)
        labels[part][owned.rows] = maps[owner, labels[part][owned.rows]]
    told = {**manifest.settings, "flip": ratio}
    return (
        replace(dataset, train_labels=labels["train"], test_labels=labels["test"]),
        replace(manifest, settings=told),
    )
