"""FedRep: the encoder is shared, the head stays with the client.

Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared Representations for Personalized Federated Learning, ICML
2021, Algorithm 1. With the encoder phi that came down, a client first trains its head h_i for several epochs, phi
frozen, then phi for one, h_i frozen; only phi is averaged.

The head never leaves the client, so what is shared is no model by itself. Our choices: batch norms belong to the
encoder and use the averaged statistics while the head is trained, so that features are computed once; heads start
alike, and a client that was never visited predicts with that start. The encoder goes down for each of the two phases,
which doubles the bytes of a protocol that keeps it in between.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.core.method import Phase, State, Task, Visit, register
from fedkeel.core.tree import HEAD, Tensor, Tree, select
from fedkeel.methods.networks.base import ENCODER, Network, copied
from fedkeel.rows.inputs import Inputs


@register("fedrep", paper="a shared encoder under personal heads (Collins et al., ICML 2021)")
class FedRep(Network):
    common: ClassVar[bool] = False

    head_epochs: int = Field(5, ge=1)
    """passes for the head, before ``epochs`` passes for the encoder"""

    def start(self, task: Task) -> State:
        whole = super().start(task).shared
        return State(select(whole, ENCODER), select(whole, (HEAD,)))

    @property
    def first_visit(self) -> tuple[str, ...]:
        return (HEAD,)

    def private(self, down: Tree) -> Tree:
        return copied(select(down, self.first_visit))

    def plan(self, round: int) -> list[Phase]:
        head = self.phase("head", (HEAD,), gets=ENCODER, epochs=self.head_epochs)
        return [head, self.phase("encoder", ENCODER, ENCODER, gets=ENCODER, cohort="same")]

    def once(self, x: Tensor | Inputs, visit: Visit) -> Tensor | Inputs:
        return self.network.encoded(visit.down, x) if visit.phase.trains == (HEAD,) else x
