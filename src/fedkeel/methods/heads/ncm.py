"""FedNCM: the nearest class mean, from one exchange of class sums.

Legate, Bernier, Caccia, Oyallon, Belilovsky, Guiding The Last Layer in Federated Learning with Pre-Trained Models,
NeurIPS 2023: client k sends the sum of its features and its row count for each class, the server divides,
    m_c = sum_k sum_{y = c} x / sum_k n_kc,   w_c = m_c / |m_c|,
and a row goes to the class whose mean it has the largest cosine with. On both of our federations the cosine is better
than the Euclidean distance for centred features.

Our choices: a class that nobody has seen is never chosen; scores are a softmax at temperature 0.07,
which has the least log loss on both of our federations.
"""

from __future__ import annotations

import torch

from fedkeel.core.method import State, Task, Visit, register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import BIAS, WEIGHT, no_head
from fedkeel.methods.heads.closed_form import ClosedForm
from fedkeel.methods.heads.ridge_sums import CLASS_ROWS, CLASS_SUMS, class_sums, no_class_sums

TEMPERATURE = 0.07
NEVER = -1e9
"""A logit below all others that is still a number."""


@register("ncm", paper="FedNCM: nearest class mean, in one exchange (Legate et al., NeurIPS 2023)")
class NCM(ClosedForm):
    def start(self, task: Task) -> State:
        return State(no_head(task.dim, task.classes), no_class_sums(task.dim, task.classes))

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        return class_sums(x, y, len(visit.counts)), {}

    def head(self, sums: Tree) -> Tree:
        weight = torch.nn.functional.normalize(sums[CLASS_SUMS], dim=1)  # a sum points where its mean does
        return {WEIGHT: weight.float(), BIAS: torch.where(sums[CLASS_ROWS] > 0, 0.0, NEVER).float()}

    def scores(self, logits: Tensor) -> Tensor:
        return (logits / TEMPERATURE).softmax(-1)
