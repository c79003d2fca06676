"""Metrics against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedkeel.data.ownership import Ownership
from fedkeel.metrics.accuracy import evaluate, per_client_mix, per_client_own
from fedkeel.metrics.convergence import acc95_round, decline_rate, retained
from fedkeel.models.prepare import as_rows, mean_energy, prepare
from fedkeel.rows.features import Features


def test_retained() -> None:
    """R(t) = 100 * non-IID / IID: 0.3 / 0.6 = 50 %, 0.6 / 0.5 = 120 % (an overshoot), rounds both runs have."""
    assert retained([0.3, 0.6, 0.9], [0.6, 0.5]) == pytest.approx([50.0, 120.0])
    assert math.isnan(retained([0.3], [0.0])[0])


@pytest.mark.parametrize(
    ("curve", "round"),
    [([0.9, 0.5, 0.94, 1.0], 4), ([0.95, 0.1, 1.0], 1), ([0.5], 1), ([0.8, 0.79, 0.75], 1), ([], None)],
)
def test_acc95_is_relative_to_the_run_s_own_end(curve: list[float], round: int | None) -> None:
    assert acc95_round(curve) == round


def test_decline_rate_is_relative() -> None:
    """OvA-LP Table 2, symmetric noise: 88.78 % at the lowest noise and a decline of 10.35 % leave 79.59 %."""
    assert decline_rate(79.59, 88.78) == pytest.approx(10.35, abs=0.01)


def test_accuracy_per_class_and_per_client() -> None:
    """Logits pick the classes 0 0 1 1 2; labels are 0 1 1 1 0: hits 1 0 1 1 0, so 3 of 5; class 2 has no test rows.
    Client a owns rows 0 and 1 (1 of 2), b rows 2, 3, 4 (2 of 3), c none. By class mix: class accuracies are 1/2 and
    2/3, so a client with 3 rows of class 0 and 1 of class 1 gets 3/4 * 1/2 + 1/4 * 2/3 = 13/24."""
    x = Features(torch.eye(3)[[0, 0, 1, 1, 2]])
    found = evaluate(lambda rows: rows, x, torch.tensor([0, 1, 1, 1, 0]))
    assert found.accuracy == 0.6
    per_class = found.per_class(3)
    assert per_class == [0.5, pytest.approx(2 / 3), None]
    owned = Ownership.of_lists([np.array([0, 1]), np.array([2, 3, 4]), np.array([], dtype=int)])
    assert per_client_own(found, owned) == [0.5, pytest.approx(2 / 3), None]
    counts = np.array([[3, 1, 0], [0, 0, 7], [0, 0, 0]])
    assert per_client_mix(per_class, counts) == [pytest.approx(13 / 24), None, None]


def test_preparation() -> None:
    """Rows (3, 4) and (1, 0): lengths 5 and 1. Mean (2, 2); minus it (1, 2) and (-1, -2), at unit length +-(1, 2) /
    sqrt 5. Energy in the mean: |(2, 2)|^2 / mean(25, 1) = 8 / 13."""
    encoded = np.array([[3, 4], [1, 0]], dtype=np.float16)
    rows = as_rows(encoded)
    assert rows.dtype == torch.float32
    assert mean_energy(rows) == pytest.approx(8 / 13)
    torch.testing.assert_close(prepare(as_rows(encoded), "raw"), rows)
    torch.testing.assert_close(prepare(as_rows(encoded), "l2"), torch.tensor([[0.6, 0.8], [1.0, 0.0]]))
    centred = prepare(as_rows(encoded), "centred", rows.mean(0))
    torch.testing.assert_close(centred, torch.tensor([[1.0, 2.0], [-1.0, -2.0]]) / 5**0.5)
    assert torch.isfinite(prepare(torch.zeros(1, 2), "l2")).all(), "a row of zeros stays finite"
