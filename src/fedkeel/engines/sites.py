"""All clients of a simulation: their rows in one place, who owns which, and what each keeps for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from fedkeel.core.roster import Enrolment
from fedkeel.core.rows import Rows
from fedkeel.core.tree import Tensor
from fedkeel.data.ownership import Ownership
from fedkeel.engines.site import Site
from fedkeel.engines.store import Store


class Owned(NamedTuple):
    """Rows with their labels, and which of them each client owns."""

    x: Rows[Any]
    y: Tensor
    owned: Ownership

    def of(self, client: int) -> tuple[Rows[Any], Tensor]:
        rows = torch.from_numpy(self.owned.of(client))
        return self.x.pick(rows), self.y[rows]


@dataclass(frozen=True)
class Sites:
    """The sites of all clients, in the order of the roster. Flat arrays, however many there are."""

    names: Sequence[str]
    x: Rows[Any]
    y: Tensor
    owned: Ownership
    seed: int
    classes: int
    validation: Ownership | None = None
    """The rows of each client that are held back from training."""
    test: Owned | None = None
    """The clients' own test rows, if they have any."""
    store: Store = field(default_factory=Store)

    @property
    def train(self) -> Owned:
        return Owned(self.x, self.y, self.owned)

    def rows(self, client: int) -> Tensor:
        """Where a client's training rows stand."""
        return torch.from_numpy(self.owned.of(client))

    def site(self, client: int) -> Site[Any]:
        held_back = {}
        if self.validation is not None:
            held_back["validation"] = Owned(self.x, self.y, self.validation).of(client)
        if self.test is not None:
            held_back["test"] = self.test.of(client)
        return Site(self.names[client], self.seed, self.classes, *self.train.of(client), held_back)

    def twin(self) -> Sites:
        """The same for another thread."""
        x = self.x.twin()
        test = None if self.test is None else self.test._replace(x=self.test.x.beside(x))
        return replace(self, x=x, test=test)

    @cached_property
    def counts(self) -> Tensor:
        """How many rows of each class each client has."""
        return torch.from_numpy(self.label_counts).float()

    @cached_property
    def label_counts(self) -> np.ndarray:
        return self.owned.label_counts(self.y.numpy(), self.classes)

    def enrol(self) -> Enrolment:
        """What the clients say of themselves before round 1."""
        tested = self.test.y[torch.from_numpy(self.test.owned.rows)] if self.test is not None else self.y[:0]
        test_rows = torch.bincount(tested, minlength=self.classes).numpy()
        held_back = 0 if self.validation is None else len(self.validation.rows)
        return Enrolment.of_counts(self.names, self.label_counts, held_back, test_rows)
