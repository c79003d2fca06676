"""FedAvg of a softmax head on frozen features ("LP-softmax" in the OvA-LP paper's ablation), or of a whole network.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1:
    w_{t+1} = sum_k (n_k / n) w^k_{t+1}
with the cross-entropy of OvA-LP Section 3.3, whose gradient with respect to w_c is -(1[y = c] - p_c(x)) h(x).

With ``tune = "network"`` the encoder is trained too, end to end on inputs; its head has a bias and starts as PyTorch
starts linear layers. The statistics of batch norms are averaged like everything else, and move in local training only;
dropout is off (our choices).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedkeel.core.method import Batch, State, Task, Visit, register
from fedkeel.core.tree import HEAD, NETWORK, Tensor, Tree
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.methods.network import WHOLE, NetworkModel, fresh_network
from fedkeel.models.losses import softmax_residual, softmax_rows


@register("fedavg", paper="LP-softmax: one softmax head, averaged by rows (McMahan et al., AISTATS 2017)")
class FedAvg(LinearProbe):
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

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return softmax_rows(logits, batch.y)

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return softmax_residual(logits, batch.y)

    @property
    def in_closed_form(self) -> bool:
        return self.tune == "head" and type(self).loss is FedAvg.loss

    def loss(self, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tensor:
        scores = self.network.logits({**visit.down, **visit.mine, **params}, batch.x)
        return batch.mean(self.rows(scores, batch, visit))

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        if self.tune == "head":
            return super().predict(state, mine, x)
        return self.network.predict({**state.shared, **mine}, x)
