"""FRLoRA: every round starts from the weight's own principal directions, and only the residual is merged.

Yan et al., Federated Residual Low-Rank Adaptation of Large Language Models, ICLR 2025. W_0 = U S V^T, s = alpha / r:
    B_0 = U_r sqrt(S_r / s),  A_0 = sqrt(S_r / s) V_r^T,  W <- W_0 - s B_0 A_0        (before round 1)
    each round: clients start from (A_0, B_0); A, B = their mean;  W <- W + s (B A - B_0 A_0)
so that the global model W + s B_0 A_0 moves by the residual alone, in a space as large as W. The mean counts every
client alike, as in the released code. What goes down is the merged weight (our choice: dense).
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.core.method import Phase, State, Task, Update, added, register
from fedkeel.core.tree import select
from fedkeel.methods.transformer.lora import MERGED, Lora
from fedkeel.models.backbone import Backbone


@register("frlora", paper="LoRA from principal directions, residuals merged (Yan et al., ICLR 2025)")
class FRLora(Lora):
    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)

    def start(self, task: Task) -> State:
        shared = super().start(task).shared
        for index, name in enumerate(Backbone.in_task(task).attention):
            u, s, vt = torch.linalg.svd(Backbone.in_task(task).weight(name).double(), full_matrices=False)
            root = (s[: self.rank] / self.scale).sqrt()
            a, b = (root.unsqueeze(1) * vt[: self.rank]).float(), (u[:, : self.rank] * root).float()
            shared |= {f"A.{index:02d}": a, f"B.{index:02d}": b, f"{MERGED}{index:02d}": -self.scale * b @ a}
        return State(shared)

    def plan(self, round: int) -> list[Phase]:
        tuned = ("A.", "B.", "head.")
        return [self.phase("train", tuned, tuned, uniform=tuned)]

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        start, mean = state.shared, added(state.shared, update.mean)
        for name in select(start, (MERGED,)):
            a, b = name.replace(MERGED, "A."), name.replace(MERGED, "B.")
            mean[name] = start[name] + self.scale * (mean[b] @ mean[a] - start[b] @ start[a])
            mean[a], mean[b] = start[a], start[b]
        return State(mean)
