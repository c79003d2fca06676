"""FedABC, its loss on a shared head: fair one-vs-all learning when a client holds few classes, and unevenly.

Wang, Shen, Luo, Hu, Su, Wen, Tao, FedABC: Targeting Fair Competition in Personalized Federated Learning, AAAI 2023,
arXiv 2302.07450: a binary problem per class, each with under-sampled negatives and hard sample mining.

The abstract fixes those two ideas; the formulas are our reading. With q_c = sigmoid(w_c^T h(x)) and p the probability
of the right answer, q_c for a row of class c and 1 - q_c for any other, client k minimises the mean over its rows of
    sum_c keep_c(row) * -(1 - p)^gamma log p
- under-sampling: a row of class c is always kept for class c. Any other row is kept with probability
  min(1, ratio n_kc / (n_k - n_kc)), anew in every epoch: about ``ratio`` negatives for each positive. So classes the
  client does not hold are left alone. A row's uniform number u is the same for all classes.
- hard sample mining: the factor (1 - p)^gamma fades rows that are right already (as in the focal loss of Lin et al.,
  ICCV 2017).
In the paper the head is personal and the extractor is averaged. Here features are frozen, so the head is what clients
have in common: it is averaged by rows. Class counts are used on the client and stay there.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, Visit, register
from fedkeel.core.tree import Tensor
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.models.losses import one_hot


@register("fedabc", paper="one-vs-all, under-sampled negatives, hard samples first (Wang et al., AAAI 2023)")
class FedABC(LinearProbe):
    ratio: float = Field(1.0, gt=0)
    """negatives kept for each positive of a class"""
    gamma: float = Field(2.0, ge=0)
    """how fast rows that are right already fade; 0 = not at all"""

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", self.tuned, self.tuned, draws=True)]

    def keep(self, positive: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        """1 for the entries of the loss that count, 0 for the others."""
        counts = visit.counts.unsqueeze(-2)
        negatives = (counts.sum(-1, keepdim=True) - counts).clamp(min=1)
        drawn = batch.u.unsqueeze(-1) < self.ratio * counts / negatives
        return positive + (1 - positive) * drawn

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        positive = one_hot(logits, batch.y)
        margin = (2 * positive - 1) * logits  # p = sigmoid(margin)
        entries = -(self.gamma * torch.nn.functional.logsigmoid(-margin)).exp() * torch.nn.functional.logsigmoid(margin)
        return (entries * self.keep(positive, batch, visit)).sum(-1)

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        positive = one_hot(logits, batch.y)
        sign = 2 * positive - 1
        p = (sign * logits).sigmoid()
        slope = (1 - p) ** self.gamma * (self.gamma * p * torch.nn.functional.logsigmoid(sign * logits) - (1 - p))
        return sign * slope * self.keep(positive, batch, visit)
