"""A federation as an estimator of scikit-learn: ``fit(X, y, clients=...)``, ``predict``, ``predict_proba``."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from fedkeel.commands.experiment import experiment
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, from_settings
from fedkeel.data.sources.arrays import Arrays
from fedkeel.runs.federation import assemble
from fedkeel.runs.simulate import fit


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Trains a head on features that are spread over clients, as ``fedkeel.run`` does, on all rows that it is given.

    Parameters
    ----------
    method
        A name, ``"ridge"``, a name with settings, ``"fedavg:rounds=20:lr=0.1"``, a section of settings or a ``Method``.
        It must make one model for all clients.
    features
        What is done to the rows: ``"centred"`` (minus the federation's mean, then unit length), ``"l2"`` (unit length)
        or ``"raw"``. The first is right for an encoder's features, the last where the length of a row means something.
    partition
        How rows are dealt to clients where ``fit`` is not told whose they are; a name with settings, or a section.
    random_state
        The seed of every draw.

    Attributes
    ----------
    classes_
        The labels, sorted.
    model_
        The trained ``fedkeel.Model``; ``model_.save(path)`` keeps it.
    n_features_in_
        How many features a row has.
    """

    def __init__(
        self,
        method: str | dict[str, Any] | AnyMethod = "ridge",
        *,
        features: Literal["centred", "l2", "raw"] = "centred",
        partition: str | dict[str, Any] = "iid:clients=10",
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.features = features
        self.partition = partition
        self.random_state = random_state

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Train on rows ``X`` (rows, features) with labels ``y``; ``clients`` says whose each row is."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("FederatedClassifier: y has 1 class, expected at least two")
        if clients is not None:
            clients = column_or_1d(clients)
            check_consistent_length(X, clients)
        rows = Arrays(X, labels, clients, class_names=[str(name) for name in self.classes_])
        exp = experiment(
            data={"source": rows.source, "features": self.features},
            partition=self.partition if clients is None else "column",
            method=self.method,
            run={"seed": _seed(self.random_state)},
        )
        method = from_settings(exp.method)
        if not method.common:
            raise FedkeelError(f"FederatedClassifier: {method.name} has no global model, choose another method")
        self.model_ = fit(exp, assemble(exp, rows.dataset))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of ``classes_``, for each row."""
        check_is_fitted(self)
        return self.model_.scores(validate_data(self, X, dtype=np.float32, reset=False)).astype(np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        found: np.ndarray = self.classes_[best]
        return found


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))
