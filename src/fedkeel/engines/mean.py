"""The weighted mean of updates as a running sum: memory does not grow with the number of clients."""

from __future__ import annotations

import torch

from fedkeel.core.method import Phase
from fedkeel.core.tree import Tree


class WeightedMean:
    """sum_k w_k u_k / sum_k w_k, summed in float64; the names in ``phase.uniform`` count every client alike."""

    def __init__(self, like: Tree, phase: Phase) -> None:
        self._like = like
        self._uniform = {name for name in like if name.startswith(phase.uniform)} if phase.uniform else set()
        self._sums = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in like.items()}
        self._weight = 0.0
        self.count = 0

    def add(self, update: Tree, weight: float) -> None:
        """One client after the other, whatever the engine: so the sum is the same to the bit for any stacking."""
        for name, array in update.items():
            self._sums[name].add_(array, alpha=1.0 if name in self._uniform else weight)
        self._weight += weight
        self.count += 1

    def result(self) -> Tree | None:
        """The mean in the dtype of the model; None if nothing was added."""
        if not self.count:
            return None
        return {
            name: (total / (self.count if name in self._uniform else self._weight)).to(self._like[name].dtype)
            for name, total in self._sums.items()
        }
