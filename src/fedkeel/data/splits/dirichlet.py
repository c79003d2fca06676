"""Per class Dirichlet shares over all clients.

Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.data.shares import dirichlet_shares, largest_remainder
from fedkeel.data.splits.base import Pool, Split, register

TRIES = 100
"""How often a balanced split is drawn until nobody is empty."""


@register("per class Dirichlet(alpha) shares over all clients (Yurochkin et al. 2019)")
class Dirichlet(Split):
    test_splits: ClassVar[tuple[str, ...]] = ("same", "even", "own")
    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(0.001, gt=0)
    """concentration; small = skewed"""
    balance: bool = False
    """clients that hold their even share of all rows get no further class, and nobody stays empty"""

    def owners(self, pool: Pool) -> np.ndarray:
        """Per class: shares ~ Dir(alpha) over all clients, then a multinomial number of its rows to each.

        With ``balance``, only over the clients that hold fewer than N / K rows so far: the law of drawing shares for
        all, setting those of the others to 0 and renormalising. Classes come in the order of their label; if somebody
        ends without a row, everything is drawn again.
        """
        return self.drawn(pool)[0]

    def tested(self, train: Pool, test: Pool) -> np.ndarray | None:
        """As ``test_split`` says. same: by the training rows' shares of each class; own: by shares of a further draw.

        Here the rows of a class are dealt to the nearest whole number (largest remainder): the training rows'
        multinomial would add noise, and a client that is due a row of a small class could go without. Rounding is our
        choice. Rows of a class that has no training rows belong to nobody with "same".
        """
        if self.test_split not in ("same", "own"):
            return super().tested(train, test)
        owner = np.full(len(test.labels), -1, dtype=np.int64)
        _, shares = self.drawn(train if self.test_split == "same" else test)
        for label, rows in test.by_class():
            if shares[label].any():
                counts = largest_remainder(len(rows) * shares[label])
                owner[test.rng("deal", label).permutation(rows)] = np.repeat(np.arange(self.clients), counts)
        return owner

    def drawn(self, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
        """The owner of each row, and the shares (classes, clients) by which rows were dealt."""
        if not self.balance:
            return self.attempt(pool)
        for attempt in range(TRIES):
            owner, shares = self.attempt(pool, "try", attempt)
            if len(np.unique(owner)) == self.clients:
                return owner, shares
        raise FedkeelError(
            f"partition.kind = {pool.kind} with partition.balance: {len(pool.labels):,} rows could not be dealt so "
            f"that each of {self.clients} clients has one; raise partition.alpha, lower partition.clients or set "
            "balance off"
        )

    def attempt(self, pool: Pool, *key: int | str) -> tuple[np.ndarray, np.ndarray]:
        """One draw, in which somebody may end without a row."""
        owner = np.empty(len(pool.labels), dtype=np.int64)
        shares = np.zeros((pool.dataset.classes, self.clients))
        sizes = np.zeros(self.clients, dtype=np.int64)
        for label, rows in pool.by_class():
            rng = pool.rng(*key, "class", label)
            room = sizes * self.clients < len(pool.labels) if self.balance else np.ones(len(sizes), dtype=bool)
            shares[label, room] = dirichlet_shares(rng, self.alpha, int(room.sum()))
            counts = np.zeros_like(sizes)
            counts[room] = rng.multinomial(len(rows), shares[label, room])
            owner[rng.permutation(rows)] = np.repeat(np.arange(self.clients), counts)
            sizes += counts
        return owner, shares

    def told(self) -> dict[str, Any]:
        """``balance`` only where it is used."""
        return {key: value for key, value in super().told().items() if key != "balance" or value}
