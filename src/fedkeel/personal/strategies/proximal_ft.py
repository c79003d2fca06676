"""Proximal FT: full fine-tuning that is held near the global model.

LP-FT (arXiv 2511.12695), Appendix B.1, after FedProx (Li et al., MLSys 2020): minimise
    L(theta) + (mu / 2) |theta - theta_G|^2,   mu = 0.01.
Whether the paper has the half is not said: it is our choice, FedProx has it. Statistics of batch norms are not held.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.core.method import Batch, Visit
from fedkeel.core.tree import Tensor, Tree
from fedkeel.personal.strategy import Strategy, register
from fedkeel.rows.inputs import Inputs


@register("proximal-ft", paper="full fine-tuning held near the global model (Li et al., MLSys 2020)")
class ProximalFT(Strategy):
    mu: float = Field(0.01, ge=0)
    """strength of the pull; 0 = ft"""

    def adjust(self, grads: Tree, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tree:
        return {name: grad + self.mu * (params[name] - visit.down[name]) for name, grad in grads.items()}
