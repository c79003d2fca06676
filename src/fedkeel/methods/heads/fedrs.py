"""FedRS: classes a client does not hold are pushed away less.

Li, Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021: the
cross-entropy of the restricted softmax
    psi_c(x) = exp(s_c w_c^T h(x)) / sum_j exp(s_j w_j^T h(x)),   s_c = 1 if the client holds class c, else alpha,
whose gradient with respect to logit c is s_c (psi_c - 1[y = c]). alpha = 0.5 and no bias, as in the paper; alpha = 1 is
fedavg. Prediction uses the plain logits. Which classes a client holds stays on the client.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.core.method import Batch, Visit, register
from fedkeel.core.tree import Tensor
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.models.losses import softmax_residual, softmax_rows


@register("fedrs", paper="restricted softmax for absent classes (Li, Zhan, KDD 2021)")
class FedRS(LinearProbe):
    alpha: float = Field(0.5, ge=0, le=1)
    """scale of the logits of classes the client does not hold; 1 = fedavg"""

    def scales(self, visit: Visit) -> Tensor:
        held = (visit.counts > 0).to(visit.counts.dtype).unsqueeze(-2)
        return held + self.alpha * (1 - held)

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return softmax_rows(self.scales(visit) * logits, batch.y)

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        scales = self.scales(visit)
        return scales * softmax_residual(scales * logits, batch.y)
