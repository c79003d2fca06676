"""fedkeel.FederatedClassifier among scikit-learn's own tools, and against what it must be equal to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedkeel as fk
from fedkeel.core.method import from_settings

FEW = {"partition": "iid:clients=4"}


def digits(rows: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every client has two of the ten digits."""
    x, y = load_digits(return_X_y=True)
    return x[:rows] / 16, y[:rows], np.array([f"site {label // 2}" for label in y[:rows]])


@parametrize_with_checks([fk.FederatedClassifier()])
def test_scikit_learn_s_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_ridge_over_clients_is_ridge_of_all_rows() -> None:
    """The sums of all clients are those of all rows: no row is held out, and whose it is makes no difference."""
    x, y, clients = digits()
    penalty = 0.01
    alpha = penalty * np.square(x - x.mean(0)).sum() / x.shape[1]
    exact = Ridge(alpha=alpha).fit(x, np.eye(10)[y])
    for whose in (clients, np.arange(len(y)) % 7, None):
        found = fk.FederatedClassifier(f"ridge:penalty={penalty}:normalise=false", features="raw").fit(x, y, whose)
        assert np.allclose(found.model_.shared["head.weight"], exact.coef_, atol=1e-5)
        assert np.allclose(found.model_.shared["head.bias"], exact.intercept_, atol=1e-5)
        assert (found.predict(x) == exact.predict(x).argmax(1)).all()


def test_it_is_the_model_that_a_run_trains(tmp_path: Path) -> None:
    """On the same rows in the same split; the run just tests it as well."""
    x, y, clients = digits()
    found = fk.FederatedClassifier("ova-lp:rounds=3", random_state=5).fit(x, y, clients)
    rows = fk.Arrays(x, y, clients, x_test=x[:50], y_test=y[:50])
    run = fk.run(data=rows, method="ova-lp:rounds=3", run={"seed": 5, "threads": 1}, out=tmp_path / "run")
    assert found.model_.digest == run.digest
    assert found.score(x[:50], y[:50]) == run.accuracy


@pytest.mark.parametrize("kind", [str, float, lambda y: y * 10 - 3])
def test_labels_come_back_as_they_were_given(kind: Callable[[np.ndarray], np.ndarray]) -> None:
    x, y, clients = digits()
    labels = kind(y) if kind not in (str, float) else y.astype(kind)
    found = fk.FederatedClassifier().fit(x, labels, clients)
    assert found.classes_.tolist() == np.unique(labels).tolist()
    assert (found.predict(x) == labels).mean() > 0.9
    assert found.score(x, labels) == (found.predict(x) == labels).mean()
    chances = found.predict_proba(x)
    assert chances.shape == (300, 10)
    assert np.allclose(chances.sum(1), 1, atol=1e-6)


def test_among_scikit_learn_s_tools() -> None:
    x, y, clients = digits(200)
    piped = make_pipeline(StandardScaler(), fk.FederatedClassifier(features="raw", **FEW))
    assert cross_val_score(piped, x, y, cv=3).mean() > 0.8
    methods = ["ridge", "ncm", {"name": "fedavg", "rounds": 1}]
    search = GridSearchCV(fk.FederatedClassifier(), {"method": methods}, cv=2).fit(x, y, clients=clients)
    assert search.best_params_["method"] == "ridge"
    with config_context(enable_metadata_routing=True):
        routed = make_pipeline(StandardScaler(), fk.FederatedClassifier().set_fit_request(clients=True))
        assert routed.fit(x, y, clients=clients).score(x, y) > 0.8
    twin = clone(fk.FederatedClassifier(from_settings({"name": "ridge", "penalty": 0.1})))
    assert twin.method.penalty == 0.1


def test_the_seed_decides_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    x, y, _ = digits(100)
    seeds = (3, np.int64(3), 4, np.random.RandomState(3), np.random.RandomState(3))
    found = [fk.FederatedClassifier("fedavg:rounds=2", random_state=seed, **FEW).fit(x, y) for seed in seeds]
    first, same, other, drawn, again = (one.model_.digest for one in found)
    assert first == same != other
    assert drawn == again
    assert not list(tmp_path.iterdir())
    found[0].model_.save(tmp_path / "head.safetensors")
    kept = fk.Model.load(tmp_path / "head.safetensors")
    assert np.array_equal(kept.scores(x.astype(np.float32)), found[0].predict_proba(x).astype(np.float32))


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a misspelt method": ({"method": "rigde"}, {}, "did you mean 'ridge'"),
    "a misspelt setting": ({"method": "ridge:penalti=1"}, {}, r"did you mean 'method\.penalty'"),
    "no global model": ({"method": "fedbn"}, {}, "fedbn has no global model"),
    "no network for features": ({"method": "fedavg:tune=network"}, {}, "no network to train"),
    "too few clients": ({}, {"clients": ["a", "b"]}, "inconsistent numbers of samples"),
    "one class": ({}, {"y": [1] * 60}, "1 class"),
    "preparation": ({"features": "scaled"}, {}, r"data\.features is 'scaled'"),
}


@pytest.mark.parametrize(("settings", "given", "part"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes(settings: dict[str, Any], given: dict[str, Any], part: str) -> None:
    x, y, _ = digits(60)
    with pytest.raises((fk.FedkeelError, ValueError), match=part):
        fk.FederatedClassifier(**settings).fit(x, **{"y": y, **given})
