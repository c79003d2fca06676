"""LoRA in the item tower: a frozen linear layer W_0 becomes W_0 + (alpha / sqrt(rank)) B A.

Hu et al., LoRA, ICLR 2022, scaled as rsLoRA (Kalajdzievski, 2023) does it. As in FedPuReL's released code the queries,
keys and values of the item tower are adapted, A starts uniform within 1 / sqrt(in) (Kaiming's with a = sqrt(5)), B at
zero, and class features are those of the template. That code has dropout of 0.25 before A; here there is none (our
choice: every random draw belongs to a key).

Blocks below the first adapted one never change, so what comes out of them is computed once.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import torch
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.dual.peft.module import Module, module
from fedkeel.models.dual import Dual
from fedkeel.models.encoders import Encoder
from fedkeel.models.halves import UpperHalf, lower_half, whole_tower
from fedkeel.models.layers import KEY, QUERY, VALUE, Tower, adding
from fedkeel.models.lora import Shape, beside, factors, uniform
from fedkeel.rows.items import Items

BELOW = "below"


@module("lora")
class Lora(Module):
    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    """what LoRA adds counts alpha / sqrt(rank) times"""
    targets: tuple[str, ...] = ()
    """names of the linear layers to adapt, such as query or fc1; none: queries, keys and values"""
    blocks: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """of the item tower, from 0, in which layers are adapted; none: all"""
    text_tokens: int = Field(128, ge=1)
    """how much of a text LoRA reads, zero-shot features included"""

    @property
    def first(self) -> int:
        """The first adapted block."""
        return min(self.blocks, default=0)

    def encoders(self, item: Encoder) -> dict[str, Encoder]:
        below = {BELOW: lower_half(item, self.first, self.text_tokens)}
        return below | ({"features": whole_tower(item, self.text_tokens)} if item.kind == "texts" else {})

    def upper(self, item: Encoder) -> Adapted:
        return Adapted(item, self)

    def fresh(self, dual: Dual, seed: int) -> Tree:
        shapes: dict[str, Shape] = dual.upper.shapes
        return factors(shapes, lambda name, into: uniform(self.rank, into, seed, "lora", name))

    def logits(self, params: Tree, x: Items) -> Tensor:
        features = x.dual.upper.features(params, x.get(BELOW))
        return x.logits(torch.nn.functional.normalize(features, dim=-1), x.dual.zero_shot)

    def layers(self, tower: Tower) -> dict[str, Shape]:
        """The layers to adapt, by block and name: "5.attention.self.query"."""
        count = len(tower.blocks)
        if self.blocks and max(self.blocks) >= count:
            raise FedkeelError(
                f"method.blocks = {max(self.blocks)}: the item tower of encoder {tower.encoder} has {count} blocks, "
                f"expected 0 to {count - 1}"
            )
        chosen = sorted(set(self.blocks)) or range(count)
        linear = {f"{block}.{name}": layer for block in chosen for name, layer in tower.linear(block).items()}
        ends = self.targets or QUERY + KEY + VALUE
        found = {name: layer for name, layer in linear.items() if name.endswith(tuple(f".{end}" for end in ends))}
        lost = [end for end in ends if not any(name.endswith(f".{end}") for name in found)]
        if not found or (self.targets and lost):
            there = dict.fromkeys(name.rpartition(".")[2] for name in linear)
            asked = ", ".join(lost if self.targets else ("query, key, value",))
            raise FedkeelError(
                f"method.targets: no linear layer of encoder {tower.encoder} is called {asked}; its blocks have "
                f"{', '.join(there)}: choose among them"
            )
        return {name: tuple(layer.weight.shape) for name, layer in found.items()}


class Adapted(UpperHalf):
    """The item tower from the first adapted block on. What is trained is handed in with every call."""

    def __init__(self, item: Encoder, lora: Lora) -> None:
        model = item.load()
        shapes = lora.layers(Tower(item.name, model.network, item.kind))
        super().__init__(item, model, lora.first)
        self.item, self.lora, self.shapes = item, lora, shapes
        self.network.eval().requires_grad_(False)

    def _layer(self, name: str) -> torch.nn.Module:
        """In what is left of the list of blocks."""
        block, _, rest = name.partition(".")
        return self.tower.blocks[int(block) - self.lora.first].get_submodule(rest)

    def twin(self) -> Adapted:
        """The same in memory of its own, so that another thread may use it."""
        return Adapted(self.item, self.lora)

    def features(self, params: Tree, below: Tensor) -> Tensor:
        """Of rows whose hidden states below the first adapted block are given."""
        scale = self.lora.alpha / self.lora.rank**0.5
        with ExitStack() as stack:
            for name in self.shapes:
                layer = self._layer(name)
                stack.enter_context(adding(layer, layer, beside(params, name, scale)))
            found: Tensor = self(below)
        return found
