"""Random labels and very unequal sizes.

Park, Yeo, Lee, OvA-LP: A Simple and Efficient Framework for Federated Learning on Non-IID Data, arXiv 2511.05028.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedkeel.data.shares import largest_remainder
from fedkeel.data.splits.base import Pool, Split, register


@register("random labels, sizes ~ k ** -exponent (Park et al. 2025, OvA-LP)")
class Zipf(Split):
    kind: Literal["zipf"] = "zipf"
    exponent: float = Field(2.0, ge=0)
    """rows of client k are proportional to k ** -exponent"""

    def owners(self, pool: Pool) -> np.ndarray:
        """Nobody is empty while there are rows enough."""
        rows, clients = len(pool.labels), self.clients
        if rows <= clients:
            sizes = (np.arange(clients) < rows).astype(np.int64)
        else:
            weights = np.arange(1, clients + 1, dtype=np.float64) ** -self.exponent
            # What a client is due beyond its first row; equals rows * share - 1 where everybody is due at least one.
            beyond = np.maximum(rows * weights / weights.sum() - 1, 0)
            sizes = 1 + largest_remainder((rows - clients) * beyond / beyond.sum())
        return pool.rng().permutation(np.repeat(np.arange(clients), sizes))
