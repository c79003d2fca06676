"""A frozen transformer that methods adapt: weights replaced, blocks added to, prompts put before its tokens.

The network itself never changes. What a method trains is handed in with every call, so the same network serves all
clients, and gradients reach what was handed in and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.data.dataset import Kind
from fedkeel.errors import FedkeelError
from fedkeel.models.encoders import Encoder
from fedkeel.tree import Tree

# What the families of models call the same layers.
QUERY, VALUE = ("query", "q_proj", "q_lin"), ("value", "v_proj", "v_lin")
MLP = (("intermediate.dense", "output.dense"), ("mlp.fc1", "mlp.fc2"), ("ffn.lin1", "ffn.lin2"))
TOWERS: dict[Kind, str] = {"images": "vision_model.", "texts": "text_model."}

Added = Callable[[Tensor], Tensor]
"""From the input of a block's MLP to what is added to its output."""


class _Whole(nn.Module):
    """Inputs to features, with the network as a submodule whose weights can be replaced for one call."""

    def __init__(self, network: nn.Module, apply: Callable[[dict[str, Tensor]], Tensor]) -> None:
        super().__init__()
        self.network = network
        self._features = apply

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self._features(inputs)


@dataclass(frozen=True)
class Backbone:
    """An encoder of transformers, opened for methods that train on inputs."""

    encoder: str
    weights: str
    transform: str
    kind: Kind
    dim: int
    whole: _Whole
    read: Callable[[list[Any], np.ndarray], dict[str, Tensor]]

    @classmethod
    def of(cls, encoder: Encoder) -> Backbone:
        model = encoder.model
        if model.apply is None or model.read is None:
            raise FedkeelError(
                f"encoder {encoder.name} is no transformer: methods that train inside the encoder need minilm or an "
                "hf: model, set data.encoder"
            )
        whole = _Whole(model.network, model.apply)
        backbone = cls(encoder.name, encoder.weights, encoder.transform, encoder.kind, model.dim, whole, model.read)
        if not backbone.mlps or not backbone.attention:
            raise FedkeelError(f"encoder {encoder.name}: no attention or MLP layers of a known name; use a ViT or BERT")
        return backbone

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        """The modules of the tower in use, by name."""
        named = dict(self.whole.network.named_modules())
        tower = TOWERS[self.kind]
        return {name: module for name, module in named.items() if name.startswith(tower)} or named

    @cached_property
    def attention(self) -> list[str]:
        """The names of the query and value weights, block by block: what LoRA adapts."""
        return [f"{name}.weight" for name in self._modules if name.endswith(QUERY + VALUE)]

    @cached_property
    def mlps(self) -> list[tuple[str, str]]:
        """The first and the second linear layer of each block's MLP."""
        stems = [(n.removesuffix(p[0]), *p) for n in self._modules for p in MLP if n.endswith(p[0])]
        return [(stem + first, stem + second) for stem, first, second in stems if stem + second in self._modules]

    @property
    def width(self) -> int:
        """The length of a token's vector."""
        first = self._modules[self.mlps[0][0]]
        assert isinstance(first, nn.Linear)
        return first.in_features

    def weight(self, name: str) -> Tensor:
        """A weight of the frozen network."""
        return self.whole.network.get_parameter(name).detach()

    def inputs(self, rows: Sequence[Any] | np.ndarray, tokens: int) -> Inputs:
        """Rows to be read when they are needed; of a text at most this many tokens."""
        if self.kind == "images":
            return Inputs(self, lambda index: self.read([rows[i] for i in index], index), torch.arange(len(rows)))
        whole = self.read(list(rows), np.arange(len(rows)))
        whole = {name: value[:, :tokens] for name, value in whole.items()}

        def picked(index: np.ndarray) -> dict[str, Tensor]:
            part = {name: value[torch.from_numpy(index)] for name, value in whole.items()}
            longest = int(part["attention_mask"].sum(1).max())
            return {name: value[:, :longest] for name, value in part.items()}

        return Inputs(self, picked, torch.arange(len(rows)))

    def features(
        self,
        inputs: dict[str, Tensor],
        weights: Tree | None = None,
        added: Sequence[Added] = (),
        prompts: Tensor | None = None,
    ) -> Tensor:
        """One vector per row, with weights replaced, something added to each MLP, prompts after the first token."""
        with ExitStack() as stack:
            for pair, extra in zip(self.mlps, added, strict=False):
                stack.enter_context(_adding(self._modules[pair[0]], self._modules[pair[1]], extra))
            if prompts is not None:
                inputs = _longer(inputs, len(prompts))
                stack.enter_context(_prompted(self._embeddings, prompts))
            replaced = {f"network.{name}": value for name, value in (weights or {}).items()}
            return torch.func.functional_call(self.whole, replaced, (inputs,))  # type: ignore[no-any-return]

    @property
    def _embeddings(self) -> nn.Module:
        return next(module for name, module in self._modules.items() if name.endswith("embeddings"))


@dataclass(frozen=True)
class Inputs:
    """Rows of a source, picked but not yet read. Indexing picks among them, as with a tensor of features."""

    backbone: Backbone
    read: Callable[[np.ndarray], dict[str, Tensor]]
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the features they would have."""
        return len(self), self.backbone.dim

    def __getitem__(self, which: Tensor | np.ndarray | slice) -> Inputs:
        return Inputs(self.backbone, self.read, self.index[which])

    def parts(self, size: int) -> Iterator[Inputs]:
        for first in range(0, len(self), size):
            yield self[first : first + size]

    def features(self, **adapted: Any) -> Tensor:
        """The rows encoded, adapted as ``Backbone.features`` says."""
        return self.backbone.features(self.read(self.index.numpy()), **adapted)


@contextmanager
def _adding(first: nn.Module, second: nn.Module, extra: Added) -> Iterator[None]:
    seen: list[Tensor] = []
    hooks = (
        first.register_forward_pre_hook(lambda module, args: seen.append(args[0])),
        second.register_forward_hook(lambda module, args, output: output + extra(seen.pop())),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _prompted(embeddings: nn.Module, prompts: Tensor) -> Iterator[None]:
    def insert(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        every = prompts.expand(len(output), *prompts.shape)
        return torch.cat([output[:, :1], every, output[:, 1:]], dim=1)

    hook = embeddings.register_forward_hook(insert)
    try:
        yield
    finally:
        hook.remove()


def _longer(inputs: dict[str, Tensor], prompts: int) -> dict[str, Tensor]:
    """With an attention mask that also covers the prompts, where the model has a mask."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return inputs
    return {**inputs, "attention_mask": torch.cat([mask.new_ones(len(mask), prompts), mask], dim=1)}
