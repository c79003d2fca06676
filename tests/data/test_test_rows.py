"""Clients get test rows: Pachinko allocation over superclasses, dealt-out test rows, and balanced Dirichlet splits."""

from __future__ import annotations

import io
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.describe import describe, render
from fedkeel.data.loading import load
from fedkeel.data.manifest import Manifest, split
from fedkeel.data.ownership import Ownership
from fedkeel.data.shares import dirichlet_shares
from fedkeel.data.shifts import long_tail
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import SPLITS, Pool, Split
from fedkeel.data.splits.dirichlet import Dirichlet
from fedkeel.runs.config import build


def toy(train: list[int], test: list[int], superclasses: tuple[int, ...] | None = None) -> Dataset:
    """``train[c]`` and ``test[c]`` rows of class c."""
    y, tests = (np.repeat(np.arange(len(sizes)), sizes) for sizes in (train, test))
    names = tuple(f"class {c}" for c in range(len(train)))
    rows, test_rows = np.zeros((len(y), 1)), np.zeros((len(tests), 1))
    return Dataset("toy", "features", rows, y, test_rows, tests, names, "f00d", "none", superclasses=superclasses)


def counts(manifest: Manifest, data: Dataset, part: str = "train") -> np.ndarray:
    """Rows per client and class."""
    owned: Ownership = getattr(manifest, part)
    return owned.label_counts(getattr(data, f"{part}_labels"), data.classes)


def told(config: dict[str, Any], data: Dataset) -> str:
    with pytest.raises(FedkeelError) as caught:
        split(build({"partition": config}).partition, data, seed=0)
    line = str(caught.value)
    assert "\n" not in line
    return line


SIZES = st.lists(st.integers(0, 30), min_size=4, max_size=4)


# --- Pachinko allocation --------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    train=SIZES.filter(any),
    test=SIZES,
    superclasses=st.tuples(*[st.integers(0, 2)] * 4),
    clients=st.integers(1, 9),
    alpha=st.sampled_from([1e-9, 0.001, 0.1, 1.0, 5.0, 1e308]),
    validation=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 999),
    drop=st.booleans(),
)
def test_pachinko_gives_everybody_as_many_rows_and_none_twice(
    train, test, superclasses, clients, alpha, validation, seed, drop
):
    data = toy(train, test, superclasses)
    kept = np.arange(0, len(data.train_labels), 2) if drop else None
    pool = np.arange(len(data.train_labels)) if kept is None else kept
    each = (len(pool) + len(data.test_labels)) // clients
    config = Split.of(kind="pachinko", clients=clients, alpha=alpha, validation=validation)
    if not each:
        with pytest.raises(FedkeelError, match=r"lower partition\.clients"):
            split(config, data, seed=seed, rows=kept)
        return
    manifest = split(config, data, seed=seed, rows=kept)
    parts = (manifest.train, manifest.validation, manifest.test)
    assert (sum(part.sizes for part in parts) == each).all()
    trained = np.concatenate([manifest.train.rows, manifest.validation.rows])
    for rows, allowed in ((trained, pool), (manifest.test.rows, np.arange(len(data.test_labels)))):
        assert len(set(rows.tolist())) == len(rows)
        assert np.isin(rows, allowed).all()
    assert manifest.test_rows == ("test" if any(test) else "train")
    assert manifest.hash == split(config, data, seed=seed, rows=kept).hash
    assert manifest.settings.keys() == {"kind", "clients", "alpha", "validation", "test", "seed"}


def by_the_row(stock: list[int], groups: list[int], alpha: float, clients: int, rng: np.random.Generator) -> list[int]:
    """METHODS' scheme to the letter, one row after the other: how many of each class the clients get."""
    left, each = list(stock), sum(stock) // clients
    taken = []
    for _ in range(clients):
        coarse = dict(zip(sorted(set(groups)), rng.dirichlet([alpha] * len(set(groups))), strict=True))
        fine = {g: rng.dirichlet([10.0] * groups.count(g)) for g in coarse}
        members = {g: [c for c, of in enumerate(groups) if of == g] for g in coarse}
        mine = [0] * len(stock)
        for _ in range(each):
            live = [g for g in coarse if any(left[c] for c in members[g])]
            weights = np.array([coarse[g] for g in live])
            group = live[rng.choice(len(live), p=weights / weights.sum())]
            inside = np.array([w if left[c] else 0 for c, w in zip(members[group], fine[group], strict=True)])
            label = members[group][rng.choice(len(inside), p=inside / inside.sum())]
            left[label] -= 1
            mine[label] += 1
        taken += mine
    return taken


@pytest.mark.parametrize(("stock", "groups", "alpha"), [([3, 2, 2], [0, 0, 1], 1.0), ([2, 1, 3], [0, 1, 1], 0.4)])
def test_pachinko_has_the_law_of_drawing_row_by_row(stock, groups, alpha):
    """Two clients and stocks that always run out: both ways give the same table of outcomes (chi-squared)."""
    rng, times = np.random.default_rng(0), 1500
    slow = Counter(tuple(by_the_row(stock, groups, alpha, 2, rng)) for _ in range(times))
    data = toy(stock, [0] * 3, tuple(groups))
    config = Split.of(kind="pachinko", clients=2, alpha=alpha)
    fast = Counter(tuple(counts(split(config, data, seed=seed), data).ravel().tolist()) for seed in range(times))
    outcomes = [key for key in slow.keys() | fast.keys() if slow[key] + fast[key] >= 20]
    assert len(outcomes) >= 5
    assert stats.chi2_contingency([[way[key] for key in outcomes] for way in (slow, fast)]).pvalue > 1e-3


def test_a_class_that_runs_out_leaves_its_weight_to_its_superclass():
    """Ten classes of one row and one of 20 make a superclass, 30 rows of one class the other; a client draws 30 rows.

    Neither superclass can run out, so the first client's rows of one are Beta-binomial(30, 50, 50): mean 15, sd 3.1.
    Were a draw of a class that is gone drawn again from everything, the mean would be 13.8 (measured).
    """
    data = toy([1] * 10 + [20, 30], [0] * 12, (0,) * 11 + (1,))
    config = Split.of(kind="pachinko", clients=2, alpha=50)
    found = [counts(split(config, data, seed=seed), data)[0, :11].sum() for seed in range(300)]
    law = stats.betabinom(30, 50, 50)
    assert abs(np.mean(found) - law.mean()) < 4 * law.std() / np.sqrt(300)
    assert abs(np.std(found) / law.std() - 1) < 4 / np.sqrt(600)


def alike(drawn: np.ndarray) -> float:
    """The chance that two of the rows drawn are of the same kind, which has the mean of the sum of squared shares."""
    return float((drawn * (drawn - 1)).sum() / (drawn.sum() * (drawn.sum() - 1)))


def test_pachinko_concentrates_on_fewer_superclasses_as_alpha_falls():
    """Dir(alpha) over 10 superclasses: E[sum of squared shares] = (alpha + 1) / (10 alpha + 1), here .55, .18, .11.

    Dir(10) over the 5 classes of one: 11 / 51 = .216. The first client draws 200 rows, and any class has 200. The sum
    of squares has an sd of .25 at most; over 30 seeds that is .046, of which 4 are asserted.
    """
    data = toy([200] * 50, [0] * 50, tuple(np.repeat(np.arange(10), 5).tolist()))
    for alpha in (0.1, 1.0, 10.0):
        config = Split.of(kind="pachinko", clients=50, alpha=alpha)
        first = [counts(split(config, data, seed=seed), data)[0].reshape(10, 5) for seed in range(30)]
        coarse = np.mean([alike(found.sum(axis=1)) for found in first])
        fine = np.mean([alike(found[found.sum(axis=1).argmax()]) for found in first])
        assert abs(coarse - (alpha + 1) / (10 * alpha + 1)) < (4 * 0.046 if alpha < 1 else 0.04)
        assert abs(fine - 0.216) < 0.02


def test_pachinko_on_the_long_tail_of_20_newsgroups():
    """The setting of the paper at our scale: test rows follow the client's own mixture, the tail is in few hands."""
    data = load(Source.of())
    kept = long_tail(data.train_labels, 20, 100, 0)
    manifest = split(Split.of(kind="pachinko", clients=20, alpha=0.1), data, seed=0, rows=kept)
    assert set(manifest.train.sizes + manifest.test.sizes) == {(len(kept) + 7532) // 20}
    train, test = counts(manifest, data), counts(manifest, data, "test")
    head = train[:, :3] / train[:, :3].sum(axis=0), test[:, :3] / test[:, :3].sum(axis=0)
    assert np.corrcoef(head[0].ravel(), head[1].ravel())[0, 1] > 0.95
    skewed, even = (
        describe(
            split(Split.of(kind="pachinko", clients=20, alpha=a), data, seed=0), data.train_labels, data.class_names
        )
        for a in (0.1, 5.0)
    )
    assert skewed.skew > even.skew + 0.2


def test_pachinko_carves_where_a_share_of_own_rows_is_asked_for():
    data = toy([20, 20], [10, 10], (0, 1))
    manifest = split(Split.of(kind="pachinko", clients=4, test=0.3), data, seed=0)
    assert (manifest.test_rows, manifest.test.sizes.tolist()) == ("train", [3] * 4)
    assert (manifest.train.sizes == 7).all()


def test_pachinko_is_fast():
    """CIFAR-100's size, 100 clients; measured .05 s. The loop of ``by_the_row`` needs .6 s for a tenth of it."""
    data = toy([500] * 100, [100] * 100, tuple((np.arange(100) % 20).tolist()))
    began = time.process_time()
    split(Split.of(kind="pachinko", clients=100, alpha=0.1), data, seed=0)
    assert time.process_time() - began < 2


# --- test rows dealt out --------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    train=st.lists(st.integers(1, 60), min_size=3, max_size=3),
    test=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    clients=st.integers(1, 12),
    alpha=st.sampled_from([1e-9, 0.1, 1.0, 5.0, 1e308]),
    way=st.sampled_from(["same", "even", "own"]),
    seed=st.integers(0, 999),
)
def test_every_test_row_is_dealt_once_and_training_rows_stay(train, test, clients, alpha, way, seed):
    data = toy(train, test)
    config = {"kind": "dirichlet", "clients": clients, "alpha": alpha}
    manifest = split(Split.of(**config, test_split=way), data, seed=seed)
    assert sorted(manifest.test.rows.tolist()) == list(range(sum(test)))
    assert (manifest.test_rows, manifest.settings["test_split"]) == ("test", way)
    plain = split(Split.of(**config), data, seed=seed)
    assert np.array_equal(manifest.train.rows, plain.train.rows)
    assert np.array_equal(manifest.train.offsets, plain.train.offsets)
    assert manifest.hash != plain.hash


def test_same_shares_for_training_and_test():
    """Of 40,000 training rows a share s is met with sd sqrt(s (1 - s) / 40,000) <= .0025; of 1,000 test rows to one.

    A further draw ("own") of Dir(1) over 8 clients differs from the first by about .1.
    """
    data = toy([40_000] * 4, [1000] * 4)
    far = {}
    for way in ("same", "own"):
        manifest = split(Split.of(kind="dirichlet", clients=8, alpha=1, test_split=way), data, seed=2)
        far[way] = np.abs(counts(manifest, data) / 40_000 - counts(manifest, data, "test") / 1000).max()
    assert far["same"] < 4 * 0.0025 + 0.001
    assert far["own"] > 0.1


@settings(max_examples=60, deadline=None)
@given(
    train=st.lists(st.integers(1, 60), min_size=3, max_size=3),
    test=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    balance=st.booleans(),
    seed=st.integers(0, 99),
)
def test_same_is_the_share_to_the_nearest_whole_row(train, test, balance, seed):
    """The shares of a class are its first draw; with balance, only of those who may still get some."""
    data = toy(train, test)
    config = Dirichlet(clients=3, alpha=5, test_split="same", balance=balance)
    pool = Pool("dirichlet", seed, data, data.train_labels)
    try:
        found = counts(split(config, data, seed=seed), data, "test")
    except FedkeelError:
        assert balance
        return
    _, shares = config.drawn(pool)
    assert (np.abs(found.T - np.array(test)[:, None] * shares) < 1).all()
    if not balance:
        first = [dirichlet_shares(pool.rng("class", label), 5, 3) for label in range(3)]
        np.testing.assert_array_equal(shares, first)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["iid", "shard-1", "dirichlet", "bernoulli-dirichlet", "zipf"]),
    test=st.lists(st.integers(0, 50), min_size=3, max_size=3),
    clients=st.integers(3, 12),
    seed=st.integers(0, 99),
)
def test_even_test_rows_differ_by_one_at_most(kind, test, clients, seed):
    data = toy([20] * 3, test)
    manifest = split(Split.of(kind=kind, clients=clients, test_split="even"), data, seed=seed)
    found = counts(manifest, data, "test")
    assert (found.sum(axis=0) == test).all()
    assert (np.ptp(found, axis=0) <= 1).all()
    assert np.ptp(found.sum(axis=1)) <= 1


def test_even_prefers_no_client_and_no_row():
    """In 200 seeds each of 4 clients gets the one row 50 times, sd 6.1.

    Of 8 rows for 2 clients, the third goes where the first goes with chance 3 / 7: 86 times, sd 7.
    """
    deal = {n: Split.of(kind="iid", clients=n, test_split="even") for n in (2, 4)}
    one = [split(deal[4], toy([4], [1]), seed=seed).test.sizes.argmax() for seed in range(200)]
    assert (np.abs(np.bincount(one, minlength=4) - 50) < 4 * 6.1).all()
    dealt = [split(deal[2], toy([4], [8]), seed=seed).test.of(0) for seed in range(200)]
    assert abs(sum(bool(np.isin(0, rows)) == bool(np.isin(2, rows)) for rows in dealt) - 86) < 4 * 7


def test_test_rows_of_a_class_without_training_rows_belong_to_nobody():
    data = toy([9, 0], [4, 5])
    manifest = split(Split.of(kind="dirichlet", clients=3, alpha=1, test_split="same"), data, seed=0)
    assert counts(manifest, data, "test").sum(axis=0).tolist() == [4, 0]


# --- balance --------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(5, 60), min_size=5, max_size=9),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([0.5, 1.0, 5.0, 1e308]),
    seed=st.integers(0, 999),
)
def test_balance_closes_clients_that_have_enough(sizes, clients, alpha, seed):
    """Whoever held N / K rows before a class gets none of it; everybody ends with a row; every row has one owner."""
    data = toy(sizes, [0] * len(sizes))
    config = Split.of(kind="dirichlet", clients=clients, alpha=alpha, balance=True)
    manifest = split(config, data, seed=seed)
    found = counts(manifest, data)
    before = np.cumsum(found, axis=1) - found
    assert (found[before >= sum(sizes) / clients] == 0).all()
    assert (manifest.train.sizes > 0).all()
    assert sorted(manifest.train.rows.tolist()) == list(range(sum(sizes)))
    assert manifest.settings["balance"] is True


def test_balance_makes_clients_alike_in_size():
    """100 classes of 100 over 20 clients: a share of Dir(.1) has variance .05 * .95 / (20 * .1 + 1) = .0158.

    So without balance a size has mean 500 and sd 100 * sqrt(100 * .0158) = 126. With it nobody passes 500 by more than
    the rows of one class; the sd was 51 on average over five seeds.
    """
    data = toy([100] * 100, [0] * 100)
    spread = {}
    for balance in (False, True):
        config = Split.of(kind="dirichlet", clients=20, alpha=0.1, balance=balance)
        spread[balance] = split(config, data, seed=0).train.sizes
    assert spread[True].max() < 500 + 100
    assert spread[True].std() < spread[False].std() / 2


def test_balance_draws_again_until_nobody_is_empty():
    """5 classes over 5 clients at alpha .05: a class goes nearly whole to one client, seldom to five different ones."""
    data = toy([20] * 5, [0] * 5)
    config = Dirichlet(clients=5, alpha=0.05, balance=True)
    first = [config.attempt(Pool("dirichlet", seed, data, data.train_labels), "try", 0) for seed in range(30)]
    empty = [len(np.unique(owner)) < 5 for owner, _ in first]
    assert any(empty)
    for seed in range(30):
        assert (split(config, data, seed=seed).train.sizes > 0).all()


# --- mistakes and views ---------------------------------------------------------------------------------------------


def test_mistakes_are_told_in_one_line():
    data = toy([9, 9], [4, 4])
    assert "toy has none: add such a column (data.superclass_column" in told({"kind": "pachinko", "clients": 2}, data)
    assert "lower partition.clients" in told({"kind": "pachinko", "clients": 99}, toy([9, 9], [4, 4], (0, 1)))
    both = told({"kind": "dirichlet", "test_split": "same", "test": 0.2}, data)
    assert "partition.test_split = 'same'" in both
    assert "partition.test = 0.2" in both
    assert "only with dirichlet" in told({"kind": "iid", "test_split": "own"}, data)
    for kind in ("pachinko", "column", "spurious"):
        assert "only with bernoulli-dirichlet, dirichlet, feature-clusters, iid, shard-1" in told(
            {"kind": kind, "test_split": "even"}, data
        )
    assert "partition.kind = 'dirichlet' only, not with 'iid'" in told({"kind": "iid", "balance": True}, data)
    empty = told({"kind": "dirichlet", "clients": 19, "balance": True}, data)
    assert "18 rows" in empty
    assert "raise partition.alpha, lower partition.clients" in empty
    assert "each of 18 clients" in told({"kind": "dirichlet", "clients": 18, "alpha": 0.001, "balance": True}, data)
    assert set(SPLITS["dirichlet"].test_splits) == {"same", "even", "own"}


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "pachinko", "alpha": 1},
        {"kind": "dirichlet", "alpha": 1, "test_split": "same", "balance": True},
        {"kind": "iid"},
    ],
)
def test_the_view_tells_of_test_rows(config):
    data = toy([30, 30], [20, 21], (0, 1))
    manifest = split(Split.of(clients=3, **config), data, seed=0)
    console = Console(width=80, record=True, color_system=None, file=io.StringIO())
    console.print(render(manifest, data.train_labels, data.class_names))
    text = console.export_text()
    figures = describe(manifest, data.train_labels, data.class_names)
    assert figures.tests.most == manifest.test.sizes.max()
    assert ("test rows per client" in text) == (config["kind"] != "iid")
    assert (f"{figures.test_rows} test" in text) == (config["kind"] != "iid")
    assert ("balance True, test_split same" in " ".join(text.split())) == (config["kind"] == "dirichlet")
