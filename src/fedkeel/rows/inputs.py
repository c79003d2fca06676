"""Rows that a network reads in every step: picked, and read only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedkeel.core.pulse import beat
from fedkeel.core.tree import Tensor, Tree
from fedkeel.models.backbone import Backbone, network_weights


@dataclass(frozen=True)
class Inputs:
    """Rows of a source, picked but not yet read. Indexing picks among them, as with a tensor of features."""

    backbone: Backbone
    source: Callable[[np.ndarray], dict[str, Tensor]]
    index: Tensor
    moves: bool = False
    """Whether the statistics of batch norms follow these rows when they are encoded."""
    prepared: Callable[[Tensor], Tensor] | None = None
    """What is done to features before a head sees them."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def dim(self) -> int:
        """Of the features they would have."""
        return self.backbone.dim

    @property
    def reader(self) -> Backbone:
        return self.backbone

    @property
    def tensor(self) -> None:
        return None

    def pick(self, index: Tensor) -> Inputs:
        return self[index]

    def read(self) -> Inputs:
        return self

    def following(self, moves: bool) -> Inputs:
        return replace(self, moves=moves)

    def __getitem__(self, which: Tensor | np.ndarray | slice) -> Inputs:
        return replace(self, index=self.index[which])

    def beside(self, other: Inputs) -> Inputs:
        return replace(self, backbone=other.backbone)

    def twin(self) -> Inputs:
        return replace(self, backbone=self.backbone.twin())

    def parts(self, size: int) -> Iterator[Inputs]:
        for first in range(0, len(self), size):
            yield self[first : first + size]

    def features(self, **adapted: Any) -> Tensor:
        """The rows encoded, adapted as ``Backbone.features`` says, and prepared."""
        features = self.backbone.features(self.source(self.index.numpy()), moves=self.moves, **adapted)
        beat(len(self))
        return features if self.prepared is None else self.prepared(features)


def inputs(backbone: Backbone, rows: Sequence[Any] | np.ndarray, tokens: int) -> Inputs:
    """Rows to be read when they are needed; of a text at most this many tokens."""
    if backbone.kind == "images":
        return Inputs(backbone, lambda index: backbone.read(_picked(rows, index), index), torch.arange(len(rows)))
    if not len(rows):  # of a site without test rows, say: tokenizers cannot read nothing
        return Inputs(backbone, lambda index: {}, torch.arange(0))
    whole = backbone.read(list(rows), np.arange(len(rows)))
    whole = {name: value[:, :tokens] for name, value in whole.items()}

    def picked(index: np.ndarray) -> dict[str, Tensor]:
        part = {name: value[torch.from_numpy(index)] for name, value in whole.items()}
        longest = int(part["attention_mask"].sum(1).max())
        return {name: value[:, :longest] for name, value in part.items()}

    return Inputs(backbone, picked, torch.arange(len(rows)))


def features_of(tree: Tree, x: Inputs) -> Tensor:
    """The rows encoded by the network with the weights in the tree."""
    return x.features(weights=network_weights(tree))


def _picked(rows: Sequence[Any] | np.ndarray, index: np.ndarray) -> Any:
    return rows[index] if isinstance(rows, np.ndarray) else [rows[i] for i in index]
