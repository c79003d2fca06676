"""The long tail has its shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.core.errors import FedkeelError
from fedkeel.data.loading import load
from fedkeel.data.shifts import long_tail
from fedkeel.data.sources.base import Source


def test_long_tail_of_cifar_100():
    """500 rows x 100 classes, factor 100: n_max = N / C = 500, so n_c = int(500 * .01 ** (c / 99)): 500 .. 5.

    Worked by hand: c = 1: 500 * .01 ** (1 / 99) = 500 * .9545 = 477.3; c = 50: 500 * .09770 = 48.9; c = 99: 5.
    """
    labels = np.tile(np.arange(100), 500)
    rows = long_tail(labels, 100, 100, seed=1)
    found = np.bincount(labels[rows], minlength=100)
    assert found[[0, 1, 50, 99]].tolist() == [500, 477, 48, 5]
    assert (np.diff(found) <= 0).all()
    assert (np.diff(rows) > 0).all()


def test_small_data_keep_their_tail():
    """47 classes of 60 rows, factor 100: the last would have int(.6) = 0 rows; it keeps one."""
    labels = np.repeat(np.arange(47), 60)
    assert np.bincount(labels[long_tail(labels, 47, 100, seed=0)], minlength=47)[46] == 1


def test_unbalanced_data_keep_the_shape():
    """Classes of 480, 584, 100 rows, factor 4: shape 1, .5, .25 allows n_max = min(480, 1168, 400) = 400."""
    labels = np.repeat(np.arange(3), [480, 584, 100])
    assert np.bincount(labels[long_tail(labels, 3, 4, seed=0)]).tolist() == [400, 200, 100]


@pytest.mark.parametrize("order", ["label", "random"])
@pytest.mark.parametrize("factor", [10, 50, 100])
def test_long_tail_of_20_newsgroups(factor, order):
    """Its classes have 377 to 600 rows. Rounded down, the shape n_max * factor ** (-c / 19) is met to the row."""
    labels = load(Source.of()).train_labels
    found = np.bincount(labels[long_tail(labels, 20, factor, 0, order)])
    by_size = np.sort(found)[::-1]
    shape = by_size[0] * (1 / factor) ** (np.arange(20) / 19)
    assert (by_size == np.floor(shape + 1e-9)).all()
    assert by_size[0] >= 377
    assert by_size[19] >= 3
    assert np.array_equal(found, by_size) == (order == "label")


def test_the_seed_draws_the_order_of_classes():
    """The largest of 5 equal classes over 200 seeds: each of them 40 times, sd 5.7; its rows stay 1, 1/2, 1/4, .."""
    labels = np.repeat(np.arange(5), 64)
    found = np.array([np.bincount(labels[long_tail(labels, 5, 16, seed, "random")]) for seed in range(200)])
    assert (np.sort(found, axis=1) == [4, 8, 16, 32, 64]).all()
    assert (np.abs(np.bincount(found.argmax(axis=1), minlength=5) - 40) < 4 * 5.7).all()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=8),
    st.floats(1, 1e6),
    st.integers(0, 99),
    st.sampled_from(["label", "random"]),
)
def test_long_tail_asks_no_class_for_more_than_it_has(sizes, factor, seed, order):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = long_tail(labels, len(sizes), factor, seed, order)
    found = np.bincount(labels[rows], minlength=len(sizes))
    assert len(set(rows.tolist())) == len(rows)
    assert (found <= sizes).all()
    assert ((found > 0) == (np.array(sizes) > 0)).all()


def test_long_tail_off_and_mistakes():
    labels = np.array([0, 1, 1])
    assert long_tail(labels, 2, 1, seed=0).tolist() == [0, 1, 2]
    with pytest.raises(FedkeelError, match="expected 1"):
        long_tail(labels, 2, 0.5, seed=0)
    with pytest.raises(FedkeelError, match="at least 2 classes"):
        long_tail(np.zeros(3, dtype=int), 1, 10, seed=0)
