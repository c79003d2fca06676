"""Fed3R-RF: the ridge head on random Fourier features, still one exchange and still exact for every partition.

Fanì et al., ICML 2024, arXiv 2406.01116 ("Fed3R-RF"), after Rahimi and Recht, NeurIPS 2007:
    phi(x) = sqrt(2 / D) cos(Omega x + b),  Omega ~ N(0, gamma^2 I),  b ~ U[0, 2 pi),
whose inner products approximate the Gaussian kernel exp(-gamma^2 |x - x'|^2 / 2). Omega and b are drawn on every side
from the seed, which is all that goes down; the finished model carries them.

Our choices: D = 2000; gamma = 0.4, which suits rows of unit length (``data.features`` centred or l2); the rows of Omega
are orthogonal in blocks of d, each as long as if drawn alone (Yu et al., Orthogonal Random Features, NeurIPS 2016),
which gains 0.2 to 0.3 points on our federations. Rows are mapped in float32, so partitions agree to about 1e-6; sums
and solution are float64 as in ridge.py. Each client sends D (D + 1) / 2 numbers, however few rows it has: 16 MB.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import pi, sqrt

import numpy as np
import torch
from pydantic import Field

from fedkeel.core.method import Phase, State, Task, Visit, register
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import logits
from fedkeel.methods.heads.ridge import Ridge

OMEGA, OFFSET, SEED = "fourier.omega", "fourier.offset", "seed"


@register("ridge-rf", paper="Fed3R-RF: the ridge head on random Fourier features (Fanì et al., ICML 2024)")
class RidgeRF(Ridge):
    features: int = Field(2000, ge=1)
    """D; a client sends about D * D / 2 numbers"""
    gamma: float = Field(0.4, gt=0)
    """standard deviation of Omega: larger tells nearer rows apart"""

    def start(self, task: Task) -> State:
        omega, offset = drawn(task.seed, task.dim, self.features, self.gamma)
        state = self.empty(self.features, task.classes)
        shared = {**state.shared, OMEGA: omega, OFFSET: offset}
        return State(shared, {**state.server, SEED: torch.tensor([task.seed])})

    def plan(self, round: int) -> list[Phase]:
        return [replace(phase, gets=(*(phase.gets or ()), SEED)) for phase in super().plan(round)]

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        omega, offset = drawn(int(visit.down[SEED]), x.shape[1], self.features, self.gamma)
        return super().measure(mapped(x, omega, offset), y, visit)

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        return logits(state.shared, mapped(x, state.shared[OMEGA], state.shared[OFFSET]))


def mapped(x: Tensor, omega: Tensor, offset: Tensor) -> Tensor:
    """phi(x)."""
    return torch.addmm(offset, x, omega.T).cos_().mul_(sqrt(2 / len(offset)))


@lru_cache(maxsize=2)
def drawn(seed: int, dim: int, features: int, gamma: float) -> tuple[Tensor, Tensor]:
    """(Omega, b): the same for whoever knows the seed."""
    draw = generator(seed, "fourier", dim, features)
    blocks = np.linalg.qr(draw.standard_normal((-(-features // dim), dim, dim)))[0].swapaxes(1, 2)
    lengths = gamma * np.sqrt(draw.chisquare(dim, features))
    omega = lengths[:, None] * blocks.reshape(-1, dim)[:features]
    return torch.from_numpy(omega).float(), torch.from_numpy(draw.uniform(0, 2 * pi, features)).float()
