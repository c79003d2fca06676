"""An attribute that says much about the class, and something else at the next client.

Chen, Ghoukasian, Jin, Wang, Karimireddy, Li, A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated
Learning, arXiv 2511.12695.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.splits.base import Pool, Split, register


@register(
    "an attribute that says much about the class, and something else at the next client (Chen et al. 2025, LP-FT)"
)
class Spurious(Split):
    test_splits: ClassVar[tuple[str, ...]] = ()
    kind: Literal["spurious"] = "spurious"
    correlation: float = Field(0.9, ge=0, le=1)
    """share of a client's rows of a class that have the attribute value it connects with the class"""

    def owners(self, pool: Pool) -> np.ndarray:
        """Of A attribute values, client k connects class c with value (c + k) mod A.

        Among its rows of the class, int(correlation * n + 1 / 2) of n have that value, and the others are spread evenly
        over the other values. Every client gets the same number n of rows of a class, the largest for which the class
        has rows enough; what is left then belongs to nobody. Which clients exist besides two for CheXpert and four for
        CelebA the paper does not say; taking turns is our choice, and so is cutting all clients to the same size.
        """
        attribute, names = _attribute(pool.dataset, pool.attribute), pool.dataset.attribute_names
        owner = np.full(len(pool.labels), -1, dtype=np.int64)
        for label, rows in pool.by_class():
            held = [rows[attribute[rows] == value] for value in range(len(names))]
            have = np.array([len(part) for part in held])
            few, many = 0, len(rows) // self.clients + 1  # few rows are there for everybody, many are not
            while many - few > 1:
                middle = (few + many) // 2
                enough = (self._by_value(label, len(names), middle).sum(0) <= have).all()
                few, many = (middle, many) if enough else (few, middle)
            if not few:
                short = np.argmax(self._by_value(label, len(names), 1).sum(0) - have)
                raise FedkeelError(
                    f"partition.kind = {pool.kind}: class {pool.dataset.class_names[label]!r} has {have[short]} rows "
                    f"with the attribute {names[short]!r}, too few for {self.clients} clients; lower partition.clients"
                )
            counts = self._by_value(label, len(names), few)
            for value, part in enumerate(held):
                chosen = pool.rng("class", label, "value", value).permutation(part)[: counts[:, value].sum()]
                owner[chosen] = np.repeat(np.arange(self.clients), counts[:, value])
        return owner

    def tested(self, train: Pool, test: Pool) -> np.ndarray | None:
        """By the same rule, if test rows have attributes, unless a share of the clients' own rows was asked for."""
        return None if test.attribute is None or self.test else self.owners(test)

    def strata(self, dataset: Dataset) -> np.ndarray:
        """A class with an attribute value."""
        attribute = _attribute(dataset, dataset.train_attribute)
        return np.asarray(dataset.train_labels * len(dataset.attribute_names) + attribute)

    def _by_value(self, label: int, values: int, rows: int) -> np.ndarray:
        """How many of the ``rows`` rows of a class each client gets of each attribute value: (clients, values)."""
        main = int(self.correlation * rows + 0.5)
        after = np.arange(1, values)
        others = [(rows - main + values - 1 - step) // (values - 1) for step in after]
        client = np.arange(self.clients)
        counts = np.empty((self.clients, values), dtype=np.int64)
        counts[client, (label + client) % values] = main
        for step, count in zip(after, others, strict=True):
            counts[client, (label + client + step) % values] = count
        return counts


def _attribute(dataset: Dataset, given: np.ndarray | None) -> np.ndarray:
    if given is None or len(dataset.attribute_names) < 2:
        found = "it has one value only" if dataset.attribute_names else "none is there"
        raise FedkeelError(
            f"partition.kind = 'spurious' needs an attribute of each row of {dataset.name}, and {found}: add such a "
            "column (data.attribute_column says its name; in an npz file the array attribute) or choose another kind"
        )
    return given
