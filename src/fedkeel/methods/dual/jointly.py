"""What methods share in which a client has a prompt of its own beside the shared one and trains both in every visit.

Their papers train both parts together and average the shared one by rows: that is the phase "joint". So that methods
are compared with equal means (our choice), ``schedule = "sequential"`` adds the final phase that every other method of
a dual encoder has: ``personal_epochs`` passes over a client's rows with the shared part frozen. "interleaved" is
the papers' joint training alone. Without a client's own part the model is the shared prompt by itself (our choice).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedkeel.core.method import Batch, Phase, Visit
from fedkeel.core.tree import Tensor, Tree, take
from fedkeel.methods.dual.base import OWN, PEFT, DualTuned
from fedkeel.methods.dual.peft.module import Module
from fedkeel.methods.dual.peft.prompt import Prompt
from fedkeel.rows.items import Items


class Jointly(Prompt, DualTuned):
    kind: ClassVar[type[Module]] = Prompt

    schedule: Literal["sequential", "interleaved"] = "sequential"
    """both parts are trained in every round; sequential: and the personal one alone after the last"""

    def both(self, shared: Tree, own: Tree, x: Items) -> Tensor:
        """The logits of a client's model: of its own tensors and the shared ones."""
        raise NotImplementedError

    def plan(self, round: int) -> list[Phase]:
        first, *last = super().plan(round)
        return [self.phase("joint", (PEFT, OWN), (PEFT,), cohort=first.cohort), *last]

    def loss(self, params: Tree, batch: Batch[Items], visit: Visit) -> Tensor:
        x = batch.x
        whole = {**visit.down, **params}
        return self.task_loss(self.both(take(PEFT, whole), take(OWN, whole), x), params, batch)

    def branches(self, shared: Tree, mine: Tree, x: Items) -> tuple[Tensor, ...]:
        common, own = take(PEFT, shared), take(OWN, mine)
        return (self.both(common, own, x) if own else self.module.logits(common, x),)
