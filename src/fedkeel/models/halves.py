"""A transformer in two halves: what comes out of the blocks below a cut is kept, the blocks above it run in every step.

The lower half turns rows into the hidden states before the first block of the upper one, flat, with zeros where a text
has no more tokens. The upper half turns these into features, as the whole network would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.tree import Tensor
from fedkeel.data.dataset import Kind
from fedkeel.models.encoders import Encoder, Model
from fedkeel.models.layers import Tower, seeing
from fedkeel.models.transformers_encoder import ANY_ROW, Apply, Read, in_batches


def cut_texts(read: Read, kind: Kind, tokens: int) -> Read:
    """Reads no more than so many tokens of a text."""
    if kind != "texts":
        return read
    return lambda rows, positions: {name: value[:, :tokens] for name, value in read(rows, positions).items()}


def whole_tower(item: Encoder, tokens: int) -> Encoder:
    """The item tower that reads no more than so many tokens of a text."""

    def load() -> Model:
        model = item.model
        assert model.read is not None
        assert model.apply is not None
        return encoding(item, cut_texts(model.read, item.kind, tokens), model.apply)

    return Encoder(item.name, item.kind, item.weights, f"{item.transform}, first {tokens} tokens", load)


def lower_half(item: Encoder, first: int, tokens: int) -> Encoder:
    """The hidden states of rows before a block of the item tower: (rows, tokens x width), zero where no token is.

    Of a text no more than so many tokens are read; an image has as many as the tower makes of it.
    """

    def load() -> Model:
        model = item.load()
        read, apply, tower = model.read, model.apply, Tower(item.name, model.network, item.kind)
        assert read is not None
        assert apply is not None
        tower.keep(slice(first + 1))

        def hidden(inputs: dict[str, Tensor]) -> Tensor:
            with seeing(tower.blocks[first]) as seen:
                apply(inputs)
            states = seen[0]
            if item.kind == "texts":
                states = states * inputs["attention_mask"].unsqueeze(2)
                states = torch.nn.functional.pad(states, (0, 0, 0, tokens - states.shape[1]))
            return states.flatten(1)

        return encoding(item, cut_texts(read, item.kind, tokens), hidden)

    which = f"first {tokens} tokens, " if item.kind == "texts" else ""
    return Encoder(item.name, item.kind, item.weights, f"{item.transform}, {which}before block {first}", load)


def encoding(item: Encoder, read: Read, apply: Apply) -> Model:
    """What encodes rows of an item tower's kind in batches, as ``read`` and ``apply`` say."""

    def encode(rows: Sequence[Any] | np.ndarray) -> np.ndarray:
        return in_batches(item.name, read, apply, rows, dim)

    dim = 0
    dim = encode(ANY_ROW[item.kind]).shape[1]
    return Model(dim, encode, None, apply, read)


class UpperHalf:
    """The item tower from a block on: what ``lower_half`` gives in, the tower's features out."""

    def __init__(self, item: Encoder, model: Model, first: int) -> None:
        """Takes the model over: the blocks below are taken out of its network."""
        assert model.read is not None
        assert model.apply is not None
        self.kind, self._features_of = item.kind, model.apply
        self.network: torch.nn.Module = model.network
        self.tower = Tower(item.name, self.network, item.kind)
        self._states = torch.empty(0)
        try:
            whole, below = self._look(model.read(ANY_ROW[item.kind], np.arange(1)), first)
            self.width = below.shape[-1]
            self._cut(first)
            with torch.no_grad():
                agrees = torch.allclose(self(below.flatten(1)), whole, rtol=1e-3, atol=1e-4)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # of a network of another make
            agrees = False
        if not agrees:
            raise FedkeelError(
                f"encoder {item.name} cannot be cut before block {first}: its blocks need more than hidden states and "
                "a mask; set data.encoder to another one, such as minilm, a BERT or a CLIP"
            )

    def _look(self, inputs: dict[str, Tensor], first: int) -> tuple[Tensor, Tensor]:
        """(a row's features by the whole tower, its hidden states before the cut)"""
        with torch.no_grad(), seeing(self.tower.blocks[first]) as seen:
            return self._features_of(inputs), seen[0]

    def _cut(self, first: int) -> None:
        """The embeddings give the hidden states; what other layers do to them before the first block is undone."""
        self.tower.keep(slice(first, None))
        self.tower.embeddings.forward = lambda *args, **kwargs: self._states
        self.tower.blocks[0].register_forward_pre_hook(lambda module, args: (self._states, *args[1:]))

    def __call__(self, below: Tensor) -> Tensor:
        states = below.reshape(len(below), -1, self.width)
        inputs = {"pixel_values": states}  # not looked at: the embeddings give the states
        if self.kind == "texts":
            real = states.ne(0).any(2)
            longest = int(real.sum(1).max())
            states, mask = states[:, :longest], real[:, :longest].long()
            inputs = {"input_ids": mask, "attention_mask": mask}
        self._states = states
        features: Tensor = self._features_of(inputs)
        return features
