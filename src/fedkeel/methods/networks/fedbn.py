"""FedBN: batch norms stay with the client, everything else is averaged.

Li, Jiang, Zhang, Kamp, Dou, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
Algorithm 1: of every layer that is no batch norm the server takes the mean; weight, bias and running statistics of
batch norms never leave a client and are what makes its model its own.

What is shared is no model by itself: it has no batch norms. Our choices: a client starts with the batch norms of an
untrained network, and one that was never visited predicts with those.
"""

from __future__ import annotations

from typing import ClassVar

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Phase, State, Task, register
from fedkeel.core.tree import BODY, HEAD, NETWORK, NORM, STATS, Tree, select
from fedkeel.methods.networks.base import Network, copied
from fedkeel.models.backbone import Backbone

SHARED = (HEAD, BODY)


@register("fedbn", paper="batch norms stay with the client, the rest is averaged (Li et al., ICLR 2021)")
class FedBN(Network):
    common: ClassVar[bool] = False

    def start(self, task: Task) -> State:
        whole = super().start(task).shared
        norms = select(whole, (NORM, STATS))
        if not norms:
            raise FedkeelError(
                f"fedbn keeps batch norms with the clients and encoder {Backbone.in_task(task).encoder} has none: "
                "set data.encoder to cnn or resnet18-small, or take another method"
            )
        return State(select(whole, SHARED), norms)

    @property
    def first_visit(self) -> tuple[str, ...]:
        return (NORM, STATS)

    def private(self, down: Tree) -> Tree:
        return copied(select(down, self.first_visit))

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", NETWORK, SHARED, gets=SHARED)]
