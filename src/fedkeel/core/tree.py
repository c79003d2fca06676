"""Flat named tensors: what a model, an update and a client's private state are all made of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor as Tensor
else:

    class _Named(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor)

    class Tensor(metaclass=_Named):
        """torch's, for who names the type: that need not load torch, so mistakes are told without it."""


Tree = dict[str, Tensor]

HEAD, BODY, NORM, STATS = "head.", "body.", "norm.", "stats."
"""Prefixes of a network's tensors: the head, the parameters below it, those of batch norms, and their statistics.

Statistics move when rows are encoded in training; no optimizer touches them."""
NETWORK = (HEAD, BODY, NORM, STATS)


def to_bytes(tree: Tree, metadata: dict[str, str] | None = None) -> bytes:
    """As safetensors writes them."""
    from safetensors.torch import save  # loads torch

    return save(tree, metadata)


def from_bytes(data: bytes) -> Tree:
    from safetensors.torch import load

    return load(data)


def select(tree: Tree, prefixes: Sequence[str]) -> Tree:
    """The tensors whose name starts with one of the prefixes."""
    return {name: tensor for name, tensor in tree.items() if name.startswith(tuple(prefixes))}


def learnt(tree: Tree) -> Tree:
    """What an optimizer moves: everything but statistics."""
    return {name: tensor for name, tensor in tree.items() if not name.startswith(STATS)}


def digest(tree: Tree) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order of the names."""
    whole = hashlib.sha256()
    for name in sorted(tree):
        tensor = tree[name].detach().contiguous()
        whole.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose tensors have a leading axis, one entry per given tree."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]} if trees else {}


def unstack(tree: Tree, index: int) -> Tree:
    return {name: tensor[index] for name, tensor in tree.items()}


def weighted(tree: Tree, weights: Tensor) -> Tree:
    """The sum over the leading axis with these weights, in float64."""
    return {name: torch.tensordot(weights.double(), value.double(), 1).to(value.dtype) for name, value in tree.items()}


def put(prefix: str, tree: Tree) -> Tree:
    """The tree under longer names."""
    return {prefix + name: tensor for name, tensor in tree.items()}


def take(prefix: str, tree: Tree) -> Tree:
    """What was put under the prefix, under its own names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tree.items() if name.startswith(prefix)}
