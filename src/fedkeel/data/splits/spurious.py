"""An attribute that says much about the class, and something else at the next client.

Chen, Ghoukasian, Jin, Wang, Karimireddy, Li, A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated
Learning, arXiv 2511.12695.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

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

    def names(self, dataset: Dataset) -> tuple[str, ...]:
        """With the value that a client connects with the last class, where several columns make the attribute."""
        found = list(super().names(dataset))
        for column in _columns(dataset, self.clients) if dataset.attribute_parts else ():
            for turn, client in enumerate(column.clients.tolist()):
                found[client] += f"-{column.names[(dataset.classes - 1 + turn) % len(column.names)]}"
        return tuple(found)

    def owners(self, pool: Pool) -> np.ndarray:
        """Of A attribute values, client k connects class c with value (c + k) mod A.

        Among its rows of the class, int(correlation * n + 1 / 2) of n have that value, and the others are spread evenly
        over the other values. Every client gets the same number n of rows of a class, the largest for which the class
        has rows enough; what is left then belongs to nobody. Which clients exist besides two for CheXpert and four for
        CelebA the paper does not say; taking turns is our choice, and so is cutting all clients to the same size.

        Where several columns make the attribute, clients take turns through the values of all of them: with sex and
        hair two connect classes with a sex, whatever the hair, and two with a colour of hair, whatever the sex. A
        random share of the rows of a class is for each column, as large as its share of the clients.
        """
        attribute = _attribute(pool.dataset, pool.attribute)
        columns = _columns(pool.dataset, self.clients)
        shares = np.cumsum([len(column.clients) for column in columns])[:-1]
        owner = np.full(len(pool.labels), -1, dtype=np.int64)
        for label, rows in pool.by_class():
            dealt = np.split(pool.rng("class", label, "columns").permutation(rows), shares * len(rows) // self.clients)
            held = [column.held(np.sort(part), attribute) for column, part in zip(columns, dealt, strict=True)]
            few = min(self._most(pool, label, column, parts) for column, parts in zip(columns, held, strict=True))
            for column, parts in zip(columns, held, strict=True):
                counts = self._by_value(label, len(column.names), few, len(column.clients))
                for value, part in enumerate(parts):
                    rng = pool.rng("class", label, "value", column.first + value)
                    owner[rng.permutation(part)[: counts[:, value].sum()]] = np.repeat(column.clients, counts[:, value])
        return owner

    def _most(self, pool: Pool, label: int, column: Column, held: list[np.ndarray]) -> int:
        """The most rows of a class that each client of a column can have."""
        names, clients = column.names, len(column.clients)
        have = np.array([len(part) for part in held])
        few, many = 0, int(have.sum()) // clients + 1  # few rows are there for everybody, many are not
        while many - few > 1:
            middle = (few + many) // 2
            enough = (self._by_value(label, len(names), middle, clients).sum(0) <= have).all()
            few, many = (middle, many) if enough else (few, middle)
        if not few:
            short = np.argmax(self._by_value(label, len(names), 1, clients).sum(0) - have)
            raise FedkeelError(
                f"partition.kind = {pool.kind}: class {pool.dataset.class_names[label]!r} has {have[short]} rows "
                f"with the attribute {names[short]!r}, too few for {self.clients} clients; lower partition.clients"
            )
        return few

    def tested(self, train: Pool, test: Pool) -> np.ndarray | None:
        """By the same rule, if test rows have attributes, unless a share of the clients' own rows was asked for."""
        return None if test.attribute is None or self.test else self.owners(test)

    def strata(self, dataset: Dataset) -> np.ndarray:
        """A class with an attribute value."""
        attribute = _attribute(dataset, dataset.train_attribute)
        return np.asarray(dataset.train_labels * len(dataset.attribute_names) + attribute)

    def _by_value(self, label: int, values: int, rows: int, clients: int) -> np.ndarray:
        """How many of the ``rows`` rows of a class each client gets of each attribute value: (clients, values)."""
        main = int(self.correlation * rows + 0.5)
        after = np.arange(1, values)
        others = [(rows - main + values - 1 - step) // (values - 1) for step in after]
        client = np.arange(clients)
        counts = np.empty((clients, values), dtype=np.int64)
        counts[client, (label + client) % values] = main
        for step, count in zip(after, others, strict=True):
            counts[client, (label + client + step) % values] = count
        return counts


class Column(NamedTuple):
    """A column of those that make the attribute, and the clients that connect classes with its values."""

    names: tuple[str, ...]
    first: int
    """the place of its first value among those of all columns"""
    says: np.ndarray
    """which of its values stands in each value of the attribute"""
    clients: np.ndarray

    def held(self, rows: np.ndarray, attribute: np.ndarray) -> list[np.ndarray]:
        """The rows of each of its values."""
        said = self.says[attribute[rows]]
        return [rows[said == value] for value in range(len(self.names))]


def _columns(dataset: Dataset, clients: int) -> list[Column]:
    """Those that have clients."""
    columns, every = [], np.arange(clients)
    parts = dataset.attribute_parts or (dataset.attribute_names,)
    sizes = [len(set(part)) for part in parts]
    if min(sizes, default=0) < 2:
        raise _useless(dataset)
    for part, size, end in zip(parts, sizes, np.cumsum(sizes).tolist(), strict=True):
        names = tuple(dict.fromkeys(part))
        turn = every % sum(sizes)
        mine = every[(turn >= end - size) & (turn < end)]
        if len(mine):
            columns.append(Column(names, end - size, np.array([names.index(name) for name in part]), mine))
    return columns


def _attribute(dataset: Dataset, given: np.ndarray | None) -> np.ndarray:
    if given is None or len(dataset.attribute_names) < 2:
        raise _useless(dataset)
    return given


def _useless(dataset: Dataset) -> FedkeelError:
    found = "it has one value only" if dataset.attribute_names else "none is there"
    return FedkeelError(
        f"partition.kind = 'spurious' needs an attribute of each row of {dataset.name}, and {found}: add such a "
        "column (data.attribute_column says its name; in an npz file the array attribute) or choose another kind"
    )
