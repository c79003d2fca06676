"""Symmetric cross-entropy: a loss that does not learn wrong labels as hard as right ones.

Wang, Ma, Chen, Luo, Yi, Bailey, Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019: with p the
softmax and q the one-hot label,
    l = alpha CE + beta RCE,   CE = -sum_c q_c log p_c,   RCE = -sum_c p_c log q_c   where log 0 is A = -4.
RCE is -A (1 - p_y), so the gradient with respect to the logits is (alpha - A beta p_y) (p - q): a row that the head
believes counts more than one it does not.

alpha = 0.1, beta = 1 are the paper's for CIFAR-10; for CIFAR-100 it takes 6 and 0.1, close to plain cross-entropy.
Our choices: the first pair for all data; heads are averaged by rows. alpha = 1, beta = 0 is fedavg.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.core.method import Batch, Visit, register
from fedkeel.core.tree import Tensor
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.models.losses import softmax_residual, softmax_rows

LOG_OF_ZERO = -4.0


@register("symmetric-ce", paper="cross-entropy plus its reverse, for noisy labels (Wang et al., ICCV 2019)")
class SymmetricCE(LinearProbe):
    alpha: float = Field(0.1, ge=0)
    """weight of the cross-entropy"""
    beta: float = Field(1.0, ge=0)
    """weight of the reverse cross-entropy"""

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        ce = softmax_rows(logits, batch.y)
        return self.alpha * ce - LOG_OF_ZERO * self.beta * (1 - (-ce).exp())

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        believed = (-softmax_rows(logits, batch.y)).exp().unsqueeze(-1)
        return (self.alpha - LOG_OF_ZERO * self.beta * believed) * softmax_residual(logits, batch.y)
