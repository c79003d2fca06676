"""What trains either a linear head on frozen features, or with ``tune = "network"`` the encoder as well, by one loss.

A method adds ``rows``, its loss per row as a function of the logits. End to end it is that of the logits that the whole
network gives; its head then has a bias and starts as PyTorch starts linear layers. The statistics of batch norms are
averaged like everything else, and move in local training only; dropout is off (our choices).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedkeel.core.method import Batch, State, Task, Visit
from fedkeel.core.tree import HEAD, NETWORK, Tensor, Tree
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.methods.network import WHOLE, NetworkModel, fresh_network


class HeadOrNetwork(LinearProbe):
    network: ClassVar[NetworkModel] = WHOLE

    tune: Literal["head", "network"] = "head"
    """head: on frozen features; network: the encoder as well, end to end"""
    tokens: int = Field(128, ge=2)
    """network: of a text, read at most this many tokens"""

    @property
    def reads(self) -> Literal["features", "inputs"]:
        return "inputs" if self.tune == "network" else "features"

    @property
    def tuned(self) -> tuple[str, ...]:
        return NETWORK if self.tune == "network" else (HEAD,)

    def start(self, task: Task) -> State:
        if self.tune == "head":
            return super().start(task)
        return State(fresh_network(task))

    @property
    def in_closed_form(self) -> bool:
        return self.tune == "head" and type(self).loss is HeadOrNetwork.loss

    def loss(self, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tensor:
        scores = self.network.logits({**visit.down, **visit.mine, **params}, batch.x)
        return batch.mean(self.rows(scores, batch, visit))

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        if self.tune == "head":
            return super().predict(state, mine, x)
        return self.network.predict({**state.shared, **mine}, x)
