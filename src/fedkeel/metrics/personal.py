"""How good personal models are at home and abroad: every number of LP-FT's tables, in its printed and tabulated form.

All of them come from one matrix: A[i, j] is the accuracy of client i's personal model on client j's test set.

Chen, Ghoukasian, Jin, Wang, Karimireddy, Li, A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated
Learning, arXiv 2511.12695. Sections 3.3 and 3.4 print definitions that its tables do not follow; what the tables hold
follows from their own arithmetic (with two clients Global is (Local + Worst) / 2, and Average is the mean of three):

===========  =====================================================  ====================================================
             as tabulated                                           as printed
===========  =====================================================  ====================================================
Global       ``global_incl``: mean over all test sets               ``global_excl``: mean over other clients' test sets
Worst        ``worst``: each model on the other client's test set   ``worst_text``: the lowest of the local accuracies
             that it does worst on, mean over models
C-Std        ``c_std``: deviation of one model over all test        ``c_std_text``: deviation of the local accuracies
             sets, mean over models
Average      ``average_lgw``: (Local + Global + Worst) / 3 of the   ``average_lg``: (Local + Global) / 2 of the
             tabulated ones                                         printed ones
===========  =====================================================  ====================================================

Deviations are those of the whole population: the paper does not say which it takes (our choice).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.metrics.accuracy import OWN_ROWS
from fedkeel.runs.events import Record

Number = float | None


@dataclass(frozen=True, eq=False)
class Personal:
    """The personal models of some clients on the test sets of all; a metric is None where it has nothing to stand on.

    Accuracies are between 0 and 1. A test set without rows is left out everywhere, and so is a model where a metric
    needs a test set that there is not: its own, or another client's.
    """

    matrix: np.ndarray
    """A, one row per personal model, one column per client; NaN where that client has no test rows"""
    clients: tuple[int, ...]
    """whose model each row is: its column"""
    names: tuple[str, ...]
    """of all clients, column by column"""
    before: np.ndarray | None
    """accuracy of the global model on each client's test set; None where there is no global model"""
    distortions: np.ndarray
    """of each row, how far the features moved: mean l2 between the global and the personal model's features of the
    client's own training rows; NaN where unknown"""
    basis: str
    """what a client's test set is: "own test rows" or "test set weighted by the client's classes" """

    @classmethod
    def of(cls, record: Record) -> Personal:
        """Of a post-hoc folder, or of a run whose method leaves every client a model of its own."""
        test, models = record.personal_test, record.personal
        if test is None or not models:
            raise FedkeelError(f"{record.folder} has no personal models: make some with fedkeel personalize")
        return cls.of_matrix(
            [model["on"] for model in models],
            clients=[model["client"] for model in models],
            names=test["names"],
            before=test["before"],
            distortions=[model["distortion"] for model in models],
            basis=test["basis"],
        )

    @classmethod
    def of_matrix(
        cls,
        matrix: np.ndarray | Sequence[Sequence[Number]],
        *,
        clients: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        before: np.ndarray | Sequence[Number] | None = None,
        distortions: np.ndarray | Sequence[Number] | None = None,
        basis: str = OWN_ROWS,
    ) -> Personal:
        """Of A itself; without ``clients`` every client has a model, row by row. None and NaN both mean: no number."""
        rows = _numbers(matrix)
        models, columns = rows.shape
        return cls(
            rows,
            tuple(range(models) if clients is None else clients),
            tuple(map(str, range(columns)) if names is None else names),
            None if before is None else _numbers(before),
            np.full(models, np.nan) if distortions is None else _numbers(distortions),
            basis,
        )

    @property
    def own(self) -> np.ndarray:
        """Each personal model on the test set of its own client; NaN where that has no rows."""
        return self.matrix[np.arange(len(self.matrix)), list(self.clients)]

    @property
    def others(self) -> np.ndarray:
        """A without each model's own test set: NaN stands there."""
        rest = self.matrix.copy()
        rest[np.arange(len(rest)), list(self.clients)] = np.nan
        return rest

    @property
    def abroad(self) -> bool:
        """Whether models were tested on other clients' test sets, where there are such."""
        several = (~np.isnan(self.matrix)).any(axis=0).sum() > 1
        return bool(not several or not np.isnan(self.others).all())

    @property
    def unchanged(self) -> Personal | None:
        """The same clients, each with the global model as it was before; None where there is no global model."""
        if self.before is None:
            return None
        same = np.tile(self.before, (len(self.clients), 1))
        return Personal(same, self.clients, self.names, self.before, np.zeros(len(same)), self.basis)

    @property
    def local(self) -> Number:
        """Personal models, each on its own client's test set: mean over models. Printed and tabulated alike."""
        return _mean(self.own)

    @property
    def global_incl(self) -> Number:
        """Personal models, each on all clients' test sets, its own included: mean over test sets, then models.

        As tabulated: 1/C^2 sum_i sum_j A[i, j]. Printed is ``global_excl``. None where each was tested at home only.
        """
        return _mean(_each(np.mean, self.matrix)) if self.abroad else None

    @property
    def global_excl(self) -> Number:
        """Personal models, each on the other clients' test sets: mean over test sets, then models.

        As printed: 1/(C (C - 1)) sum_i sum_{j != i} A[i, j]. Tabulated is ``global_incl``.
        """
        return _mean(_each(np.mean, self.others))

    @property
    def worst(self) -> Number:
        """Personal models, each on the other client's test set that it does worst on: mean over models.

        As tabulated: 1/C sum_i min_{j != i} A[i, j]. Printed is ``worst_text``.
        """
        return _mean(_each(np.min, self.others))

    @property
    def worst_text(self) -> Number:
        """Personal models, each on its own client's test set: the lowest of them.

        As printed ("the lowest test accuracy among all clients"): min_i A[i, i]. Tabulated is ``worst``.
        """
        known = self.own[~np.isnan(self.own)]
        return float(known.min()) if len(known) else None

    @property
    def c_std(self) -> Number:
        """Personal models, each on all clients' test sets: deviation over test sets, then mean over models.

        As tabulated: 1/C sum_i std_j A[i, j]. Printed is ``c_std_text``. None with fewer than two test sets.
        """
        several = (~np.isnan(self.matrix)).sum(axis=1) > 1
        return _mean(_each(np.std, self.matrix[several]))

    @property
    def c_std_text(self) -> Number:
        """Personal models, each on its own client's test set: deviation over clients.

        As printed: std_i A[i, i]. Tabulated is ``c_std``. None with fewer than two clients.
        """
        known = self.own[~np.isnan(self.own)]
        return float(known.std()) if len(known) > 1 else None

    @property
    def average_lgw(self) -> Number:
        """As tabulated: (``local`` + ``global_incl`` + ``worst``) / 3. Printed is ``average_lg``."""
        return _mean_of(self.local, self.global_incl, self.worst)

    @property
    def average_lg(self) -> Number:
        """As printed: (``local`` + ``global_excl``) / 2. Tabulated is ``average_lgw``."""
        return _mean_of(self.local, self.global_excl)

    @property
    def local_before(self) -> Number:
        """The global model on the own test set of each client that has a personal model: mean over clients."""
        return None if self.before is None else _mean(self.before[list(self.clients)])

    @property
    def global_before(self) -> Number:
        """The global model on all clients' test sets: mean over test sets."""
        return None if self.before is None else _mean(self.before)

    @property
    def drop_in_global(self) -> Number:
        """What personal models lose on all clients' test sets: ``global_before`` - ``global_incl``."""
        before, after = self.global_before, self.global_incl
        return None if before is None or after is None else before - after

    @property
    def distortion_mean(self) -> Number:
        """Federated feature distortion (Section 3.6): mean over models of ``distortions``."""
        return _mean(self.distortions)


def _numbers(values: np.ndarray | Sequence[Number] | Sequence[Sequence[Number]]) -> np.ndarray:
    return np.array(values, dtype=float)  # None becomes NaN


def _mean(values: np.ndarray) -> Number:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _mean_of(*numbers: Number) -> Number:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if len(known) == len(numbers) else None


def _each(of: Callable[[np.ndarray], float], rows: np.ndarray) -> np.ndarray:
    """A number for each row that has any."""
    return np.array([of(row[~np.isnan(row)]) for row in rows if not np.isnan(row).all()])
