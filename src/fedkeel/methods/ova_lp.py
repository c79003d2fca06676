"""OvA-LP: one-vs-all heads on a frozen encoder, trained in two stages.

Park, Yeo, Lee, OvA-LP: A Simple and Efficient Framework for Federated Learning on Non-IID Data, arXiv 2511.05028.

Section 3.3: C independent logistic units q_c(x) = sigmoid(w_c^T h(x)); the gradient with respect to w_c is
    -(1[y = c] - q_c(x)) h(x),
so no class appears in the update of another.
Section 3.4: stage 1 (round 1) trains on positives only: the loss of a row is -log q_y. Stage 2 (from round 2) adds all
negatives and keeps "a small fraction of positives" as anchors. Section 4.1: AdamW lr 0.01, weight decay 1e-4, three
local epochs, batch 50, averaged by rows.

Left open by the paper, our choices: the fraction of positives (0.1) and what is dropped ("entry": the positive term of
a row's loss, "sample": the whole row); the sum over classes and mean over rows; heads start at zero. There is no bias,
as in the paper's formulas; with one (``bias = true``) the heads drift: see docs/methods.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from fedkeel.method import Batch, Phase, Visit, register
from fedkeel.methods.linear_probe import LinearProbe
from fedkeel.models.losses import binary_residual, binary_rows, one_hot


@register("ova-lp", paper="one-vs-all heads in two stages (Park, Yeo, Lee, arXiv 2511.05028)")
class OvaLP(LinearProbe):
    stages: Literal[1, 2] = 2
    """2: positives only in round 1, then negatives and some positives; 1: everything from the start"""
    positives: float = Field(0.1, gt=0, le=1)
    """stage 2: fraction of the positives that is kept"""
    positive_mode: Literal["entry", "sample"] = "entry"
    """stage 2: drop only the positive term of a row's loss, or the whole row"""

    def plan(self, round: int) -> list[Phase]:
        if self.stages == 1:
            return [self.phase("one-vs-all")]
        if round == 1:
            return [self.phase("stage-1")]
        if self.positive_mode == "sample":
            return [replace(self.phase("stage-2"), rows=self.positives)]
        return [replace(self.phase("stage-2"), draws=True)]

    def keep(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        """1 for the entries of the loss that count, 0 for the others."""
        positive = one_hot(logits, batch.y)
        if visit.phase.name == "stage-1":
            return positive
        if visit.phase.draws:
            dropped = (batch.u >= self.positives).unsqueeze(-1)
            return 1.0 - positive * dropped
        return positive.fill_(1.0)

    def rows(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        return binary_rows(logits, batch.y, self.keep(logits, batch, visit))

    def residual(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        return binary_residual(logits, batch.y, self.keep(logits, batch, visit))

    def scores(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()
