"""FedSA-LoRA on a dual encoder: the A of every adapter is shared, the B stays with its client.

Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025: both are trained in every
visit, only A is averaged (by rows). A client's model is the shared A with its own B.

B never leaves a client and starts at zero, so the global model is the frozen one: zero-shot (our choice; the paper
evaluates the clients' own models). With schedule "sequential" every client trains its B once more after the last round,
for ``personal_epochs`` and with A frozen, so that all methods spend the same on personal models (our choice as well);
with "interleaved" the B of its last visit is kept.
"""

from __future__ import annotations

from typing import ClassVar

from fedkeel.core.method import Batch, Phase, Visit, register
from fedkeel.core.tree import Tensor, Tree, put, select, take
from fedkeel.methods.dual.base import OWN, PEFT, DualTuned
from fedkeel.methods.dual.peft.lora import Lora
from fedkeel.methods.dual.peft.module import Module
from fedkeel.rows.items import Items

A, B = "A.", "B."


@register("fedsa-clip-lora", paper="LoRA in the item tower, shared A and personal B (Guo et al., ICLR 2025)")
class FedSAClipLora(Lora, DualTuned):
    kind: ClassVar[type[Module]] = Lora

    @property
    def first_visit(self) -> tuple[str, ...]:
        return (PEFT + B,)

    def private(self, down: Tree) -> Tree:
        return put(OWN, select(take(PEFT, down), (B,)))

    def plan(self, round: int) -> list[Phase]:
        shared, own = (PEFT + A,), (OWN + B,)
        cohort = "all" if round == 1 else "sample"
        phases = [self.phase("share A", shared + own, shared, gets=shared, cohort=cohort)]
        if self.schedule == "sequential" and round == self.rounds:
            phases.append(self.phase("personal", own, gets=shared, cohort="all", epochs=self.personal_epochs))
        return phases

    def loss(self, params: Tree, batch: Batch[Items], visit: Visit) -> Tensor:
        x = batch.x
        factors = {**take(PEFT, visit.down), **take(PEFT, params), **take(OWN, params)}
        return self.task_loss(self.module.logits(factors, x), params, batch)

    def branches(self, shared: Tree, mine: Tree, x: Items) -> tuple[Tensor, ...]:
        own = take(OWN, mine)
        return (self.module.logits({**take(PEFT, shared), **own}, x) if own else x.zero_shot,)
