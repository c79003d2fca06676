"""FedAvg of a softmax head on frozen features ("LP-softmax" in the OvA-LP paper's ablation), or of a whole network.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1:
    w_{t+1} = sum_k (n_k / n) w^k_{t+1}
with the cross-entropy of OvA-LP Section 3.3, whose gradient with respect to w_c is -(1[y = c] - p_c(x)) h(x).

With ``head = "one-vs-all"`` the classes are C logistic units, q_c = sigmoid(z_c), and the loss of a row is the sum of
their cross-entropies, with gradient -(1[y = c] - q_c(x)) h(x): OvA-LP's loss without its stages. FedProx, SCAFFOLD,
FedNova, FedAvgM, FedAdam and all others that derive from FedAvg have it from here. OvA-LP names such heads under other
aggregation as its next step; learning rates are those of softmax (our choice).

With ``tune = "network"`` the encoder is trained too, end to end on inputs, with either head.
"""

from __future__ import annotations

from typing import Literal

from fedkeel.core.method import Batch, Visit, register
from fedkeel.core.tree import Tensor
from fedkeel.methods.heads.head_or_network import HeadOrNetwork
from fedkeel.models.losses import binary_residual, binary_rows, softmax_residual, softmax_rows


@register("fedavg", paper="LP-softmax: one softmax head, averaged by rows (McMahan et al., AISTATS 2017)")
class FedAvg(HeadOrNetwork):
    head: Literal["softmax", "one-vs-all"] = "softmax"
    """softmax: classes compete for a row; one-vs-all: a logistic unit for each class, which knows of no other"""

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        if self.head == "softmax":
            return softmax_rows(logits, batch.y)
        return binary_rows(logits, batch.y)

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        if self.head == "softmax":
            return softmax_residual(logits, batch.y)
        return binary_residual(logits, batch.y)
