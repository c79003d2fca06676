"""What all methods that tune a transformer share: a softmax head on features that the method's own parameters shape.

A method adds ``adapters``, its parameters at the start, and ``adapted``, what they do to the frozen network. The head
starts at zero, and its features have length sqrt(d), as after a layer norm: the learning rates of the papers are those
of transformers whose features have it (both our choices). Inputs, not features, are read in every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Task, Trained, Visit
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import logits, no_head
from fedkeel.methods.network import NetworkModel
from fedkeel.rows.inputs import Inputs


class Tuned(Trained[Inputs]):
    batch: int = Field(32, ge=1)
    epochs: int = Field(1, ge=1)
    lr: float = Field(1e-3, gt=0)
    tokens: int = Field(128, ge=2)
    """of a text, read at most this many tokens"""

    @property
    def reads(self) -> Literal["features", "inputs"]:
        return "inputs"

    @property
    def network(self) -> NetworkModel:
        return NetworkModel(self.features, head_logits, adapters=True, part=64)

    def adapters(self, task: Task) -> Tree:
        """The method's own parameters at the start."""
        raise NotImplementedError

    def adapted(self, params: Tree, x: Inputs) -> Mapping[str, Any]:
        """What the parameters do to the network: arguments of ``Inputs.features``."""
        raise NotImplementedError

    def start(self, task: Task) -> State:
        return State({**self.adapters(task), **no_head(task.dim, task.classes)})

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", ("",), ("",))]

    def loss(self, params: Tree, batch: Batch[Inputs], visit: Visit) -> Tensor:
        return self.network.cross_entropy({**visit.down, **visit.mine, **params}, batch)

    def features(self, params: Tree, x: Inputs) -> Tensor:
        features: Tensor = x.features(**self.adapted(params, x))
        return features

    def predict(self, state: State, mine: Tree, x: Inputs) -> Tensor:
        return self.network.predict({**state.shared, **mine}, x)


def head_logits(params: Tree, features: Tensor) -> Tensor:
    return logits(params, features.shape[-1] ** 0.5 * torch.nn.functional.normalize(features, dim=-1))
