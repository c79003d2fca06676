"""Which of the clients' prompts are versions of the same one: the server's part of probabilistic prompt tuning.

Every client's prompts are seen as a draw from unknown global prompts theta_i ~ N(m, S): client k has global prompt i
with chance p_i, and then holds a version of it, N(theta_i, s2), the same in all d directions. Given theta, the best
assignment of a client's prompts w to distinct global ones, old or new, is a linear assignment with the costs
    old:  |w - theta_i|^2 / (2 s2) + d log(s2) / 2 - log(p_i / (1 - p_i))
    new:  |w - m|^2 / (2 S) + d log(S) / 2 - log(p_0 / (1 - p_0));
given the assignments, theta_i is the mean of its versions. The two steps alternate. m and S are the mean and variance
of all prompts, s2 a fixed part of S: learnt from the assignments it would shrink around the first ones and freeze them.
"""

from __future__ import annotations

import numpy as np

LOOPS = 50
NEAR = 0.1
"""s2 over S: versions of one prompt are nearer to each other than prompts are."""
PRIOR = 0.5
"""Counts added on both sides of p_i, so that no chance is 0 or 1; p_0 has nothing else."""


def match(prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompts (clients, n, d) -> global prompts (g, d), how many clients hold each, and who holds which (clients, n).

    p_i counts the other clients only, and what no other client holds is new: otherwise every client would for ever be
    its own best match.
    """
    from scipy.optimize import linear_sum_assignment

    clients, n, dim = prompts.shape
    middle, whole = prompts.mean(axis=(0, 1)), float(prompts.var(axis=(0, 1)).mean()) + 1e-12
    theta, spread = prompts.reshape(-1, dim).astype(np.float64), NEAR * whole
    held = np.arange(clients * n).reshape(clients, n)
    count = np.ones(clients * n, dtype=np.int64)
    for _ in range(LOOPS):
        before = held.copy()
        for k in range(clients):
            count[held[k]] -= 1
            known = np.flatnonzero(count)
            old = _surprise(prompts[k][:, None], theta[known], spread) - _log_odds(count[known], clients)
            new = _surprise(prompts[k], middle, whole) - _log_odds(np.zeros(n), clients)
            best = linear_sum_assignment(np.hstack([old, np.repeat(new[:, None], n, axis=1)]))[1]
            fresh = len(theta) + np.arange(n)
            theta, count = np.vstack([theta, prompts[k]]), np.append(count, np.zeros(n, dtype=np.int64))
            held[k] = np.where(best < len(known), np.append(known, fresh)[np.minimum(best, len(known))], fresh)
            count[held[k]] += 1
        used, held = np.unique(held, return_inverse=True)
        held, count = held.reshape(clients, n), count[used]
        theta = np.zeros((len(used), dim))
        np.add.at(theta, held, prompts)
        theta /= count[:, None]
        if np.array_equal(held, before):
            break
    return theta, count, held


def _surprise(w: np.ndarray, centre: np.ndarray, variance: float) -> np.ndarray:
    """- log N(w; centre, variance) up to a constant."""
    return np.asarray(((w - centre) ** 2 / variance + np.log(variance)).sum(axis=-1) / 2)


def _log_odds(count: np.ndarray, clients: int) -> np.ndarray:
    return np.asarray(np.log((count + PRIOR) / (clients - 1 - count + PRIOR)))
