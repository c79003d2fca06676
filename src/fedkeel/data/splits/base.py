"""What every kind of split has: the settings they share, and the functions that say who owns which row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.registry import Registry
from fedkeel.core.rng import generator
from fedkeel.core.settings import Open
from fedkeel.data.dataset import Dataset
from fedkeel.data.shares import by_class

MOST_EMPTY = 10_000
"""So many clients may be asked for, however few rows there are."""
SPLITS: Registry[Split] = Registry("partition", "fedkeel.data.splits")


@dataclass(frozen=True)
class Pool:
    """The rows to deal out. Every draw is keyed by seed, kind and purpose."""

    kind: str
    seed: int
    dataset: Dataset
    """Where the rows come from."""
    labels: np.ndarray
    client: np.ndarray | None = None
    """The user's own client name of each row."""
    attribute: np.ndarray | None = None
    """Of each row, as a position in the dataset's ``attribute_names``."""
    features: Callable[[], np.ndarray] | None = None
    """Gives one feature vector per row; called only by the kind that needs it."""

    def rng(self, *key: int | str) -> np.random.Generator:
        return generator(self.seed, "partition", self.kind, *key)

    def by_class(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each class that has rows, with the positions of its rows."""
        return by_class(self.labels)


class Split(Open):
    """Base of all kinds of split. A kind gives ``owners``, and overrides where it differs."""

    registry: ClassVar[Registry[Any]] = SPLITS
    naming: ClassVar[str] = "kind"
    usual: ClassVar[str] = "bernoulli-dirichlet"
    about: ClassVar[str]
    """One line for lists."""
    test_splits: ClassVar[tuple[str, ...]] = ("even",)
    """Which ``test_split`` it can follow."""

    kind: str
    clients: int = Field(100, ge=1)
    validation: float = Field(0.0, ge=0, lt=1)
    test: float = Field(0.0, ge=0, lt=1)
    """shares of each client's rows kept for its own validation and test"""
    test_split: Literal["none", "same", "even", "own"] = "none"
    """how the source's test rows are dealt: not, by the clients' Dirichlet shares, evenly, or by a draw of their own"""

    def check(self) -> None:
        """Raise an error, in one line, if settings do not go together."""
        if self.validation + self.test >= 1:
            raise FedkeelError(
                f"partition.validation + partition.test = {self.validation:g} + {self.test:g}: "
                "expected a sum below 1, so that rows are left to train on; lower one of them"
            )
        if self.test_split == "none":
            return
        if self.test:
            raise FedkeelError(
                f"partition.test_split = {self.test_split!r} deals the source's test rows to the clients, "
                f"partition.test = {self.test:g} keeps training rows for testing instead: set one of them only"
            )
        if self.test_split not in self.test_splits:
            fitting = ", ".join(name for name, kind in sorted(SPLITS.items()) if self.test_split in kind.test_splits)
            raise FedkeelError(
                f"partition.test_split = {self.test_split!r} does not go with partition.kind = {self.kind!r}, only "
                f"with {fitting}; set it to 'none'"
            )

    def canonical(self) -> Split:
        """The same split as its manifest tells it, where a kind is a short name of another one."""
        return self

    def names(self, dataset: Dataset) -> tuple[str, ...]:
        """What the clients are called."""
        rows = len(dataset.train_labels)
        if self.clients > max(MOST_EMPTY, rows):
            raise FedkeelError(
                f"partition.clients = {self.clients:,}, but {dataset.name} has {rows:,} training rows, and clients "
                f"beyond that number have none: expected at most {max(MOST_EMPTY, rows):,}; lower it"
            )
        width = max(3, len(str(self.clients - 1)))
        return tuple(f"client-{k:0{width}d}" for k in range(self.clients))

    def owners(self, pool: Pool) -> np.ndarray:
        """The client of each row, as a position in ``names``; -1 where a kind has no use for the row."""
        raise NotImplementedError

    def tested(self, train: Pool, test: Pool) -> np.ndarray | None:
        """The client of each of the source's test rows; None where these are not dealt out.

        even: one row after the other, class by class, to one client after the other, so that nobody has more than one
        row more than anybody else, of any class or in all.
        """
        if self.test_split == "none":
            return None
        owner = np.full(len(test.labels), -1, dtype=np.int64)
        turns = test.rng("turns").permutation(np.arange(self.clients))
        dealt = 0
        for label, rows in test.by_class():
            owner[test.rng("deal", label).permutation(rows)] = turns[(dealt + np.arange(len(rows))) % len(turns)]
            dealt += len(rows)
        return owner

    def deal(self, train: Pool, test: Pool) -> tuple[np.ndarray, np.ndarray | None]:
        """``owners`` of the training rows and ``tested``, for a kind that draws both at once."""
        return self.owners(train), self.tested(train, test)

    def strata(self, dataset: Dataset) -> np.ndarray:
        """The group of each training row, of which validation and test rows get their share."""
        return dataset.train_labels

    def told(self) -> dict[str, Any]:
        """The settings in the manifest: all that the split depends on, ``test_split`` only where it is used."""
        dealt = {} if self.test_split == "none" else {"test_split": self.test_split}
        kept = {"validation": self.validation, "test": self.test}
        return {**self.model_dump(exclude={"validation", "test", "test_split"}), **dealt, **kept}


Kind = TypeVar("Kind", bound=Split)


def register(about: str) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator that makes a kind of split known by the default of its field ``kind``."""

    def keep(cls: type[Kind]) -> type[Kind]:
        cls.about = about
        SPLITS[cls.model_fields["kind"].default] = cls
        return cls

    return keep
