"""The long tail has its shape and the noise its exact counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedkeel.core.errors import FedkeelError
from fedkeel.data.loading import load
from fedkeel.data.ownership import Ownership
from fedkeel.data.shifts import asymmetric_map, long_tail, noisy_labels
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


def owned(sizes: list[int]) -> Ownership:
    return Ownership.of_owners(np.repeat(np.arange(len(sizes)), sizes), len(sizes))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.floats(0, 1), st.integers(2, 7), st.integers(0, 99))
def test_symmetric_noise_changes_exactly_its_share(sizes, ratio, classes, seed):
    labels = np.arange(sum(sizes)) % classes
    noisy = noisy_labels(labels, owned(sizes), "symmetric", ratio, classes, "toy", seed)
    changed = [int((noisy[rows] != labels[rows]).sum()) for rows in map(owned(sizes).of, range(len(sizes)))]
    assert changed == [int(ratio * n) for n in sizes]
    assert ((noisy >= 0) & (noisy < classes)).all()


def test_symmetric_noise_is_uniform_over_the_others():
    """60,000 rows of class 2 of 5, all hit: the four others are equally likely (chi-squared)."""
    labels = np.full(60_000, 2)
    noisy = noisy_labels(labels, owned([60_000]), "symmetric", 1.0, 5, "toy", 0)
    seen = np.bincount(noisy, minlength=5)
    assert seen[2] == 0
    assert stats.chisquare(seen[[0, 1, 3, 4]]).pvalue > 1e-4


def test_a_higher_ratio_only_adds():
    labels = np.arange(200) % 7
    for kind in ("symmetric", "asymmetric"):
        low, high = (noisy_labels(labels, owned([50, 150]), kind, r, 7, "toy", 3) for r in (0.3, 0.6))
        hit = low != labels
        assert hit.sum() == 60
        assert np.array_equal(high[hit], low[hit])


def test_noise_belongs_to_the_client():
    """Client 1's noise is the same whoever else is there, and differs from client 0's."""
    labels = np.zeros(200, dtype=np.int64)
    both = noisy_labels(labels, owned([100, 100]), "symmetric", 0.5, 4, "toy", 0)
    alone = Ownership(np.array([0, 0, 100]), np.arange(100, 200))
    assert np.array_equal(noisy_labels(labels, alone, "symmetric", 0.5, 4, "toy", 0)[100:], both[100:])
    assert not np.array_equal(both[:100], both[100:])
    assert not labels.any(), "the caller's labels stay as they are"


def test_asymmetric_maps():
    """FedLTF's maps by class index; any other source: the next label, round the corner."""
    assert asymmetric_map("cifar10", 10).tolist() == [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]
    hundred = asymmetric_map("hf:somebody/CIFAR-100", 100)
    assert hundred[[0, 3, 4, 5, 98, 99]].tolist() == [1, 4, 0, 6, 99, 95]
    assert sorted(hundred.tolist()) == list(range(100))
    assert asymmetric_map("cifar100", 20).tolist() == [*range(1, 20), 0]
    assert asymmetric_map("digits", 10).tolist() == [*range(1, 10), 0]


def test_asymmetric_noise_on_cifar10_realises_half():
    """Five of ten classes are mistaken for another: at ratio 1 exactly half of balanced labels change."""
    labels = np.arange(1000) % 10
    noisy = noisy_labels(labels, owned([400, 600]), "asymmetric", 1.0, 10, "cifar10", 0)
    assert (noisy != labels).sum() == 500
    assert (noisy[labels == 9] == 1).all()


def test_noise_off_and_mistakes():
    labels = np.zeros(4, dtype=np.int64)
    copy = noisy_labels(labels, owned([4]), "none", 0.5, 1, "toy", 0)
    assert np.array_equal(copy, labels)
    assert copy is not labels
    for kind, ratio, classes, line in (
        ("symmetric", 0.5, 1, "at least 2 classes"),
        ("asymmetric", 1.2, 3, "between 0 and 1"),
        ("symmetric", float("nan"), 3, "between 0 and 1"),
        ("symetric", 0.1, 3, "did you mean 'symmetric'"),
    ):
        with pytest.raises(FedkeelError, match=line):
            noisy_labels(labels, owned([4]), kind, ratio, classes, "toy", 0)
