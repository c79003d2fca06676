"""Wrong labels on purpose: how many rows of each client have one, and what a class is mistaken for."""

from __future__ import annotations

import numpy as np

from fedkeel.core.errors import FedkeelError, shortened, unknown
from fedkeel.core.rng import generator
from fedkeel.data.dataset import Dataset
from fedkeel.data.ownership import Ownership

PAIRS = {"cifar10": "2:0,4:7,9:1,3:5,5:3", "mnist": "2:7,3:8,5:6,6:5"}
"""As in FedLTF: bird for airplane, deer for horse, truck for automobile, cat and dog; digits that look alike."""


def noisy_labels(
    labels: np.ndarray, ownership: Ownership, kind: str, ratio: float, becomes: np.ndarray, seed: int
) -> np.ndarray:
    """A copy of ``labels`` with exactly int(ratio * n_k) of each client's rows put through the noise (as in FedLTF).

    symmetric: uniform over the other C - 1 labels. asymmetric: class c turns into ``becomes[c]``; where that is c
    itself, rows keep their label. Draws belong to the client, and a higher ratio adds to the rows of a lower one, so a
    sweep over ratios is a sweep over nothing else.
    """
    if kind == "none":
        return labels.copy()
    if kind not in ("symmetric", "asymmetric"):
        raise unknown("label noise", kind, ["none", "symmetric", "asymmetric"])
    if not 0 <= ratio <= 1:
        raise FedkeelError(f"shift.noise_ratio = {ratio:g}: expected a share between 0 and 1")
    classes = len(becomes)
    if classes < 2:
        raise FedkeelError(
            f"shift.noise = {kind!r} needs at least 2 classes, the data have {classes}; set it to 'none'"
        )
    noisy = labels.copy()
    for client in range(ownership.clients):
        rows = ownership.of(client)
        rng = generator(seed, "label-noise", kind, client)
        order = rng.permutation(len(rows))
        steps = rng.integers(1, classes, size=len(rows))  # drawn for all rows: the same whatever the ratio
        hit = order[: int(ratio * len(rows))]
        before = labels[rows[hit]]
        noisy[rows[hit]] = (before + steps[hit]) % classes if kind == "symmetric" else becomes[before]
    return noisy


def mistaken(text: str, dataset: Dataset) -> np.ndarray:
    """Which label each class is mistaken for, as ``shift.noise_map`` says; where that says nothing, its own."""
    classes, becomes = dataset.classes, np.arange(dataset.classes)
    if text in ("next", "blocks", "superclass"):
        for group in _circles(text, dataset):
            becomes[group] = np.roll(group, -1)
        return becomes
    if text in PAIRS and classes != 10:
        raise FedkeelError(f"shift.noise_map = {text!r} is for 10 classes, {dataset.name} has {classes}: set another")
    pairs = np.array([pair.split(":") for pair in PAIRS.get(text, text).split(",") if pair], np.int64).reshape(-1, 2)
    if len(pairs) and (pairs.max() >= classes or len(np.unique(pairs[:, 0])) < len(pairs)):
        raise FedkeelError(
            f"shift.noise_map = {shortened(text)!r}: expected labels 0 to {classes - 1}, each at most once "
            "before a colon"
        )
    becomes[pairs[:, 0]] = pairs[:, 1]
    return becomes


def _circles(text: str, dataset: Dataset) -> list[np.ndarray]:
    """Groups of classes, each of which is mistaken for the next one of its group.

    FedLTF takes blocks of five labels of CIFAR-100 for its superclasses, which alphabetical labels are not.
    """
    label = np.arange(dataset.classes)
    if text == "next":
        return [label]
    if text == "blocks":
        return [label[start : start + 5] for start in range(0, len(label), 5)]
    if dataset.superclasses is None:
        raise FedkeelError(f"shift.noise_map = 'superclass': {dataset.name} has no superclasses; set another")
    of = np.array(dataset.superclasses)
    return [np.flatnonzero(of == one) for one in np.unique(of)]
