"""The federation's mean feature, in one exchange before round 1 (our addition; see docs on centring).

mu = (sum_i n_i mu_i) / N. Each client sends its mean feature and its row count, and receives mu once. Features then
become (x - mu) / |x - mu|. The heads that drift on features with a large common mean hardly drift on centred ones.
"""

from __future__ import annotations

import torch

from fedkeel.core.method import Method, Phase, State, Task, Visit
from fedkeel.core.tree import Tensor, Tree

MEAN = "mean"


class Centre(Method[Tensor]):
    """Not registered: it prepares features and has no classifier."""

    name = "centre"

    def start(self, task: Task) -> State:
        return State({MEAN: torch.zeros(task.dim)})

    def plan(self, round: int) -> list[Phase]:
        ask = Phase("mean", sends=(MEAN,), cohort="all", epochs=0)
        tell = Phase("tell-mean", cohort="same", epochs=0)
        return [ask, tell]

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        return {MEAN: x.mean(0)} if visit.phase.sends else {}, {}
