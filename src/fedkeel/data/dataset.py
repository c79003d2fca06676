"""What a source gives: labelled rows, before any encoder has seen them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["features", "images", "texts"]


@dataclass(frozen=True)
class Ready:
    """Features that were encoded before, and by what."""

    train: np.ndarray
    test: np.ndarray
    weights: str
    transform: str


@dataclass(frozen=True)
class Dataset:
    """Training and test rows with integer labels.

    ``train`` and ``test`` hold one entry per row: a float array (n, d) for "features", a uint8 array (n, h, w, 3)
    or a list of image paths for "images", a list of strings or an array of token ids (n, t; 0 = padding) for "texts".
    """

    name: str
    kind: Kind
    train: Sequence[Any] | np.ndarray
    train_labels: np.ndarray
    test: Sequence[Any] | np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    fingerprint: str
    """sha256 over the content of all rows: half of the feature cache's key."""
    encoder: str
    """The encoder that ``data.encoder = "auto"`` stands for."""
    train_client: np.ndarray | None = None
    test_client: np.ndarray | None = None
    """The user's own client name per row, where the source has one (arrays of str)."""
    train_attribute: np.ndarray | None = None
    test_attribute: np.ndarray | None = None
    """What else is known of each row, such as a patient's sex, as positions in ``attribute_names``."""
    attribute_names: tuple[str, ...] = ()
    ready: dict[str, Ready] = field(default_factory=dict)
    """Features that come with the source, by encoder name."""

    @property
    def classes(self) -> int:
        return len(self.class_names)
