"""Shares and whole numbers of rows: what splits and samples are dealt by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def by_class(labels: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each class that has rows, with the positions of its rows; sorted once, however many classes there are."""
    order = np.argsort(labels, kind="stable")
    present, starts = np.unique(labels[order], return_index=True)
    return zip(present.tolist(), np.split(order, starts[1:]), strict=False)


def largest_remainder(quotas: np.ndarray) -> np.ndarray:
    """Whole numbers next to ``quotas`` with the same (whole) sum: round down, then up where most was lost."""
    sizes: np.ndarray = np.floor(quotas).astype(np.int64)
    missing = round(float(quotas.sum())) - int(sizes.sum())
    sizes[np.argsort(sizes - quotas, kind="stable")[:missing]] += 1
    return sizes


def held_out(labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Which rows a stratified share is, as truth values: at least one of each class, and never all."""
    held = np.zeros(len(labels), dtype=bool)
    for _, rows in by_class(labels):
        held[rng.permutation(rows)[: min(max(round(len(rows) * share), 1), len(rows) - 1)]] = True
    return held


def dirichlet_shares(rng: np.random.Generator, alpha: float, parts: int) -> np.ndarray:
    """One draw of Dir(alpha, .., alpha). Where floating point fails, the limit of that alpha: one-hot or even."""
    shares: np.ndarray = rng.dirichlet(np.full(parts, alpha))
    if abs(shares.sum() - 1) < 1e-6:  # false for NaN as well
        return shares
    if alpha >= 1:
        return np.full(parts, 1 / parts)
    shares = np.zeros(parts)
    shares[rng.integers(parts)] = 1
    return shares
