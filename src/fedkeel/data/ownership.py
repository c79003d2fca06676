"""Who owns which row: two flat arrays, whatever the number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

IID = "iid"
"""The split with random equal shares: what all others are set against."""


@dataclass(frozen=True)
class Ownership:
    """The rows of client k are ``rows[offsets[k]:offsets[k + 1]]``."""

    offsets: np.ndarray
    rows: np.ndarray

    @classmethod
    def of_lists(cls, lists: Sequence[np.ndarray]) -> Ownership:
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(rows) for rows in lists], out=offsets[1:])
        rows = np.concatenate(lists) if len(lists) else np.empty(0)
        return cls(offsets, rows.astype(np.int64))

    @classmethod
    def of_owners(cls, owner: np.ndarray, clients: int) -> Ownership:
        """From one owner per row; rows stay in ascending order within a client, -1 owns nothing."""
        rows = np.argsort(owner, kind="stable")
        rows = rows[np.count_nonzero(owner < 0) :]
        offsets = np.zeros(clients + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner[owner >= 0], minlength=clients), out=offsets[1:])
        return cls(offsets, rows.astype(np.int64))

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def without(self, rows: np.ndarray) -> Ownership:
        """The same, with some rows in nobody's hands."""
        kept = ~np.isin(self.rows, rows)
        return Ownership(np.append(0, np.cumsum(kept))[self.offsets], self.rows[kept])

    def of(self, client: int) -> np.ndarray:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    def label_counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Rows per client and class, an integer matrix (clients, classes)."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        flat = np.bincount(owner * classes + labels[self.rows], minlength=self.clients * classes)
        return flat.reshape(self.clients, classes)
