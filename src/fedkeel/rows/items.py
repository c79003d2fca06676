"""Rows for a dual encoder: what its item tower made of them, and whatever else a method needs of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedkeel.core.tree import Tensor
from fedkeel.models.dual import Dual

Array = np.ndarray | Tensor
"""One row per item; a memory map is read as far as it is picked."""


@dataclass(frozen=True)
class Items:
    """Rows for a dual encoder, picked but not copied: indexing picks among them, as with a tensor of features."""

    dual: Dual
    held: Mapping[str, tuple[Array, Tensor]]
    """arrays with a row per item, such as "features", each with the rows of it that are picked"""

    def __len__(self) -> int:
        return len(self.held["features"][1])

    @property
    def dim(self) -> int:
        return self.dual.dim

    @property
    def reader(self) -> Dual:
        return self.dual

    @property
    def tensor(self) -> None:
        return None

    def pick(self, index: Tensor) -> Items:
        return self[index]

    def read(self) -> Items:
        return self

    def following(self, moves: bool) -> Items:
        return self

    def __getitem__(self, which: Tensor | np.ndarray | slice) -> Items:
        return replace(self, held={name: (array, index[which]) for name, (array, index) in self.held.items()})

    def get(self, name: str) -> Tensor:
        """The picked rows of an array, in float32."""
        array, index = self.held[name]
        if isinstance(array, torch.Tensor):
            return array[index]
        return torch.from_numpy(np.asarray(array[index.numpy()], dtype=np.float32))

    def having(self, name: str, values: Tensor) -> Items:
        """With one more array, whose rows are those of the picked items."""
        return replace(self, held={**self.held, name: (values, torch.arange(len(values)))})

    @property
    def features(self) -> Tensor:
        """Of the frozen item tower, unit length."""
        return self.get("features")

    @property
    def zero_shot(self) -> Tensor:
        """Zero-shot logits z."""
        return self.logits(self.features, self.dual.zero_shot)

    def logits(self, items: Tensor, classes: Tensor) -> Tensor:
        """scale * cosine, of unit features of these items and of the classes."""
        return self.dual.scale * items @ classes.T

    def beside(self, other: Items) -> Items:
        return replace(self, dual=other.dual)

    def twin(self) -> Items:
        return replace(self, dual=self.dual.twin())

    def parts(self, size: int) -> Iterator[Items]:
        for first in range(0, len(self), size):
            yield self[first : first + size]


def items(dual: Dual, features: Array, **more: Array) -> Items:
    """Rows with their features, and other arrays that a method needs, all of them picked."""
    unit = torch.nn.functional.normalize(torch.from_numpy(np.asarray(features, dtype=np.float32).copy()), dim=-1)
    every = torch.arange(len(unit))
    return Items(dual, {name: (array, every) for name, array in {"features": unit, **more}.items()})
