"""FedOVA, linear form: a client trains the one-vs-all heads of the classes it holds, each averaged over its owners.

Zhu, Markos, Zhao, Zheng, Yu, FedOVA: One-vs-All Training Method for Federated Learning with Non-IID Data, IJCNN 2021:
one binary classifier per class, trained by the clients that hold the class (its rows are the positives, all their other
rows the negatives) and averaged over those; the class with the highest score is predicted. Here a classifier is a row
w_c of a linear head on frozen features. With o_kc = 1 if client k holds class c, and 0 otherwise,
    w_c <- w_c + sum_k n_k o_kc (w_kc - w_c) / sum_k n_k o_kc,
and a row that nobody of the round holds stays.

A client sends o_k, so the server learns which classes it holds; how many rows of each it does not.
Our choices: owners count by all their n_k rows, since each of them, positive or negative, trained the classifier; the
loss is summed over classes and averaged over rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedkeel.core.method import Batch, Phase, State, Task, Update, Visit, added, register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import LinearProbe, per_class
from fedkeel.models.losses import binary_residual, binary_rows

OWNED = "owned"
"""o_k on its way up; on the server the share of the last round's rows whose clients hold each class."""


@register("fedova", paper="one-vs-all heads averaged over the owners of each class (Zhu et al., IJCNN 2021)")
class FedOVA(LinearProbe):
    def start(self, task: Task) -> State:
        return replace(super().start(task), server={OWNED: torch.zeros(task.classes)})

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", self.tuned, (*self.tuned, OWNED), gets=self.tuned)]

    def owned(self, visit: Visit) -> Tensor:
        return (visit.counts > 0).to(visit.counts.dtype)

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return binary_rows(logits, batch.y, self.owned(visit).unsqueeze(-2))

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return binary_residual(logits, batch.y, self.owned(visit).unsqueeze(-2))

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        owned = self.owned(visit)  # weight decay moves the other rows too: they must not count
        sends = {name: per_class(owned, value) * (value - visit.down[name]) for name, value in params.items()}
        return {**sends, OWNED: owned}, {}

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        share = update.mean[OWNED]
        divisor = torch.where(share > 0, share, 1.0)
        moved = {name: update.mean[name] / per_class(divisor, value) for name, value in state.shared.items()}
        return replace(state, shared=added(state.shared, moved), server={OWNED: share})
