"""What all methods that tune a dual encoder share: a small module whose tensors are averaged by rows of the clients.

The shared module is ``peft.*``, a client's own is ``own.*`` and never leaves it. In round 1 everybody takes part, as in
FedPuReL's released code, so that everybody has a model of its own; afterwards a sample does.

A method whose module is shared as a whole says nothing of personal models. Here (our choice) a client's own module is
the shared one after more passes over its own rows: ``personal_epochs`` of them after the last round (schedule
"sequential"), or those of its last visit (schedule "interleaved").
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator

from fedkeel.core.method import AnyMethod, Batch, Phase, Rounds, State, Task, Trained, Visit
from fedkeel.core.tree import STATS, Tensor, Tree, put, select, take
from fedkeel.methods.dual import grab
from fedkeel.methods.dual.peft.module import Module
from fedkeel.models.dual import Dual
from fedkeel.models.losses import softmax_rows
from fedkeel.rows.items import Items

PEFT, OWN = "peft.", "own."
PART = 256
"""Rows that are predicted at once."""


class DualTuned(Trained[Items]):
    personal: ClassVar[bool] = True
    kind: ClassVar[type[Module]] = Module
    """Of the module that is tuned. A method has the settings of its module: it inherits from that kind."""

    rounds: Rounds = 100
    participation: float = Field(0.4, gt=0, le=1)
    epochs: int = Field(1, ge=1)
    batch: int = Field(32, ge=1)
    optimizer: Literal["adamw", "sgd"] = "sgd"
    lr: float = Field(1e-3, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    template: str = "auto"
    """what zero-shot class features are made of; auto: "a photo of a {}." for images, "a post about {}" for texts"""
    scale: float | None = Field(None, gt=0)
    """of the logits; unset: the model's own, 20 where it has none"""
    balance: Literal["none", "grab"] = "none"
    """grab: Fed-GraB's balancer scales the gradient at the logits class by class"""
    schedule: Literal["sequential", "interleaved"] = "sequential"
    """personal parts are trained after the last round, or in every round"""
    personal_epochs: int = Field(10, ge=1)
    """sequential: passes over its rows with which a client trains its own part"""

    @property
    def reads(self) -> Literal["features", "inputs", "dual"]:
        return "dual"

    @property
    def module(self) -> Module:
        """What is tuned."""
        return self.kind.of(self)

    @field_validator("template")
    @classmethod
    def _has_a_place(cls, template: str) -> str:
        if template != "auto" and template.count("{}") != 1:
            raise ValueError('a template has one {} for the name of the class, as in "a photo of a {}."')
        return template

    def start(self, task: Task) -> State:
        return State(put(PEFT, self.module.fresh(Dual.in_task(task), task.seed)))

    def plan(self, round: int) -> list[Phase]:
        phases = [self.phase("tune", (PEFT,), (PEFT,), cohort="all" if round == 1 else "sample")]
        if self.schedule == "sequential" and round == self.rounds:
            phases.append(self.phase("personal", (OWN,), cohort="all", epochs=self.personal_epochs))
        return phases

    def phase(self, name: str, trains: tuple[str, ...], sends: tuple[str, ...] = (), **more: Any) -> Phase:
        balanced = (STATS,) if self.balance == "grab" else ()
        return super().phase(name, trains + balanced, sends, **more)

    def own_start(self, visit: Visit) -> Tree:
        """Where a client's own module starts: as the shared one is when its own is first trained."""
        return put(OWN, take(PEFT, visit.down))

    def begin(self, visit: Visit) -> Tree:
        known = {**grab.fresh(len(visit.counts)), **self.own_start(visit), **visit.down, **visit.mine}
        return select(known, visit.phase.trains)

    def loss(self, params: Tree, batch: Batch[Items], visit: Visit) -> Tensor:
        x = batch.x
        tuned = take(OWN if visit.phase.name == "personal" else PEFT, params)
        return self.task_loss(self.module.logits(tuned, x), params, batch)

    def task_loss(self, logits: Tensor, params: Tree, batch: Batch[Items]) -> Tensor:
        """What a client's labels ask for: the cross-entropy, or what has the balancer's gradient."""
        if self.balance == "grab":
            return grab.balanced(logits, params, batch)
        return batch.mean(softmax_rows(logits, batch.y))

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().end(params, steps, visit)
        mine |= select(params, (OWN, STATS))
        if self.schedule == "interleaved" and visit.phase.name == "tune":
            mine |= put(OWN, take(PEFT, params))
        return sends, mine

    def predict(self, state: State, mine: Tree, x: Items) -> Tensor:
        return torch.cat([self.branches(state.shared, mine, part)[-1] for part in x.parts(PART)])

    def branches(self, shared: Tree, mine: Tree, x: Items) -> tuple[Tensor, ...]:
        """The logits; of a method that adds up two branches (global, personal, sum)."""
        return (self.module.logits(take(OWN, mine) or take(PEFT, shared), x),)


def dual_of(method: AnyMethod) -> DualTuned | None:
    """The method, if it tunes a dual encoder."""
    return method if isinstance(method, DualTuned) else None
