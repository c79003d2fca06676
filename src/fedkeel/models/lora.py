"""LoRA: a frozen weight W_0 (out, in) becomes W_0 + scale B A, with B (out, rank) and A (rank, in).

Hu et al., LoRA, ICLR 2022. In a tree the factors of a layer are ``A.NAME`` and ``B.NAME``; B starts at zero, so that
the model starts as the frozen one. Methods differ in the layers that they adapt, in how A starts, and in the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from fedkeel.core.rng import generator
from fedkeel.core.tree import Tensor, Tree
from fedkeel.models.backbone import Backbone
from fedkeel.models.layers import Change

Shape = tuple[int, ...]
"""(out, in) of a layer."""


def factors(shapes: Mapping[str, Shape], draw: Callable[[str, int], Tensor]) -> Tree:
    """Of layers by name; ``draw`` gives A of a layer by its name and width."""
    found: Tree = {}
    for name, (out, into) in shapes.items():
        found[f"A.{name}"] = draw(name, into)
        found[f"B.{name}"] = torch.zeros(out, len(found[f"A.{name}"]))
    return found


def gaussian(rank: int, into: int, seed: int, *key: int | str) -> Tensor:
    """A ~ N(0, 1 / in)."""
    return torch.from_numpy(generator(seed, *key).normal(scale=into**-0.5, size=(rank, into))).float()


def uniform(rank: int, into: int, seed: int, *key: int | str) -> Tensor:
    """A within 1 / sqrt(in): Kaiming's with a = sqrt(5)."""
    return torch.from_numpy(generator(seed, *key).uniform(-(into**-0.5), into**-0.5, (rank, into))).float()


def in_attention(backbone: Backbone, rank: int, seed: int, purpose: str) -> Tree:
    """Factors of the query and value layers of every block (LoRA's own choice), by number; A is gaussian."""
    shapes = {f"{index:02d}": tuple(backbone.weight(name).shape) for index, name in enumerate(backbone.attention)}
    return factors(shapes, lambda name, into: gaussian(rank, into, seed, purpose, int(name)))


def weights(backbone: Backbone, tree: Tree, scale: float, now: Tree | None = None) -> Tree:
    """The adapted query and value weights, by their names in the network, from those of now or the frozen ones."""
    known = now or {}
    return {
        name: known.get(name, backbone.weight(name)) + scale * tree[f"B.{index:02d}"] @ tree[f"A.{index:02d}"]
        for index, name in enumerate(backbone.attention)
    }


def beside(tree: Tree, name: str, scale: float) -> Change:
    """What a layer adds to its output: the same as an adapted weight, where nothing as large as a weight is made."""
    a, b = tree[f"A.{name}"], tree[f"B.{name}"]
    return lambda x: torch.nn.functional.linear(torch.nn.functional.linear(x, a), b) * scale
