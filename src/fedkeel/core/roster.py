"""What a server may know of its clients: who they are, how many rows each enrolled with. Never a row or a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Roster:
    """The clients of a run as its server knows them. A client's number is its place in this list and nothing else."""

    run: str
    """the id that every message of the run carries"""
    names: Sequence[str]
    rows: np.ndarray
    """training rows that each client enrolled with"""
    seed: int
    class_names: tuple[str, ...]
    longest: float | None = None
    """no row of features is longer than this, if that is known: 1 where rows are made unit length"""

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def able(self) -> list[int]:
        """The clients that have rows: nobody else ever takes part."""
        return np.flatnonzero(self.rows).tolist()


@dataclass(frozen=True)
class Enrolment:
    """What clients say of themselves before round 1: how many rows each has, everything else as sums over clients.

    Of one client or of many; those of several sites join to that of the federation.
    """

    names: tuple[str, ...]
    rows: np.ndarray
    """training rows of each client"""
    kinds: np.ndarray
    """of each client, whether its rows are of no class, of one (1) or of several (2)"""
    class_rows: np.ndarray
    """training rows of each class"""
    validation_rows: int
    """held back by clients to choose models on"""
    test_rows: np.ndarray
    """of each class, held back by clients to test models on"""

    @classmethod
    def of_counts(cls, names: Sequence[str], counts: np.ndarray, validation: int, test: np.ndarray) -> Enrolment:
        """From the rows of each class (clients, classes) that sites hold."""
        kinds = np.minimum((counts > 0).sum(1), 2)
        return cls(tuple(names), counts.sum(1), kinds, counts.sum(0), validation, test)

    def joined(self, other: Enrolment) -> Enrolment:
        return Enrolment(
            self.names + other.names,
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.kinds, other.kinds]),
            self.class_rows + other.class_rows,
            self.validation_rows + other.validation_rows,
            self.test_rows + other.test_rows,
        )

    def roster(self, run: str, seed: int, class_names: Sequence[str], longest: float | None = None) -> Roster:
        return Roster(run, self.names, self.rows, seed, tuple(class_names), longest)
