"""Who may hold a class is drawn first, Dirichlet shares among those second.

Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedkeel.data.shares import dirichlet_shares
from fedkeel.data.splits.base import Pool, Split, register


@register("each client may hold a class with chance p, Dirichlet(alpha) among those (Xu et al. 2022, FedCorr)")
class BernoulliDirichlet(Split):
    kind: Literal["bernoulli-dirichlet"] = "bernoulli-dirichlet"
    alpha: float = Field(0.001, gt=0)
    """concentration; small = skewed"""
    p: float = Field(0.1, gt=0, le=1)
    """chance that a client may hold a class"""

    def owners(self, pool: Pool) -> np.ndarray:
        """Who may hold a class is a coin of bias p; among those, shares ~ Dir(alpha) and each row drawn on its own."""
        held = eligible(self.clients, pool.dataset.classes, self.p, pool.rng("eligible"))
        owner = np.empty(len(pool.labels), dtype=np.int64)
        for label, rows in pool.by_class():
            rng = pool.rng("class", label)
            clients = np.flatnonzero(held[:, label])
            if not len(clients):
                clients = rng.integers(self.clients, size=1)
            owner[rows] = rng.choice(clients, size=len(rows), p=dirichlet_shares(rng, self.alpha, len(clients)))
        return owner


def eligible(clients: int, classes: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """A (clients, classes) matrix of coins of bias p in which no row is empty."""
    coins = rng.random((clients, classes)) < p
    # Redrawing an empty row until it is not would never end for tiny p. The law of the row it ends with is known:
    # the first class held has a geometric law cut off at the last class, and the later classes are free coins.
    first_law = (1 - p) ** np.arange(classes)
    first_law /= first_law.sum()
    for client in np.flatnonzero(~coins.any(axis=1)):
        first = int(rng.choice(classes, p=first_law))
        coins[client, first] = True
        coins[client, first + 1 :] = rng.random(classes - first - 1) < p
    return coins
