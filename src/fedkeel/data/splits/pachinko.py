"""Pachinko allocation over superclasses and their classes.

Reddi et al., Adaptive Federated Optimization, ICLR 2021.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.shares import dirichlet_shares
from fedkeel.data.splits.base import Pool, Split, register

FINE = 10.0
"""The concentration over the classes of a superclass, in FedPuReL as in Reddi et al. 2021."""


@register("per client Dirichlet(alpha) over superclasses, then over their classes; test rows too (Reddi et al. 2021)")
class Pachinko(Split):
    test_splits: ClassVar[tuple[str, ...]] = ()
    kind: Literal["pachinko"] = "pachinko"
    alpha: float = Field(0.001, gt=0)
    """concentration; small = skewed"""

    def deal(self, train: Pool, test: Pool) -> tuple[np.ndarray, np.ndarray | None]:
        """Training and test rows from one pool, unless a share of the clients' own rows was asked for."""
        if self.test or not len(test.labels):
            return self.owners(train), None
        owner = self.owners(replace(train, labels=np.concatenate([train.labels, test.labels])))
        return owner[: len(train.labels)], owner[len(train.labels) :]

    def owners(self, pool: Pool) -> np.ndarray:
        """Each client draws rows // clients rows, one after the other and without replacement.

        A client's weights over superclasses are ~ Dir(alpha), over the classes of a superclass ~ Dir(10). A row is
        drawn as superclass, then class, then one of the class's rows that are left. A class whose last row is gone is
        taken out and the weights of its superclass are renormalised, a superclass likewise. What remains (less than one
        row for each client) belongs to nobody.
        """
        counts = self._counts(pool, _superclass_of_each(pool.dataset))
        owner = np.full(len(pool.labels), -1, dtype=np.int64)
        for label, rows in pool.by_class():
            dealt = np.repeat(np.arange(self.clients), counts[:, label])
            owner[pool.rng("class", label).permutation(rows)[: len(dealt)]] = dealt
        return owner

    def _counts(self, pool: Pool, group: np.ndarray) -> np.ndarray:
        """How many rows of each class each client draws, (clients, classes).

        This is the law of the loop over single rows, not an approximation: until a class runs out, the draws of a
        client are independent and of one law. So they are drawn all at once and kept up to the one that takes a class's
        last row; the rest is drawn again with the new weights. A class runs out once, so there are at most
        clients + classes draws.
        """
        classes = pool.dataset.classes
        each = len(pool.labels) // self.clients
        if not each:
            raise FedkeelError(
                f"partition.kind = 'pachinko' gives all clients as many rows, and there are {len(pool.labels)} for "
                f"{self.clients} clients; lower partition.clients"
            )
        left = np.bincount(pool.labels, minlength=classes)
        counts = np.zeros((self.clients, classes), dtype=np.int64)
        for client in range(self.clients):
            rng = pool.rng("client", client)
            coarse = np.zeros(group.max() + 1)
            fine = rng.standard_gamma(FINE, size=classes)  # Dir(10) once it is divided by the sum over a superclass
            missing = each
            while missing:
                weights = np.where(left > 0, fine, 0)
                within = np.bincount(group, weights=weights)
                coarse[within == 0] = 0
                if not coarse.any():
                    # At the start. Later only if all that had a weight is gone, as what was left had underflowed: what
                    # is left of a Dirichlet draw, renormalised, is a Dirichlet draw that does not depend on the rest.
                    coarse[within > 0] = dirichlet_shares(rng, self.alpha, int(np.count_nonzero(within)))
                coarse /= coarse.sum()
                law = coarse[group] * weights / np.maximum(within, np.finfo(float).tiny)[group]
                taken = _until_one_is_gone(rng.choice(classes, size=missing, p=law / law.sum()), left)
                counts[client] += taken
                left -= taken
                missing -= int(taken.sum())
        return counts


def _superclass_of_each(dataset: Dataset) -> np.ndarray:
    if dataset.superclasses is None:
        raise FedkeelError(
            f"partition.kind = 'pachinko' needs superclasses, and {dataset.name} has none: add such a column "
            "(data.superclass_column says its name; in an npz file the array superclasses) or choose dirichlet"
        )
    return np.unique(dataset.superclasses, return_inverse=True)[1]


def _until_one_is_gone(drawn: np.ndarray, left: np.ndarray) -> np.ndarray:
    """How many of each class are drawn up to and with the first draw that takes the last one of a class."""
    order = np.argsort(drawn, kind="stable")
    label = drawn[order]
    nth = np.arange(1, len(drawn) + 1) - np.searchsorted(label, label)
    end = order[nth == left[label]].min(initial=len(drawn) - 1) + 1
    return np.bincount(drawn[:end], minlength=len(left))
