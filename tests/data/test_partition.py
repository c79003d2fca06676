"""Every row has one owner, the kinds have the laws they are named after, and a manifest survives the disk."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import betaln

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.data.dataset import Dataset
from fedkeel.data.describe import describe
from fedkeel.data.manifest import Manifest, split
from fedkeel.data.shares import dirichlet_shares
from fedkeel.data.splits import bernoulli_dirichlet, dirichlet
from fedkeel.data.splits.base import SPLITS, Split

STRANGER = {"train_client": np.array(["a", "b"]), "test_client": np.array(["zoe"])}
SEEDS = (0, 42, 777, 1337, 15254)  # the OvA-LP paper's


def dataset(labels: np.ndarray, classes: int, **more: object) -> Dataset:
    names = tuple(f"class {c}" for c in range(classes))
    rows = np.zeros((len(labels), 2), dtype=np.float32)
    fields = {"test": rows[:0], "test_labels": np.empty(0, dtype=np.int64), **more}
    return Dataset("toy", "features", rows, labels, class_names=names, fingerprint="f00d", encoder="none", **fields)


def balanced(classes: int, each: int, **more: object) -> Dataset:
    return dataset(np.repeat(np.arange(classes), each), classes, **more)


def counts(manifest: Manifest, data: Dataset) -> np.ndarray:
    return manifest.train.label_counts(data.train_labels, data.classes)


def fitting(kind: str, **settings: object) -> Split:
    """The kind with those of the settings that it has."""
    return Split.of(kind=kind, **{key: value for key, value in settings.items() if key in SPLITS[kind].model_fields})


def sizes_of(data: Dataset, **config: object) -> list[int]:
    return split(Split.of(**config), data, seed=0).train.sizes.tolist()


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(set(SPLITS) - {"spurious", "pachinko"})),
    clients=st.integers(1, 60),
    each=st.integers(1, 5),
    shares=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)).filter(lambda s: sum(s) < 1),
    p=st.floats(1e-9, 1),
    alpha=st.sampled_from([1e-9, 0.001, 0.3, 5.0, 1e308]),
    exponent=st.floats(0, 50),
    labels=st.lists(st.integers(0, 4), max_size=80),
    seed=st.integers(0, 2**40),
    drop=st.booleans(),
)
def test_every_row_has_exactly_one_owner(kind, clients, each, shares, p, alpha, exponent, labels, seed, drop):
    """Train, validation and test rows together are the pool, each row once, for all kinds and also for n < clients."""
    y = np.array(labels, dtype=np.int64)
    draw = generator(seed, "test")
    data = dataset(y, 5, train_client=np.array([f"site {i}" for i in draw.integers(clients, size=len(y))], dtype=str))
    rows = np.flatnonzero(draw.random(len(y)) < 0.7) if drop else None
    pool = np.arange(len(y)) if rows is None else rows
    config = fitting(
        kind, clients=clients, classes_per_client=each, p=p, alpha=alpha, exponent=exponent,
        validation=shares[0], test=shares[1],
    )  # fmt: skip
    features = draw.standard_normal((len(y), 3)).round(1)
    present = len(np.unique(y[pool]))
    if kind.startswith("shard") and clients * {"shard-1": 1, "shard-2": 2}.get(kind, each) < present:
        with pytest.raises(FedkeelError, match="each needs one"):
            split(config, data, seed=seed, rows=rows)
        return
    manifest = split(config, data, seed=seed, rows=rows, features=lambda: features)
    parts = (manifest.train, manifest.validation, manifest.test)
    assert np.array_equal(np.sort(np.concatenate([part.rows for part in parts])), pool)
    assert all((part.clients, part.offsets[-1]) == (len(manifest.names), len(part.rows)) for part in parts)
    owned = sum(part.sizes for part in parts)
    assert np.array_equal(manifest.train.sizes > 0, owned > 0), "carving must not empty a client"
    assert split(config, data, seed=seed, rows=rows, features=lambda: features).hash == manifest.hash


def test_another_seed_gives_another_split():
    more = {"train_attribute": np.arange(300) % 2, "attribute_names": ("a", "b"), "superclasses": (0,) * 5 + (1,) * 5}
    data = balanced(10, 30, **more)
    features = generator(0, "f").standard_normal((300, 4))
    for kind in set(SPLITS) - {"column"}:
        config = fitting(kind, clients=20, alpha=0.5, p=0.5, correlation=0.5)
        one, two = (split(config, data, seed=seed, features=lambda: features) for seed in (0, 1))
        assert not np.array_equal(one.train.rows, two.train.rows), kind


def test_iid_is_equal_and_hypergeometric():
    """100 rows of 2 equal classes over 10 clients: sizes 10; class-0 counts vary as drawing 10 of 100 does.

    Hypergeometric variance 10 * .5 * .5 * 90/99 = 2.2727; the mean of 4,000 squares has a relative error of 2 %.
    """
    data = balanced(2, 50)
    config = Split.of(kind="iid", clients=10)
    found = np.concatenate([counts(split(config, data, seed=seed), data)[:, 0] for seed in range(400)])
    assert abs(np.mean((found - 5.0) ** 2) - stats.hypergeom(100, 50, 10).var()) < 0.25
    assert sorted(sizes_of(data, kind="iid", clients=7)) == [14] * 5 + [15] * 2


def test_shard_1_is_a_bijection():
    data = balanced(100, 5)
    manifest = split(Split.of(kind="shard-1", clients=100), data, seed=3)
    held = counts(manifest, data) > 0
    assert all((held.sum(axis=axis) == 1).all() for axis in (0, 1))
    assert not np.array_equal(held.argmax(axis=1), np.arange(100)), "who gets which class is drawn"
    assert manifest.settings["classes_per_client"] == 1
    assert manifest.hash == split(Split.of(kind="shards", classes_per_client=1), data, seed=3).hash


def test_shard_2_of_the_paper():
    """100 clients, 100 classes of 500: 200 shards of 250, two classes per client, two clients per class."""
    data = balanced(100, 500)
    found = counts(split(Split.of(kind="shard-2"), data, seed=0), data)
    assert set(np.unique(found)) == {0, 250}
    assert all(((found > 0).sum(axis=axis) == 2).all() for axis in (0, 1))


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 30),
    each=st.integers(1, 12),
    sizes=st.lists(st.integers(60, 400), min_size=1, max_size=9),
    seed=st.integers(0, 999),
)
def test_shards_are_of_different_classes_and_nearly_equal(clients, each, sizes, seed):
    """Where every shard has a row, a client holds min(n, C) classes, and a class's shards differ by one row at most."""
    classes = len(sizes)
    assume(classes <= clients * each and min(sizes) >= clients * -(-each // classes))
    data = dataset(np.repeat(np.arange(classes), sizes), classes)
    found = counts(split(Split.of(kind="shards", clients=clients, classes_per_client=each), data, seed=seed), data)
    assert ((found > 0).sum(axis=1) == min(each, classes)).all()
    assert (found.sum(axis=0) == sizes).all()
    if each <= classes:
        for column in found.T:
            assert np.ptp(column[column > 0]) <= 1


def test_shards_cut_large_classes_more_often():
    """400 + 100 rows, 10 shards: always cutting the largest gives 8 shards of 50 and 2 of 50."""
    assert sizes_of(dataset(np.repeat([0, 1], [400, 100]), 2), kind="shards", clients=10) == [50] * 10


def test_a_huge_class_does_not_cost_a_client_its_second_class():
    """900, 60, 60 rows, 5 clients x 2: cutting by size alone gives 8 + 1 + 1 shards, so some client would hold one
    class twice. At most one shard per client: the huge class gets 5, the others share 5."""
    data = dataset(np.repeat([0, 1, 2], [900, 60, 60]), 3)
    found = counts(split(Split.of(kind="shards", clients=5, classes_per_client=2), data, seed=0), data)
    assert ((found > 0).sum(axis=1) == 2).all()
    assert (found[:, 0] == 180).all()
    assert sorted((found > 0).sum(axis=0).tolist()) == [2, 3, 5]


def test_dirichlet_has_the_dirichlet_multinomial_law():
    """A client's count of an n-row class is Beta-binomial(n, alpha, (K - 1) alpha): chi-squared over 2,000 classes."""
    n, clients, alpha = 6, 4, 0.5
    data = balanced(2000, n)
    found = counts(split(Split.of(kind="dirichlet", clients=clients, alpha=alpha), data, seed=1), data)
    law = stats.betabinom(n, alpha, (clients - 1) * alpha).pmf(np.arange(n + 1))
    for client in found:
        assert stats.chisquare(np.bincount(client, minlength=n + 1), 2000 * law).pvalue > 1e-4


def test_dirichlet_deals_rows_of_a_class_at_random():
    """No client gets the first rows of a class: with 2 clients the mean position of the first one's rows is central."""
    positions = split(Split.of(kind="dirichlet", clients=2, alpha=50), balanced(200, 100), seed=0).train.of(0) % 100
    assert abs(positions.mean() - 49.5) < 4 * 29 / np.sqrt(len(positions))


def test_bernoulli_dirichlet_golden():
    """p = .1, alpha = .001, K = C = 100, 500 rows per class, the paper's five seeds.

    With m eligible clients (m ~ Bin(100, .1)), a given one gets none of 500 rows with chance
    B(a, (m-1)a + 500) / B(a, (m-1)a), so a class has on average sum_m P(m) m (1 - that) = 1.06 clients. A client
    beyond the first appears about .06 times per class, so the mean over 100 classes has sd .025 and over 5 seeds .011.
    100 classes with 1.06 random holders each leave 100 exp(-1.06) = 34.6 clients empty: 65.4 non-empty, sd 3.1 per
    seed, 1.4 for the mean. (Another generator gave 1.04 - 1.09 and 62 - 65.) Asserted: 4 sd.
    """
    alpha, m = 0.001, np.arange(1, 101)
    rest = np.where(m > 1, (m - 1) * alpha, 1.0)
    nothing = np.where(m > 1, np.exp(betaln(alpha, rest + 500) - betaln(alpha, rest)), 0.0)
    expected = float((stats.binom(100, 0.1).pmf(m) * m * (1 - nothing)).sum())
    assert abs(expected - 1.06) < 0.01
    data = balanced(100, 500)
    config = Split.of(kind="bernoulli-dirichlet", p=0.1, alpha=alpha)
    figures = [describe(split(config, data, seed=seed), data.train_labels, data.class_names) for seed in SEEDS]
    assert all(abs(f.clients_per_class.mean - expected) < 4 * 0.025 for f in figures)
    assert all(abs(f.clients - f.empty - 65.4) < 4 * 3.1 for f in figures)
    assert abs(np.mean([f.clients_per_class.mean for f in figures]) - expected) < 4 * 0.011
    assert abs(np.mean([f.clients - f.empty for f in figures]) - 65.4) < 4 * 1.4


def test_eligible_rows_have_the_law_of_redrawing():
    """Redrawing empty rows = conditioning on not being empty: every pattern x has p^|x| (1-p)^(C-|x|) / (1-(1-p)^C)."""
    p, classes, clients = 0.15, 3, 10_000
    coins = bernoulli_dirichlet.eligible(clients, classes, p, generator(5, "test"))
    seen = np.bincount(coins @ (1 << np.arange(classes)), minlength=8)
    ones = np.array([bin(x).count("1") for x in range(8)])
    law = p**ones * (1 - p) ** (classes - ones) / (1 - (1 - p) ** classes)
    assert seen[0] == 0
    assert stats.chisquare(seen[1:], clients * law[1:]).pvalue > 1e-4


def test_tiny_p_ends_and_leaves_no_class_behind():
    """With p = 1e-9 each client may hold one class; classes nobody may hold go to one client each."""
    data = balanced(50, 4)
    found = counts(split(Split.of(kind="bernoulli-dirichlet", p=1e-9, clients=3, alpha=1), data, seed=0), data)
    assert ((found > 0).sum(axis=0) == 1).all()


def underflowed(draw: list[float]) -> SimpleNamespace:
    """A generator whose Dirichlet draw has failed."""
    return SimpleNamespace(dirichlet=lambda alpha: np.array(draw), integers=generator(0, "underflow").integers)


@pytest.mark.parametrize("draw", [[np.nan] * 4, [0.0] * 4])
def test_a_dirichlet_draw_that_underflows_becomes_one_hot(draw):
    rng = underflowed(draw)
    shares = np.array([dirichlet_shares(rng, 0.001, 4) for _ in range(200)])
    assert (np.sort(shares, axis=1) == [0, 0, 0, 1]).all()
    assert (shares.sum(axis=0) > 25).all(), "every client must have its chance"
    assert (dirichlet_shares(rng, 1e308, 4) == 0.25).all(), "the other limit is an even split"


@pytest.mark.parametrize("kind", ["dirichlet", "bernoulli-dirichlet"])
def test_splits_survive_underflow(kind, monkeypatch):
    def failing(rng: object, alpha: float, parts: int) -> np.ndarray:
        return dirichlet_shares(underflowed([np.nan] * parts), alpha, parts)

    for module in (dirichlet, bernoulli_dirichlet):
        monkeypatch.setattr(module, "dirichlet_shares", failing)
    data = balanced(6, 10)
    found = counts(split(fitting(kind, clients=5, p=0.5), data, seed=0), data)
    assert ((found > 0).sum(axis=0) == 1).all()


def test_zipf_golden():
    """s = 2, K = 100: the top client has 1 / sum k^-2 = 1 / 1.63498 = 61.16 %; the next a quarter of that."""
    sizes = sizes_of(balanced(100, 500), kind="zipf", clients=100, exponent=2)
    assert abs(sizes[0] / 50_000 - 0.6116) < 1e-4
    assert abs(sizes[1] / sizes[0] - 0.25) < 1e-3
    assert sizes[99] == 3  # 50,000 * .6116 / 10,000 = 3.06
    assert (np.diff(sizes) <= 0).all()


def test_zipf_leaves_nobody_empty_while_rows_last():
    assert sizes_of(balanced(2, 26), kind="zipf", clients=50, exponent=4) == [3] + [1] * 49
    assert sizes_of(balanced(1, 3), kind="zipf", clients=5) == [1, 1, 1, 0, 0]
    assert sizes_of(balanced(1, 10), kind="zipf", clients=4, exponent=0) == [3, 3, 2, 2]


def test_feature_clusters_keep_neighbours_together():
    """Two classes with four tight groups each: a client gets one whole group of each class, joined at random."""
    group = np.tile(np.repeat(np.arange(4), 10), 2)
    features = np.eye(4)[group] + generator(0, "jitter").normal(0, 0.01, (80, 4))
    data = balanced(2, 40)
    joined = set()
    for seed in range(6):
        manifest = split(Split.of(kind="feature-clusters", clients=4), data, seed=seed, features=lambda: features)
        for client in range(4):
            rows = manifest.train.of(client)
            assert len(rows) == 20
            assert [len(set(group[rows[rows // 40 == c]])) for c in (0, 1)] == [1, 1]
            joined.add(group[rows[0]] == group[rows[-1]])
    assert joined == {True, False}, "clusters of different classes must not be matched up"


def test_feature_clusters_spread_small_classes_over_the_clients():
    """40 classes of one row have one cluster each; over 10 clients all at one has chance 10 ** -39."""
    config = Split.of(kind="feature-clusters", clients=10)
    manifest = split(config, balanced(40, 1), seed=0, features=lambda: np.zeros((40, 2)))
    assert (manifest.train.sizes > 0).sum() >= 6


def test_feature_clusters_are_fast():
    """The size of 20 Newsgroups (20 classes of 566, 384-d, 100 clusters), in groups; measured 1.5 s on one core."""
    rng = generator(0, "speed")
    features = rng.standard_normal((20 * 566, 384), dtype=np.float32)
    features += 3 * rng.standard_normal((300, 384), dtype=np.float32)[rng.integers(300, size=len(features))]
    began = time.process_time()
    split(Split.of(kind="feature-clusters", clients=100), balanced(20, 566), seed=0, features=lambda: features)
    assert time.process_time() - began < 30


def test_column_takes_the_users_clients():
    train = np.array(["rome", "oslo", "rome", "oslo", "bern", "rome"])
    test = np.array(["bern", "oslo", "bern"])
    more = {"train_client": train, "test_client": test, "test": np.zeros((3, 2)), "test_labels": np.zeros(3, dtype=int)}
    data = dataset(np.zeros(6, dtype=np.int64), 1, **more)
    manifest = split(Split.of(kind="column", clients=77), data, seed=0)
    assert manifest.names == ("bern", "oslo", "rome")
    assert [manifest.train.of(k).tolist() for k in range(3)] == [[4], [1, 3], [0, 2, 5]]
    assert [manifest.test.of(k).tolist() for k in range(3)] == [[0, 2], [1], []]
    assert (manifest.test_rows, "clients" in manifest.settings) == ("test", False)
    carved = split(Split.of(kind="column", test=0.4), data, seed=0)
    assert (carved.test_rows, carved.test.sizes.tolist()) == ("train", [0, 1, 1])
    kept = split(Split.of(kind="column"), data, seed=0, rows=np.array([0, 1, 2]))
    assert (kept.names, kept.train.sizes.tolist()) == (manifest.names, [0, 1, 2])


@pytest.mark.parametrize(
    ("config", "data", "line"),
    [
        ({"kind": "dirichlett"}, balanced(2, 3), "did you mean 'dirichlet'"),
        ({"kind": "shards", "clients": 3}, balanced(10, 3), r"3 clients x 1 classes per client make 3.*10 classes"),
        ({"kind": "iid", "validation": 0.6, "test": 0.5}, balanced(2, 3), r"0\.6 \+ 0\.5"),
        ({"kind": "column"}, balanced(2, 3), "add a client column"),
        ({"kind": "column"}, balanced(1, 2, **STRANGER), r"1 client.*'zoe'"),
        ({"kind": "feature-clusters"}, balanced(2, 3), "needs features"),
    ],
)
def test_mistakes_are_told_in_one_line(config, data, line):
    with pytest.raises(FedkeelError, match=line) as told:
        split(Split.of(**config), data, seed=0)
    assert "\n" not in str(told.value)


def test_features_that_are_no_numbers_are_refused():
    with pytest.raises(FedkeelError, match="NaN or infinity"):
        split(Split.of(kind="feature-clusters"), balanced(2, 3), seed=0, features=lambda: np.full((6, 2), np.inf))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any),
    shares=st.tuples(st.floats(0, 0.98), st.floats(0, 0.98)).filter(lambda s: sum(s) < 1),
    seed=st.integers(0, 999),
)
def test_carving_counts_and_strata(sizes, shares, seed):
    """One client: the counts follow the documented rule and each class gives its share, rounded down or up."""
    data = dataset(np.repeat(np.arange(len(sizes)), sizes), len(sizes))
    manifest = split(Split.of(kind="iid", clients=1, validation=shares[0], test=shares[1]), data, seed=seed)
    n = sum(sizes)
    test = min(int(shares[1] * n + 0.5), n - 1)
    validation = min(int(shares[0] * n + 0.5), n - 1 - test)
    parts = (manifest.train, manifest.validation, manifest.test)
    assert [len(part.rows) for part in parts] == [n - validation - test, validation, test]
    left = np.array(sizes)
    for part, count in ((manifest.test, test), (manifest.validation, validation)):
        taken = np.bincount(data.train_labels[part.rows], minlength=len(sizes))
        assert (np.abs(taken - count * left / left.sum()) < 1).all()
        left = left - taken


def test_carving_prefers_no_class():
    """300 clients with one row of each of two classes, half to test: class 0 goes to test for 150 of them, sd 8.7."""
    data = balanced(2, 300, train_client=np.tile([f"site {k}" for k in range(300)], 2))
    manifest = split(Split.of(kind="column", test=0.5), data, seed=0)
    assert (manifest.test.sizes == 1).all()
    assert abs((data.train_labels[manifest.test.rows] == 0).sum() - 150) < 4 * 8.7


def test_long_names_sort_in_order():
    names = split(Split.of(kind="iid", clients=1001), balanced(1, 5), seed=0).names
    assert names[0] == "client-0000"
    assert list(names) == sorted(names)
    assert split(Split.of(kind="iid", clients=100), balanced(1, 5), seed=0).names[99] == "client-099"


def test_manifest_survives_the_disk(tmp_path: Path):
    manifest = split(Split.of(kind="dirichlet", clients=7, alpha=0.3, test=0.2), balanced(5, 20), seed=9)
    expected = {"kind": "dirichlet", "clients": 7, "alpha": 0.3, "validation": 0.0, "test": 0.2, "seed": 9}
    assert manifest.settings == expected
    path = tmp_path / "split.json"
    manifest.save(path)
    back = Manifest.load(path)
    assert (back.hash, back.names) == (manifest.hash, manifest.names)
    assert np.array_equal(back.test.rows, manifest.test.rows)
    assert back.train.rows.dtype == np.int64
    assert [entry.name for entry in path.parent.iterdir()] == ["split.json"]


# Of the code before pachinko, balance and test_split existed: 100 rows in classes of 40, 30, 20, 10, seed 3. With
# shares for validation and test, and without them on every other row.
OLD = {
    "iid": ("8241d87e179b98b5", "d87e48a4c19b3e9a"),
    "shards": ("bafe7b7599525abd", "d531d8b426909388"),
    "dirichlet": ("18ffea39e41d11af", "dcf4ffda5f750ba0"),
    "bernoulli-dirichlet": ("100ebf822b58e3ba", "e0ee3f4739a7a99b"),
    "zipf": ("20ea9239a7c494be", "52627bb05a085447"),
    "column": ("8e0c0cdabcb13cd2", "b664831f16f2492f"),
}


@pytest.mark.parametrize("kind", OLD)
def test_manifests_stay_what_they_were(kind):
    """New settings that are off leave no trace: a saved split and one that is made today have the same hash."""
    client = np.array(["rome", "oslo"])[np.arange(100) % 2]
    data = dataset(np.repeat(np.arange(4), [40, 30, 20, 10]), 4, train_client=client)
    config = {"clients": 4, "alpha": 0.5, "p": 0.5}
    carved = split(fitting(kind, **config, test=0.2, validation=0.1), data, seed=3)
    some = split(fitting(kind, **config), data, seed=3, rows=np.arange(0, 100, 2))
    assert (carved.hash[:16], some.hash[:16]) == OLD[kind]


def test_damaged_manifest_is_named(tmp_path: Path):
    path = tmp_path / "split.json"
    split(Split.of(kind="iid", clients=3), balanced(2, 6), seed=0).save(path)
    whole = path.read_text()
    stored = json.loads(whole)
    stored["train"]["rows"][0] += 1
    for text in (whole[:-20], "[]", "{}", "\x00", json.dumps(stored), whole.replace('"seed":0', '"seed":1')):
        path.write_text(text)
        with pytest.raises(FedkeelError, match=r"split\.json") as told:
            Manifest.load(path)
        assert "\n" not in str(told.value)
    with pytest.raises(FedkeelError, match="cannot read"):
        Manifest.load(tmp_path / "absent.json")


def test_the_hash_covers_everything():
    base = split(Split.of(kind="iid", clients=3), balanced(2, 6), seed=0)
    fields = {name: getattr(base, name) for name in Manifest.__dataclass_fields__}
    changes = {
        "names": ("a", "b", "c"), "train": base.test, "validation": base.train, "test": base.train,
        "test_rows": "test", "settings": {**base.settings, "seed": 1}, "data": "beef",
    }  # fmt: skip
    assert changes.keys() == fields.keys()
    assert len({Manifest(**{**fields, key: value}).hash for key, value in changes.items()} | {base.hash}) == 8
