"""Where the layers of a transformer are, whatever its family calls them, and how they are changed for one call.

The network itself stays as it is: what is added to a layer lasts as long as the block of code that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.tree import Tensor
from fedkeel.data.dataset import Kind

# What the families of models call the same layers.
QUERY, KEY, VALUE = ("query", "q_proj", "q_lin"), ("key", "k_proj", "k_lin"), ("value", "v_proj", "v_lin")
MLP = (("intermediate.dense", "output.dense"), ("mlp.fc1", "mlp.fc2"), ("ffn.lin1", "ffn.lin2"))
TOWERS: dict[Kind, str] = {"images": "vision_model.", "texts": "text_model."}

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Tower:
    """The part of an encoder's network that reads rows of a kind: one of two towers, or all of it."""

    encoder: str
    network: torch.nn.Module
    kind: Kind

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """By their names in the network."""
        named = dict(self.network.named_modules())
        return {name: module for name, module in named.items() if name.startswith(TOWERS[self.kind])} or named

    @property
    def attention(self) -> list[str]:
        """The names of the query and value weights, block by block."""
        return [f"{name}.weight" for name in self.modules if name.endswith(QUERY + VALUE)]

    @property
    def mlps(self) -> list[tuple[str, str]]:
        """The first and the second linear layer of each block's MLP."""
        modules = self.modules
        stems = [(n.removesuffix(p[0]), *p) for n in modules for p in MLP if n.endswith(p[0])]
        return [(stem + first, stem + second) for stem, first, second in stems if stem + second in modules]

    @property
    def embeddings(self) -> torch.nn.Module:
        """What turns a row into the vectors of its tokens."""
        found = [module for name, module in self.modules.items() if name.endswith("embeddings")]
        return found[0]

    @cached_property
    def listed(self) -> str:
        """The name of the list of blocks in the network."""
        for name, module in self.modules.items():
            parts = module.modules() if isinstance(module, torch.nn.ModuleList) else ()
            if any(isinstance(part, torch.nn.Linear) for part in parts):
                return name
        raise FedkeelError(
            f"encoder {self.encoder} is no transformer: it has no list of blocks with linear layers; set data.encoder "
            "to one that has, such as minilm or an hf: model"
        )

    @property
    def blocks(self) -> torch.nn.ModuleList:
        found = self.network.get_submodule(self.listed)
        assert isinstance(found, torch.nn.ModuleList)
        return found

    def linear(self, block: int) -> dict[str, torch.nn.Linear]:
        """The linear layers of a block, by their names in it."""
        parts = self.blocks[block].named_modules()
        return {name: module for name, module in parts if isinstance(module, torch.nn.Linear)}

    def keep(self, which: slice) -> None:
        """Leave only these blocks in the network, for good."""
        parent, _, last = self.listed.rpartition(".")
        setattr(self.network.get_submodule(parent), last, self.blocks[which])


@contextmanager
def seeing(module: torch.nn.Module) -> Iterator[list[Tensor]]:
    """What goes into the module, call by call."""
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def changing(module: torch.nn.Module, change: Change) -> Iterator[None]:
    """What comes out of the module, changed."""
    hook = module.register_forward_hook(lambda module, args, output: change(output))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def adding(first: torch.nn.Module, second: torch.nn.Module, extra: Change) -> Iterator[None]:
    """Something made of what goes into the first module is added to what comes out of the second, or of the same."""
    with seeing(first) as seen, changing(second, lambda output: output + extra(seen.pop())):
        yield
