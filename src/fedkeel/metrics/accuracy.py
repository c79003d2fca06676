"""Accuracy overall, per class and per client, always with the rows it was measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.ownership import Ownership

CHUNK = 16384
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


def evaluate(predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Evaluation:
    """Evaluate a function from rows to logits."""
    with torch.inference_mode():
        best = [predict(x[first : first + CHUNK]).argmax(1) for first in range(0, len(x), CHUNK)]
    hits = torch.cat(best) == y
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


def personal_accuracy(
    predict: Callable[[int, Tensor], Tensor],
    clients: Sequence[int],
    test: tuple[Tensor, Tensor, Ownership | None],
    label_counts: np.ndarray,
) -> list[float | None]:
    """Accuracy of the model that each of the clients has for itself: on its own test rows, or weighted by its classes.

    ``predict(client, rows)`` gives logits; ``test`` is (rows, labels, who owns which).
    """
    x, y, owned = test
    found: list[float | None] = []
    for client in clients:
        model = partial(predict, client)
        if owned is None:  # rows of classes that the client does not hold have no weight
            rows = torch.from_numpy(label_counts[client] > 0)[y].nonzero().flatten()
        else:
            rows = torch.from_numpy(owned.of(client))
        if not len(rows):
            found.append(None)
            continue
        evaluation = evaluate(model, x[rows], y[rows])
        if owned is None:
            found += per_client_mix(evaluation.per_class(label_counts.shape[1]), label_counts[[client]])
        else:
            found.append(evaluation.accuracy)
    return found
