"""A network that methods adapt or train: weights replaced, blocks added to, prompts put before its tokens.

The network itself never changes. What a method trains is handed in with every call, so the same network serves all
clients, and gradients reach what was handed in and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Task
from fedkeel.core.tree import BODY, NORM, STATS, Tensor, Tree
from fedkeel.data.dataset import Kind
from fedkeel.models.encoders import Encoder, Model
from fedkeel.models.layers import Change, Tower, adding, changing

if TYPE_CHECKING:
    from torch.nn.modules.batchnorm import _BatchNorm

    from fedkeel.models.whole import Whole


@dataclass(frozen=True)
class Backbone:
    """An encoder's network, opened for methods that train on inputs."""

    encoder: str
    weights: str
    transform: str
    kind: Kind
    dim: int
    whole: Whole
    read: Callable[[Any, np.ndarray], dict[str, Tensor]]
    fresh: Callable[[int], torch.nn.Module] | None = None
    """of a network without trained weights: seed -> the network as its training starts"""
    load: Callable[[], Model] | None = None

    @classmethod
    def of(cls, encoder: Encoder) -> Backbone:
        from fedkeel.models.whole import Whole

        model = encoder.model
        if model.apply is None or model.read is None:
            raise FedkeelError(
                f"encoder {encoder.name} has no network to train: set data.encoder to one that has, "
                "cnn, resnet18-small, efficientnet-lite0, minilm or hf:ID-or-folder"
            )
        whole = Whole(model.network, model.apply)
        about = encoder.name, encoder.weights, encoder.transform, encoder.kind, model.dim
        return cls(*about, whole, model.read, model.fresh, encoder.load)

    @classmethod
    def in_task(cls, task: Task) -> Backbone:
        """The network that a method starts from."""
        assert isinstance(task.reader, Backbone)
        return task.reader

    def twin(self) -> Backbone:
        """The same in memory of its own, so that another thread may use it."""
        from fedkeel.models.whole import Whole

        assert self.load is not None
        model = self.load()
        assert model.apply is not None
        assert model.network is not self.whole.network
        return replace(self, whole=Whole(model.network, model.apply))

    def must_be_transformer(self) -> None:
        if not self.mlps or not self.attention:
            raise FedkeelError(
                f"encoder {self.encoder} is no transformer with attention and MLP layers of a known name: methods that "
                "adapt such layers need minilm, vit-tiny or an hf: model such as a ViT or BERT, set data.encoder"
            )

    @cached_property
    def _norms(self) -> dict[str, _BatchNorm]:
        """The batch norms, by name."""
        kind = torch.nn.modules.batchnorm._BatchNorm
        norms = {name: module for name, module in self._modules.items() if isinstance(module, kind)}
        for norm in norms.values():
            norm.num_batches_tracked = None  # not needed where the momentum is fixed
        return norms

    def tree(self, seed: int) -> Tree:
        """All weights as a tree, as they were trained, or as training starts with this seed."""
        network = self.whole.network if self.fresh is None else self.fresh(seed)
        found: Tree = {}
        for name, value in network.named_parameters():
            module, _, _ = name.rpartition(".")
            if module in self._modules or not module:
                found[(NORM if module in self._norms else BODY) + name] = value.detach().clone()
        for name, statistic in network.named_buffers():
            if name.endswith(("running_mean", "running_var")) and name.rpartition(".")[0] in self._norms:
                found[STATS + name] = statistic.detach().clone()
        return found

    @cached_property
    def _tower(self) -> Tower:
        return Tower(self.encoder, self.whole.network, self.kind)

    @cached_property
    def _modules(self) -> dict[str, torch.nn.Module]:
        """The modules of the tower in use, by name."""
        return self._tower.modules

    @cached_property
    def attention(self) -> list[str]:
        """The names of the query and value weights, block by block: what LoRA adapts."""
        return self._tower.attention

    @cached_property
    def mlps(self) -> list[tuple[str, str]]:
        """The first and the second linear layer of each block's MLP."""
        return self._tower.mlps

    @property
    def width(self) -> int:
        """The length of a token's vector."""
        first = self._modules[self.mlps[0][0]]
        assert isinstance(first, torch.nn.Linear)
        return first.in_features

    def weight(self, name: str) -> Tensor:
        """A weight of the frozen network."""
        return self.whole.network.get_parameter(name).detach()

    def features(
        self,
        inputs: dict[str, Tensor],
        weights: Tree | None = None,
        added: Sequence[Change] = (),
        after: Sequence[Change] = (),
        prompts: Tensor | None = None,
        moves: bool = False,
    ) -> Tensor:
        """One vector per row, with weights replaced, something added to each MLP, prompts after the first token.

        ``added`` gets the input of each MLP, ``after`` its output.
        If the statistics move, batch norms use those of the batch and bring the replaced ones up to date in place; a
        single row has none of its own.
        """
        with ExitStack() as stack:
            if moves and len(next(iter(inputs.values()))) > 1:
                stack.enter_context(_in_training(list(self._norms.values())))
            for pair, extra in zip(self.mlps, added, strict=False):
                stack.enter_context(adding(self._modules[pair[0]], self._modules[pair[1]], extra))
            for pair, extra in zip(self.mlps, after, strict=False):
                stack.enter_context(changing(self._modules[pair[1]], partial(_followed, extra)))
            if prompts is not None:
                inputs = _longer(inputs, len(prompts))
                stack.enter_context(changing(self._tower.embeddings, partial(_prompted, prompts)))
            replaced = {f"network.{name}": value for name, value in (weights or {}).items()}
            return torch.func.functional_call(self.whole, replaced, (inputs,))  # type: ignore[no-any-return]


def network_weights(tree: Tree) -> Tree:
    """The tensors of a tree that are a network's, under the names that they have in it."""
    prefixes = (BODY, NORM, STATS)
    return {name.partition(".")[2]: value for name, value in tree.items() if name.startswith(prefixes)}


@contextmanager
def _in_training(norms: Sequence[torch.nn.Module]) -> Iterator[None]:
    for norm in norms:
        norm.train()
    try:
        yield
    finally:
        for norm in norms:
            norm.eval()


def _followed(extra: Change, output: Tensor) -> Tensor:
    return output + extra(output)


def _prompted(prompts: Tensor, tokens: Tensor) -> Tensor:
    every = prompts.expand(len(tokens), *prompts.shape)
    return torch.cat([tokens[:, :1], every, tokens[:, 1:]], dim=1)


def _longer(inputs: dict[str, Tensor], prompts: int) -> dict[str, Tensor]:
    """With an attention mask that also covers the prompts, where the model has a mask."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return inputs
    return {**inputs, "attention_mask": torch.cat([mask.new_ones(len(mask), prompts), mask], dim=1)}
