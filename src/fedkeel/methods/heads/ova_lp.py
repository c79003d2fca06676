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

Beyond the paper, all ours:
``init = "ridge"``: W_0 = tau W_ridge. In round 1 everybody sends the sums of the ridge head (ridge.py says what they
tell), then its one-vs-all loss at each tau of a grid, and the best tau counts. There is no stage 1: the heads are past
it. The units get the fixed offset -log(C - 1), the log-odds of a class among C, which leaves predictions as they are.
``aggregation = "rows"``: row c counts by the evidence a client has for class c, e_kc = n_kc + (n_k - n_kc) / (C - 1),
    w_c <- w_c + sum_k e_kc (w_kc - w_c) / sum_k e_kc;
a client sends e_k, so the server learns its class counts. ``aggregation = "total"``: w <- w + sum_k n_k (w_k - w) / n
with n the rows of all clients, not of the round's: a small cohort moves the head a little.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Task, Update, Visit, added, register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import WEIGHT, LinearProbe, per_class
from fedkeel.methods.heads.closed_form import ONCE
from fedkeel.methods.heads.ridge_sums import no_sums, row_sums, solve
from fedkeel.models.losses import binary_residual, binary_rows, one_hot

ROWS, EVIDENCE, LOSSES = "rows", "evidence", "losses"
TAUS = tuple(2 ** (step / 2) for step in range(15))
"""1 to 128."""
SUMS = replace(ONCE, name="ridge", cohort="all")
TAU = Phase("temperature", sends=(LOSSES,), gets=("head.",), cohort="all", epochs=0)


@register("ova-lp", paper="one-vs-all heads in two stages (Park, Yeo, Lee, arXiv 2511.05028)")
class OvaLP(LinearProbe):
    stages: Literal[1, 2] = 2
    """2: positives only in round 1, then negatives and some positives; 1: everything from the start"""
    positives: float = Field(0.1, gt=0, le=1)
    """stage 2: fraction of the positives that is kept"""
    positive_mode: Literal["entry", "sample"] = "entry"
    """stage 2: drop only the positive term of a row's loss, or the whole row"""
    init: Literal["zero", "ridge"] = "zero"
    """where the heads start"""
    aggregation: Literal["mean", "rows", "total"] = "mean"
    """how the server weighs clients: by their rows, by their evidence for each class, by their share of all rows"""

    @property
    def levels(self) -> int:
        return Fraction(self.positives).limit_denominator(100).denominator

    def start(self, task: Task) -> State:
        server = {ROWS: torch.tensor(float(task.rows)), EVIDENCE: torch.zeros(task.classes)}
        if self.init == "ridge":
            server |= {**no_sums(task.dim, task.classes), LOSSES: torch.zeros(len(TAUS))}
        return replace(super().start(task), server=server)

    def plan(self, round: int) -> list[Phase]:
        ridge = [SUMS, TAU] if self.init == "ridge" and round == 1 else []
        return [*ridge, self.training(round)]

    def training(self, round: int) -> Phase:
        if self.stages == 1:
            return self.head_phase("one-vs-all")
        if round == 1 and self.init == "zero":
            return self.head_phase("stage-1")
        if self.positive_mode == "sample":
            return self.head_phase("stage-2", rows=self.positives)
        return self.head_phase("stage-2", draws=True)

    def head_phase(self, name: str, **more: Any) -> Phase:
        if self.aggregation != "rows":
            return self.phase(name, self.tuned, self.tuned, gets=self.tuned, **more)
        sends = (*self.tuned, EVIDENCE)
        return self.phase(name, self.tuned, sends, gets=self.tuned, uniform=sends, **more)

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        if visit.phase.name == SUMS.name:
            return row_sums(x, y, len(visit.counts)), {}
        ridge = x @ visit.down[WEIGHT].T
        one = torch.ones(())
        return {LOSSES: torch.stack([binary_rows(self.shifted(tau * ridge), y, one).mean() for tau in TAUS])}, {}

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().end(params, steps, visit)
        if self.aggregation != "rows":
            return sends, mine
        evidence = visit.counts + (visit.counts.sum() - visit.counts) / (len(visit.counts) - 1)
        return {name: per_class(evidence, value) * value for name, value in sends.items()} | {EVIDENCE: evidence}, mine

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        mean = update.mean
        if phase.name == SUMS.name:
            weight, _ = solve({name: len(update.clients) * value for name, value in mean.items()}, None)
            return replace(state, shared={**state.shared, WEIGHT: weight.float()})
        if phase.name == TAU.name:
            tau = TAUS[int(mean[LOSSES].argmin())]
            return replace(state, shared={**state.shared, WEIGHT: tau * state.shared[WEIGHT]})
        if self.aggregation == "rows":
            mean = {name: mean[name] / per_class(mean[EVIDENCE], value) for name, value in state.shared.items()}
        if self.aggregation == "total":
            share = float(update.rows.sum() / state.server[ROWS])
            mean = {name: share * value for name, value in mean.items()}
        return replace(state, shared=added(state.shared, mean))

    def shifted(self, logits: Tensor) -> Tensor:
        return logits - math.log(logits.shape[-1] - 1) if self.init == "ridge" else logits

    def keep(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        """1 for the entries of the loss that count, 0 for the others."""
        positive = one_hot(logits, batch.y)
        if visit.phase.name == "stage-1":
            return positive
        if visit.phase.draws:
            dropped = (batch.u >= self.positives).unsqueeze(-1)
            return 1.0 - positive * dropped
        return positive.fill_(1.0)

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return binary_rows(self.shifted(logits), batch.y, self.keep(logits, batch, visit))

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return binary_residual(self.shifted(logits), batch.y, self.keep(logits, batch, visit))
