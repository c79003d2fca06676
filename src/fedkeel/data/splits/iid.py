"""A random equal split."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedkeel.data.splits.base import Pool, Split, register


@register("random equal split")
class Iid(Split):
    kind: Literal["iid"] = "iid"

    def owners(self, pool: Pool) -> np.ndarray:
        """Sizes differ by at most one."""
        owner = np.arange(len(pool.labels)) % self.clients
        return pool.rng().permutation(owner)
