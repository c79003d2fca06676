"""FedSAM: clients step with the gradient at the worst point nearby, which leads to flat minima.

Qu, Li, Duan, Liu, Tang, Lu, Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, arXiv
2206.02618; Caldarola, Caputo, Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV
2022; both after Foret et al., Sharpness-Aware Minimization, ICLR 2021. On one batch, with g = grad F(w),
    w <- w - eta grad F(w + rho g / |g|),
|g| over all parameters together, and the perturbation taken to be fixed. The server averages as in FedAvg.

Our choices: rho = 0.05 of Foret et al.; AdamW takes the step (the papers: SGD); statistics of batch norms follow the
pass at w, not that at the worst point. Averaging over the server's last rounds (SWA, ECCV 2022) is not in it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Visit, register
from fedkeel.core.tree import Tensor, Tree, learnt
from fedkeel.methods.networks.base import Network, copied
from fedkeel.rows.inputs import Inputs


@register("fedsam", paper="sharpness-aware steps on the clients (Qu et al., ICML 2022)")
class FedSAM(Network):
    personal: ClassVar[bool] = False

    rho: float = Field(0.05, ge=0)
    """how far the worst point is looked for; 0 = fedavg"""

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        """F at the worst point, whose gradient by the perturbed w is that by w."""
        moving = dict(sorted(learnt(params).items()))  # a resumed run has names in another order
        grads = torch.autograd.grad(self.network.cross_entropy(params, batch), list(moving.values()))
        length = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt().clamp_min(1e-12)
        worst = {name: w + self.rho / length * grad for (name, w), grad in zip(moving.items(), grads, strict=True)}
        statistics = copied({name: value for name, value in params.items() if name not in moving})
        return self.network.cross_entropy({**statistics, **worst}, batch)
