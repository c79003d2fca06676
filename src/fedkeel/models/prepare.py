"""Feature preparation: what happens to encoded rows before a head sees them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from fedkeel.core.tree import Tensor

Preparation = Literal["centred", "l2", "raw"]
CHUNK = 8192


def as_rows(features: np.ndarray) -> Tensor:
    """Encoded features, usually a float16 memory map, as float32 rows of their own."""
    rows = torch.empty(features.shape, dtype=torch.float32)
    for first in range(0, len(rows), CHUNK):
        rows.numpy()[first : first + CHUNK] = features[first : first + CHUNK]
    return rows


def prepare(rows: Tensor, how: Preparation, mean: Tensor | None = None) -> Tensor:
    """In place: nothing (raw), unit length (l2), or minus the mean and then unit length (centred)."""
    for first in range(0, len(rows), CHUNK):
        part = rows[first : first + CHUNK]
        if how == "centred":
            assert mean is not None
            part -= mean
        if how != "raw":
            part /= part.norm(dim=1, keepdim=True).clamp_(min=1e-12)
    return rows


def prepared(rows: Tensor, how: Preparation, mean: Tensor | None) -> Tensor:
    """The same as ``prepare`` on a few rows of their own, with gradients."""
    if how == "raw":
        return rows
    centred = rows - mean if how == "centred" and mean is not None else rows
    unit: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return unit


def mean_energy(rows: Tensor) -> float:
    """Share of the features' energy that sits in their mean, |mean|^2 / E|x|^2: near 1, published heads drift."""
    total = float(rows.square().sum(1, dtype=torch.float64).mean())
    return float(rows.mean(0).square().sum()) / total if total else 0.0
