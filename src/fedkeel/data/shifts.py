"""Making data worse on purpose: a long tail over the classes, wrong labels, and clients that label differently."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.rng import generator
from fedkeel.core.settings import Section
from fedkeel.data.dataset import Dataset
from fedkeel.data.manifest import Manifest
from fedkeel.data.ownership import Ownership


class Shift(Section):
    long_tail: float = Field(1.0, ge=1)
    """imbalance factor: rows of the largest class over rows of the smallest; 1 = off"""
    order: Literal["label", "random"] = "label"
    """which class is the largest of the long tail and which the next: by label, or in an order that the seed draws"""
    noise: Literal["none", "symmetric", "asymmetric"] = "none"
    noise_ratio: float = Field(0.0, ge=0, le=1)
    """share of each client's training labels that the noise is applied to"""
    flip: float = Field(0.0, ge=0, le=1)
    """share of the classes whose labels each client exchanges among one another, in all its rows; 0 = off"""
    corruption: str = "none"
    """of images: none, per-client (each client has one kind) or the kind that everybody has, such as fog"""
    severity: int = Field(3, ge=1, le=5)
    """of the corruption"""


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


def noisy_labels(
    labels: np.ndarray, ownership: Ownership, kind: str, ratio: float, classes: int, source_name: str, seed: int
) -> np.ndarray:
    """A copy of ``labels`` with exactly int(ratio * n_k) of each client's rows put through the noise (as in FedLTF).

    symmetric: uniform over the other C - 1 labels. asymmetric: a fixed map, see ``asymmetric_map``; where the map
    keeps a class, its rows keep their label. Draws belong to the client, and a higher ratio adds to the rows of a
    lower one, so a sweep over ratios is a sweep over nothing else.
    """
    if kind == "none":
        return labels.copy()
    if kind not in ("symmetric", "asymmetric"):
        raise unknown("label noise", kind, ["none", "symmetric", "asymmetric"])
    if not 0 <= ratio <= 1:
        raise FedkeelError(f"shift.noise_ratio = {ratio:g}: expected a share between 0 and 1")
    if classes < 2:
        raise FedkeelError(
            f"shift.noise = {kind!r} needs at least 2 classes, the data have {classes}; set it to 'none'"
        )
    noisy = labels.copy()
    becomes = asymmetric_map(source_name, classes)
    for client in range(ownership.clients):
        rows = ownership.of(client)
        rng = generator(seed, "label-noise", kind, client)
        order = rng.permutation(len(rows))
        steps = rng.integers(1, classes, size=len(rows))  # drawn for all rows: the same whatever the ratio
        hit = order[: int(ratio * len(rows))]
        before = labels[rows[hit]]
        noisy[rows[hit]] = (before + steps[hit]) % classes if kind == "symmetric" else becomes[before]
    return noisy


def asymmetric_map(source_name: str, classes: int) -> np.ndarray:
    """Which label each class is mistaken for, by class index.

    CIFAR-10: truck -> car, bird -> plane, deer -> horse, cat <-> dog, the others keep theirs. CIFAR-100: the next
    label within blocks of five consecutive labels (with alphabetical labels these are not the superclasses; FedLTF
    does it so). Any other source: the next label, the last one to the first, which is our choice.
    """
    label = np.arange(classes)
    name = source_name.lower().replace("-", "").replace("_", "")
    if name.endswith("cifar10") and classes == 10:
        label[[2, 4, 9, 3, 5]] = [0, 7, 1, 5, 3]
        return label
    if name.endswith("cifar100") and classes == 100:
        return label // 5 * 5 + (label + 1) % 5
    return (label + 1) % classes


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
