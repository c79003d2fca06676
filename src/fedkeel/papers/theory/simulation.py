"""The two-layer linear model trained in fact: gradient steps on B and V with the moments of a population or a sample.

Nothing here knows a closed form. Targets have no noise, so that inputs X with y = X u_1 enter the client's loss
(u - u_1)^T Sigma (u - u_1) / 2 only through Sigma = X^T X / n, or Sigma_1 for the whole population.
"""

from __future__ import annotations

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.papers.theory.world import CONVERGED, Array, Model, World

MOST_STEPS = 10_000


def fine_tune(world: World, eta: float, probing: int | None, *, steps: int = 1, moment: Array | None = None) -> Model:
    """``probing`` gradient steps on V alone (``CONVERGED``: to the end), then ``steps`` on V and B together."""
    sigma = world.moment() if moment is None else moment
    model = world.start
    if probing is CONVERGED:
        model = _probe_to_the_end(world, model, sigma)
    else:
        for _ in range(probing):
            model = _step(world, model, sigma, eta, 0.0)
    for _ in range(steps):
        model = _step(world, model, sigma, eta, eta)
    return model


def sample_moment(world: World, random: np.random.Generator, rows: int) -> Array:
    """X^T X / n of a sample of client 1: x ~ N(0, I), or e_1 + eps z with z ~ N(0, I)."""
    X = random.standard_normal((rows, world.B.shape[1]))
    if world.eps is not None:
        X *= world.eps
        X[:, 0] += 1
    return np.asarray(X.T @ X / rows)


def matched(world: World, share: float, *, eta: float = 0.01, moment: Array | None = None) -> tuple[Model, Model]:
    """FT, and the linear probing that LP-FT begins with, where each has just brought the client's own loss down to a
    ``share`` of what it was: only then does their global loss tell which of them forgets less.

    The loss is that of the population, whatever they are trained on; the last step is shortened to meet it.
    """
    sigma = world.moment() if moment is None else moment
    return _until(world, share, sigma, eta, eta), _until(world, share, sigma, eta, 0.0)


def _until(world: World, share: float, sigma: Array, eta: float, eta_B: float) -> Model:
    from scipy.optimize import brentq

    model, goal = world.start, share * world.local_loss(world.start.u)

    def above(part: float) -> float:
        return world.local_loss(_step(world, model, sigma, part * eta, part * eta_B).u) - goal

    for _ in range(MOST_STEPS):
        if above(1.0) <= 0:
            part = brentq(above, 0.0, 1.0, xtol=1e-14)
            return _step(world, model, sigma, part * eta, part * eta_B)
        model = _step(world, model, sigma, eta, eta_B)
    raise FedkeelError(
        f"the client's loss is still above {share:g} of its first value after {MOST_STEPS:,} steps: "
        "expected that training reaches it; take a larger share, more rows or a larger eta"
    )


def _step(world: World, model: Model, sigma: Array, eta_V: float, eta_B: float) -> Model:
    """One gradient step on (u - u_1)^T Sigma (u - u_1) / 2, where u = B^T V."""
    slope = sigma @ (model.u - world.targets[0])
    return Model(model.V - eta_V * (model.B @ slope), model.B - eta_B * np.outer(model.V, slope))


def _probe_to_the_end(world: World, model: Model, sigma: Array) -> Model:
    """Where gradient steps on V end: the minimum that is nearest to V_0 (the only one, if there are k rows or more)."""
    B = model.B
    right = B @ sigma @ (world.targets[0] - model.u)
    move = np.linalg.lstsq(B @ sigma @ B.T, right, rcond=1e-12)[0]
    return Model(model.V + move, B)
