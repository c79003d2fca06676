"""FedUV: clients train as if their rows were IID, by the variance of predictions and the uniformity of features.

Son, Kim, Chung, Huang, Liu, FedUV: Uniformity and Variance for Heterogeneous Federated Learning, CVPR 2024, arXiv
2402.18372. Of every batch with predictions p and features z, those that the head reads,
    L = CE + lambda (1/C) sum_c max(0, gamma - std(p_c)) + mu mean_{i < j} exp(-|z_i - z_j|^2 / sigma)
where std is over the batch, gamma that of the one-hot labels of all classes once each, 1 / sqrt(C), and sigma the
median of the squared distances in the batch. A client with few classes would let the other p_c be constant: the first
term holds it from that; the second spreads its features.

As in the released code: lambda = 2.5, mu = 0.5, the gradient goes through sigma, for which distances of 0 do not count.
Our choices: a batch of one row, or of features that are all alike, has no such terms; features are those of the run's
encoder, where the authors have two more layers.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Visit, register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.networks.base import Network
from fedkeel.models.losses import softmax_rows
from fedkeel.rows.inputs import Inputs


@register("feduv", paper="variance of predictions, uniformity of features (Son et al., CVPR 2024)")
class FedUV(Network):
    personal: ClassVar[bool] = False

    variance: float = Field(2.5, ge=0)
    """lambda"""
    uniformity: float = Field(0.5, ge=0)
    """mu"""

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        assert isinstance(batch.x, Inputs)
        features = self.network.features(params, batch.x)
        logits = self.network.head(params, features)
        loss = batch.mean(softmax_rows(logits, batch.y))
        if len(batch.y) > 1:
            loss = loss + self.variance * missing_variance(logits.softmax(1)) + self.uniformity * crowding(features)
        return loss


def missing_variance(p: Tensor) -> Tensor:
    """How far the deviation of the probability of a class stays below that of labels, in the mean."""
    deviation = (p.var(0) + 1e-12).sqrt()  # the root has no slope at 0
    return (1 / sqrt(p.shape[1]) - deviation).clamp_min(0).mean()


def crowding(features: Tensor) -> Tensor:
    """How near features are to each other, next to their usual distance."""
    squares = torch.nn.functional.pdist(features).square()
    apart = squares[squares > 0]
    return (-squares / apart.median()).exp().mean() if len(apart) else squares.new_zeros(())
