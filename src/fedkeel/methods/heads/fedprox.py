"""FedProx: local training that is held near the server's head.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2:
client k minimises
    h_k(w; w^t) = F_k(w) + (mu / 2) |w - w^t|^2,
so its gradient is that of F_k plus mu (w - w^t). The paper tunes mu over {0.001, 0.01, 0.1, 1}.

Our choices: F_k is that of fedavg, softmax or one-vs-all, mu = 0.01, heads are averaged by rows.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.core.method import Batch, Visit, register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.fedavg import FedAvg


@register("fedprox", paper="a proximal term holds clients near the server's head (Li et al., MLSys 2020)")
class FedProx(FedAvg):
    mu: float = Field(0.01, ge=0)
    """strength of the pull; 0 = fedavg"""

    def adjust(self, grads: Tree, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tree:
        return {name: grad + self.mu * (params[name] - visit.down[name]) for name, grad in grads.items()}
