"""Label flip: each client has its own names for some classes, in everything that it owns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.data.shifts import Shift, flip_maps
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import Split
from fedkeel.runs.config import Experiment
from fedkeel.runs.federation import Federation, assemble, divide


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 6), st.floats(0, 1), st.integers(2, 12), st.integers(0, 99))
def test_a_map_is_one_circle_of_the_asked_length(clients: int, ratio: float, classes: int, seed: int) -> None:
    count = int(ratio * classes + 0.5)
    if ratio and count < 2:
        with pytest.raises(FedkeelError, match="takes two"):
            flip_maps(clients, ratio, classes, seed)
        return
    for labels in flip_maps(clients, ratio, classes, seed):
        assert sorted(labels) == list(range(classes))
        moved = np.flatnonzero(labels != np.arange(classes))
        assert len(moved) == count
        at, circle = (int(moved[0]), []) if count else (0, [])
        while count and at not in circle:
            circle.append(at)
            at = int(labels[at])
        assert len(circle) == count


def test_clients_differ_and_a_higher_ratio_moves_more_classes() -> None:
    low, high = (flip_maps(5, ratio, 10, 3) for ratio in (0.2, 0.5))
    assert len(np.unique(low, axis=0)) > 1
    same = np.arange(10)
    assert ((low != same) <= (high != same)).all()
    assert ((low != same).sum(1) == 2).all()
    assert np.array_equal(low[np.arange(5)[:, None], low], np.tile(same, (5, 1))), "two classes swap"
    assert not np.array_equal(low, flip_maps(5, 0.2, 10, 4))


def divided(data: Dataset, partition: dict[str, Any], **shift: Any) -> tuple[Any, np.ndarray, Dataset]:
    return divide(Experiment(partition=Split.of(**partition), shift=Shift(**shift)), data)[:3]


@pytest.fixture(scope="module")
def five() -> Dataset:
    return load(Source.of(source="digits5"))


def test_all_rows_of_a_client_follow_its_map(five: Dataset) -> None:
    """Train, validation and the source's own test rows of the five domains, which are test rows of the clients."""
    manifest, labels, data = divided(five, {"kind": "column", "validation": 0.1}, flip=0.5)
    assert manifest.settings["flip"] == 0.5
    maps = flip_maps(5, 0.5, 10, 0)
    for client in range(5):
        for owned, seen, true in (
            (manifest.train, labels, five.train_labels),
            (manifest.validation, labels, five.train_labels),
            (manifest.train, data.train_labels, five.train_labels),
            (manifest.test, data.test_labels, five.test_labels),
        ):
            rows = owned.of(client)
            assert len(rows)
            assert np.array_equal(seen[rows], maps[client][true[rows]])
    assert (data.test_labels != five.test_labels).mean() == 0.5
    assert data.fingerprint == five.fingerprint, "images are the same: so are their features"


def test_a_federation_tests_clients_by_their_own_labels(five: Dataset) -> None:
    """``test_rows`` gives them, for test rows of the source and for rows carved off."""
    for more in ({"kind": "column"}, {"kind": "iid", "clients": 3, "test": 0.3}):
        method = {"name": "fedavg"}
        exp = Experiment(
            data=Source.of(source="digits5", encoder="pixels"), partition=Split.of(**more), shift=Shift(flip=0.4),
            method=method,
        )  # fmt: skip
        federation: Federation = assemble(exp, five)
        _, y, owned = federation.tested()
        assert owned is not None
        maps = flip_maps(len(federation.manifest.names), 0.4, 10, 0)
        plain = five.test_labels if federation.manifest.test_rows == "test" else five.train_labels
        for client in range(owned.clients):
            rows = federation.manifest.test.of(client)
            assert np.array_equal(y.numpy()[owned.of(client)], maps[client][plain[rows]])
            counts = np.bincount(maps[client][five.train_labels[federation.manifest.train.of(client)]], minlength=10)
            assert np.array_equal(federation.label_counts()[client], counts)


def test_label_noise_comes_on_top_and_spares_test_rows(five: Dataset) -> None:
    _, labels, data = divided(five, {"kind": "column"}, flip=0.2, noise="symmetric", noise_ratio=0.25)
    assert (labels != data.train_labels).mean() == 0.25
    assert (data.test_labels != five.test_labels).mean() == 0.2


def test_needs_test_rows_of_each_client_and_two_classes(five: Dataset) -> None:
    with pytest.raises(FedkeelError, match=r"set partition\.test"):
        divided(five, {"kind": "iid", "clients": 3}, flip=0.2)
    with pytest.raises(FedkeelError, match=r"set it to 0\.2 or more"):
        divided(five, {"kind": "column"}, flip=0.1)
    manifest, _, data = divided(five, {"kind": "column"})
    assert data is five
    assert "flip" not in manifest.settings
