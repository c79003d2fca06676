"""The model in a tree: a network that gives features, and a head on them that gives logits.

The tree is merged from what came down, what a client keeps and what is trained; whoever merges says what counts. The
same model is behind whole networks and their head, adapters in a frozen network, and what strategies make of either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from fedkeel.core.method import AnyMethod, Batch, State, Task
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import BIAS, WEIGHT, logits
from fedkeel.models.backbone import Backbone
from fedkeel.models.losses import softmax_rows
from fedkeel.rows.inputs import Inputs, features_of


@dataclass(frozen=True)
class NetworkModel:
    features: Callable[[Tree, Inputs], Tensor] = features_of
    """of rows to be encoded, by what the tree says of the network"""
    head: Callable[[Tree, Tensor], Tensor] = logits
    """logits of features"""
    adapters: bool = False
    """whether the tree holds adapters of a frozen network in the place of the network"""
    part: int = 256
    """rows that are encoded at once outside of training"""

    def encoded(self, tree: Tree, x: Tensor | Inputs) -> Tensor:
        """Features of many rows, by a network that is not trained meanwhile."""
        with torch.no_grad():
            return torch.cat([self._features(tree, x[i : i + self.part]) for i in range(0, len(x), self.part)])

    def logits(self, tree: Tree, x: Tensor | Inputs) -> Tensor:
        """Of rows to be encoded, or of features."""
        return self.head(tree, self._features(tree, x))

    def judged(self, tree: Tree, x: Tensor | Inputs) -> Tensor:
        """Logits of a batch by a model that is not trained on it: no gradient, batch norms as they are."""
        with torch.no_grad():
            return self.logits(tree, x if isinstance(x, torch.Tensor) else x.following(False))

    def predict(self, tree: Tree, x: Tensor | Inputs) -> Tensor:
        """Logits of many rows."""
        return torch.cat([self.logits(tree, x[i : i + self.part]) for i in range(0, len(x), self.part)])

    def cross_entropy(self, tree: Tree, batch: Batch[Tensor | Inputs]) -> Tensor:
        return batch.mean(softmax_rows(self.logits(tree, batch.x), batch.y))

    def _features(self, tree: Tree, x: Tensor | Inputs) -> Tensor:
        return x if isinstance(x, torch.Tensor) else self.features(tree, x)


WHOLE = NetworkModel()
"""A network of which all weights are in the tree, or none where rows are features already."""


@runtime_checkable
class Networked(Protocol):
    """A method that trains what is inside a network."""

    @property
    def network(self) -> NetworkModel: ...


def model_of(method: AnyMethod) -> NetworkModel:
    """The model of a method; of one that knows features only, whatever network makes them."""
    if isinstance(method, Networked):
        return method.network
    return NetworkModel(head=lambda tree, features: method.predict(State(tree), {}, features))


def fresh_network(task: Task) -> Tree:
    """The network as its training starts, under a head uniform within 1 / sqrt(d), as PyTorch starts a linear layer."""
    draw, bound = generator(task.seed, "head"), task.dim**-0.5
    weight, bias = draw.uniform(-bound, bound, (task.classes, task.dim)), draw.uniform(-bound, bound, task.classes)
    head = {WEIGHT: torch.from_numpy(weight).float(), BIAS: torch.from_numpy(bias).float()}
    return {**head, **Backbone.in_task(task).tree(task.seed)}
