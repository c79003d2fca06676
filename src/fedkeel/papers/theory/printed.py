"""The formulas of LP-FT's appendix E as they are printed, to be set beside ``exact``; two of them are not right.

Equation (2), FT's global loss on isotropic inputs, and equation (3), LP-FT's with covariate shift, are right. LP-FT's
loss in the proof of Theorem 4.4 drops a 1 for every other client, and equation (5) forgets to subtract
sum_j (V_com)_j b*_j, so that FT seems to have a loss even where clients do not differ at all. Equation (5) also has a
sigma^2 that is defined nowhere; we read it as 1, the variance of z.
"""

from __future__ import annotations

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.papers.theory.exact import ft_reach, lpft_reach
from fedkeel.papers.theory.world import Array, World


def printed_ft_loss(eta: float, common: Array, lam: float, clients: int) -> float:
    """Equation (2)."""
    reach = ft_reach(eta, common)
    return lam**2 / (2 * clients) * ((reach - 1) ** 2 + (clients - 1) * (reach**2 + 1))


def printed_lpft_loss(eta: float, common: Array, lam: float, clients: int, alpha: float = 1.0) -> float:
    """Proof of Theorem 4.4: lambda^2 / (2 C) ((A - 1)^2 + (C - 1) A^2). Too low by lambda^2 (C - 1) / (2 C)."""
    reach = lpft_reach(eta, common, lam, alpha)
    return lam**2 / (2 * clients) * ((reach - 1) ** 2 + (clients - 1) * reach**2)


def printed_lpft_covariate_loss(world: World) -> float:
    """Equation (3), after linear probing to convergence."""
    m, C, eps = len(world.common), world.clients, _noise(world)
    i = np.arange(C)
    squares = (world.B[m, i] - world.B[m + i, i]) ** 2
    return float(world.lam**2 / (2 * C) * squares.sum() + world.lam**2 * (C - 1) / C * eps**2)


def equation_5(world: World, eta: float, *, restored: bool = False) -> Array:
    """Row i: E[B_FT^T V_FT - B*^T V_i*] as printed, or with the term that it misses, - sum_j (V_com)_j b*_j."""
    m, C, eps, step = len(world.common), world.clients, _noise(world), eta * world.lam
    B, v, b = world.B, world.common, world.B[m]
    first = np.eye(B.shape[1])[0]
    own = np.outer(v, step * eps**2 * b + step * b[0] * first) + B[:m]  # b*_j + eta lambda (V_com)_j (...), j <= m
    along = step * b[0] * B[:, 0]  # eta lambda (B*)_{m+1,1} (B*)_{j,1}
    shared = v @ own + step * eps**2 * b + along[m:] @ B[m:] + along[:m] @ own
    rows: Array = shared - world.lam * B[m : m + C]
    return rows - v @ B[:m] if restored else rows


def printed_ft_covariate_loss(world: World, eta: float, *, restored: bool = False) -> float:
    """Equation (4) with the differences of equation (5)."""
    gaps = equation_5(world, eta, restored=restored)
    return float(((np.diagonal(gaps) ** 2).sum() + _noise(world) ** 2 * (gaps**2).sum()) / (2 * world.clients))


def _noise(world: World) -> float:
    if world.eps is None:
        raise FedkeelError("equations (3) to (5) are about inputs e_i + eps z, got isotropic ones: set eps")
    return world.eps
