"""Accuracy overall, per class and per client, always with the rows it was measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedkeel.core.rows import Rows
from fedkeel.core.tree import Tensor
from fedkeel.data.ownership import Ownership

Predict = Callable[[Any], Tensor]
CHUNK, SCORES = 16384, 1 << 26
"""Rows that are predicted at once, and scores, where classes are so many that these are what fills the memory."""
OWN_ROWS = "own test rows"
CLASS_MIX = "test set weighted by the client's classes"


@dataclass(frozen=True)
class Evaluation:
    """A model's hits on the test rows."""

    hits: np.ndarray
    labels: np.ndarray

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean())

    def per_class(self, classes: int) -> list[float | None]:
        """None for a class without test rows."""
        counts = np.bincount(self.labels, minlength=classes)
        right = np.bincount(self.labels, weights=self.hits, minlength=classes)
        return [float(r / n) if n else None for r, n in zip(right, counts, strict=True)]


def logits_of(predict: Predict, x: Rows[Any], classes: int) -> Iterator[Tensor]:
    """What a model says of rows, part by part."""
    with torch.inference_mode():
        for part in x.parts(min(CHUNK, max(1, SCORES // classes))):
            yield predict(part.read())


def evaluate(predict: Predict, x: Rows[Any], y: Tensor) -> Evaluation:
    """Evaluate a function from what a method reads to logits."""
    hits = torch.cat([logits.argmax(1) for logits in logits_of(predict, x, int(y.max()) + 1)]) == y
    return Evaluation(hits.numpy(), y.numpy())


def per_client_own(evaluation: Evaluation, owned: Ownership) -> list[float | None]:
    """Accuracy on each client's own test rows; None for a client without any."""
    return [float(evaluation.hits[owned.of(k)].mean()) if owned.sizes[k] else None for k in range(owned.clients)]


def per_client_mix(per_class: list[float | None], label_counts: np.ndarray) -> list[float | None]:
    """Accuracy on the common test set, its classes weighted as in each client's training rows."""
    known = np.array([value is not None for value in per_class])
    values = np.array([value or 0.0 for value in per_class])
    weights = label_counts * known
    totals = weights.sum(1)
    return [float(row @ values / total) if total else None for row, total in zip(weights, totals, strict=True)]


@dataclass(frozen=True)
class TestSets:
    """What models are tested on: each client's own test rows, or the common ones weighted by the client's classes."""

    __test__ = False  # no test case, whatever pytest thinks of the name

    x: Rows[Any]
    y: Tensor
    owned: Ownership | None
    label_counts: np.ndarray
    """training rows of each client and class"""

    @property
    def basis(self) -> str:
        return CLASS_MIX if self.owned is None else OWN_ROWS

    @property
    def rows(self) -> list[int]:
        """How many test rows each client has."""
        return self.owned.sizes.tolist() if self.owned else [len(self.y)] * len(self.label_counts)

    def each(self, evaluation: Evaluation) -> list[float | None]:
        """A model's accuracy on every client's test set; None for a client without any."""
        if self.owned is not None:
            return per_client_own(evaluation, self.owned)
        return per_client_mix(evaluation.per_class(self.label_counts.shape[1]), self.label_counts)

    def on_all(self, predict: Predict) -> list[float | None]:
        return self.each(evaluate(predict, self.x, self.y))

    def own_rows(self, client: int) -> Tensor:
        """Where the rows of a client's test set stand."""
        if self.owned is None:  # rows of classes that the client does not hold have no weight
            return torch.from_numpy(self.label_counts[client] > 0)[self.y].nonzero().flatten()
        return torch.from_numpy(self.owned.of(client))

    def on_own(self, predict: Predict, client: int) -> float | None:
        """The accuracy of one client's model on its own test set."""
        rows = self.own_rows(client)
        if not len(rows):
            return None
        evaluation = evaluate(predict, self.x.pick(rows), self.y[rows])
        if self.owned is not None:
            return evaluation.accuracy
        return per_client_mix(evaluation.per_class(self.label_counts.shape[1]), self.label_counts[[client]])[0]
