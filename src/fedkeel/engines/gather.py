"""What one exchange brings together on the server: the mean of most names, client by client the names in ``each``."""

from __future__ import annotations

import torch

from fedkeel.core.method import Phase, Update
from fedkeel.core.tree import Tree, stack
from fedkeel.engines.mean import WeightedMean


class Gather:
    """Takes the accepted updates one after the other, in any order of the clients."""

    def __init__(self, expected: Tree, phase: Phase, round: int) -> None:
        self._each = {name for name in expected if name.startswith(phase.each)} if phase.each else set()
        self._mean = WeightedMean({name: value for name, value in expected.items() if name not in self._each}, phase)
        self._round = round
        self._kept: dict[int, Tree] = {}
        self._rows: dict[int, float] = {}

    def add(self, client: int, update: Tree, rows: float) -> None:
        self._mean.add({name: value for name, value in update.items() if name not in self._each}, rows)
        self._kept[client] = {name: update[name] for name in self._each}
        self._rows[client] = rows

    def result(self) -> Update | None:
        """None if nothing was added."""
        mean = self._mean.result()
        if mean is None:
            return None
        clients = sorted(self._rows)
        rows = torch.tensor([self._rows[client] for client in clients], dtype=torch.float64)
        each = stack([self._kept[client] for client in clients])
        return Update(mean, each, torch.tensor(clients), rows, self._round)
