"""Closed forms of what fine-tuning does to the losses, with nothing left out: LP-FT, Section 4 and appendix E, mended.

Notation as in ``world``; b = b*_{m+1}, S = ||V_com||^2, eta the learning rate. FT is one gradient step on B and V;
LP-FT has I steps on V alone before it, and alpha = 1 - (1 - eta)^I is how far they come if inputs are isotropic. Then
both end at u = u_0 + lambda x b, with a reach x of

    FT:    a = eta (1 + S)
    LP-FT: A = eta (1 - alpha) S + (alpha + eta (1 - alpha)) (1 + eta lambda^2 alpha (1 - alpha))

and every client's loss is a function of x alone: lambda^2 (x - 1)^2 / 2 for the one that fine-tunes and
lambda^2 (x^2 + 1) / 2 for each of the others.
"""

from __future__ import annotations

import numpy as np

from fedkeel.papers.theory.world import CONVERGED, Array, World


def probed(eta: float, steps: int | None = CONVERGED) -> float:
    """Alpha: the share of the way that linear probing goes on isotropic inputs."""
    return 1.0 if steps is CONVERGED else 1 - (1 - eta) ** steps


def ft_reach(eta: float, common: Array) -> float:
    """a = eta (1 + S)."""
    return float(eta * (1 + common @ common))


def lpft_reach(eta: float, common: Array, lam: float, alpha: float = 1.0) -> float:
    """A_alpha; it is 1 once linear probing has converged."""
    rest = 1 - alpha
    return float(eta * rest * (common @ common) + (alpha + eta * rest) * (1 + eta * lam**2 * alpha * rest))


def losses(reach: float, lam: float, clients: int) -> Array:
    """Each client's loss on isotropic inputs; the first one has fine-tuned."""
    others = np.full(clients - 1, reach**2 + 1)
    return np.asarray(lam**2 / 2 * np.concatenate([[(reach - 1) ** 2], others]))


def global_loss(reach: float, lam: float, clients: int) -> float:
    """lambda^2 / (2 C) (C x^2 - 2 x + C): lowest at x = 1 / C, and lambda^2 (C - 1) / C at x = 1."""
    return lam**2 / (2 * clients) * (clients * reach**2 - 2 * reach + clients)


def lpft_not_worse(eta: float, common: Array, clients: int) -> bool:
    """Whether Theorem 4.4 holds, L_G(LP-FT) <= L_G(FT) with probing to convergence: if and only if eta (1 + S) >= 1.

    That is, if the one step of FT reaches the client's own optimum or goes beyond it. With one client the global loss
    is its own, and the theorem always holds.
    """
    return clients == 1 or ft_reach(eta, common) >= 1


def lpft_not_worse_after(eta: float, common: Array, clients: int, lam: float, steps: int) -> bool:
    """The same after ``steps`` steps of probing: |A - 1/C| <= |a - 1/C|."""
    best = 1 / clients
    reach = lpft_reach(eta, common, lam, probed(eta, steps))
    return abs(reach - best) <= abs(ft_reach(eta, common) - best)


def end(world: World, eta: float, probing: int | None) -> Array:
    """u = B^T V after ``probing`` steps of linear probing and one of fine-tuning, for any inputs of the paper.

    With V the head after probing, u_LP = B*^T V and w = Sigma_1 (u_1 - u_LP):

        u = u_LP + eta (B*^T B* w + ||V||^2 w) + eta^2 (V^T B* w) w

    FT is the case without probing, where w = lambda Sigma_1 b; after probing to convergence w = 0 and u = u_1.
    """
    V, w = _probed(world, eta, probing)
    Bw = world.B @ w
    return world.B.T @ (V + eta * Bw) + eta * (V @ V + eta * (V @ Bw)) * w


def drift(world: World, eta: float, probing: int | None) -> float:
    """||B - B*||_F = eta ||V|| ||w||; isotropic: eta lambda sqrt(S) for FT, and for LP-FT
    eta lambda (1 - alpha) sqrt(S + lambda^2 alpha^2), which is 0 at convergence."""
    V, w = _probed(world, eta, probing)
    return float(eta * np.linalg.norm(V) * np.linalg.norm(w))


def small_lambda(world: World, eta: float) -> tuple[float, float]:
    """The limits of L_G(FT) / lambda^2 and L_G(LP-FT) / lambda^2 as lambda goes to 0.

    Both are finite: the threshold of Theorem 4.5 exists if the second is below the first, and not if it is above.
    """
    ft, lpft = small_lambda_losses(world, eta)
    return float(ft.mean()), float(lpft.mean())


def small_lambda_losses(world: World, eta: float) -> tuple[Array, Array]:
    """The same of each client's loss, q_i and p_i. Of the client that fine-tunes p_1 is 0, of client i

        p_i = ((b_i - b*_{m+i,i})^2 + 2 eps^2) / 2 or, isotropic, 1

    The threshold of Corollary E.2 exists for client i if p_i < q_i, and not if p_i > q_i.
    """
    unit = World(world.B, world.common, 1.0, world.eps)
    _, w = _probed(unit, eta, 0)
    start = unit.start
    linear = start.u + eta * (world.B.T @ (world.B @ w) + (start.V @ start.V) * w)
    return unit.losses(linear), unit.losses(unit.targets[0])


def _probed(world: World, eta: float, probing: int | None) -> tuple[Array, Array]:
    """V after linear probing, and w = Sigma_1 (u_1 - B*^T V).

    Probing multiplies what is missing, V_1* - V = lambda r with r = e_{m+1} at first, by I - eta B* Sigma_1 B*^T in
    every step. That matrix is (1 - eta) I or, with c the first column of B*, (1 - eta eps^2) I - eta c c^T: the part
    of r along c shrinks by 1 - eta (eps^2 + ||c||^2), the rest by 1 - eta eps^2.
    """
    missing = np.zeros(len(world.B))
    missing[len(world.common)] = world.lam
    target = world.start.V + missing
    if probing is CONVERGED:
        missing = np.zeros_like(missing)
    elif world.eps is None:
        missing = (1 - eta) ** probing * missing
    else:
        column = world.B[:, 0]
        square = float(column @ column)
        along = column * (column @ missing) / square if square > 0 else np.zeros_like(missing)
        slow, fast = 1 - eta * world.eps**2, 1 - eta * (world.eps**2 + square)
        missing = slow**probing * (missing - along) + fast**probing * along
    gap = world.B.T @ missing
    w = gap if world.eps is None else world.eps**2 * gap
    if world.eps is not None:
        w[0] += gap[0]
    return target - missing, w
