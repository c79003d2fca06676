"""FedAvg of a softmax head on frozen features: "LP-softmax" in the OvA-LP paper's ablation.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1:
    w_{t+1} = sum_k (n_k / n) w^k_{t+1}
with the cross-entropy of OvA-LP Section 3.3, whose gradient with respect to w_c is -(1[y = c] - p_c(x)) h(x).
"""

from __future__ import annotations

from torch import Tensor

from fedkeel.method import Batch, Visit, register
from fedkeel.methods.linear_probe import LinearProbe
from fedkeel.models.losses import softmax_residual, softmax_rows


@register("fedavg", paper="LP-softmax: one softmax head, averaged by rows (McMahan et al., AISTATS 2017)")
class FedAvg(LinearProbe):
    def rows(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        return softmax_rows(logits, batch.y)

    def residual(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        return softmax_residual(logits, batch.y)
