"""Label noise has its exact counts, and mistakes a class for the one that the setting says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import SILENT
from fedkeel.data.dataset import Dataset
from fedkeel.data.label_noise import mistaken, noisy_labels
from fedkeel.data.loading import load
from fedkeel.data.ownership import Ownership
from fedkeel.runs.config import load as load_config
from fedkeel.runs.federation import divide
from test_cli import says, within


def owned(sizes: list[int]) -> Ownership:
    return Ownership.of_owners(np.repeat(np.arange(len(sizes)), sizes), len(sizes))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.floats(0, 1), st.integers(2, 7), st.integers(0, 99))
def test_symmetric_noise_changes_exactly_its_share(sizes, ratio, classes, seed):
    labels = np.arange(sum(sizes)) % classes
    noisy = noisy_labels(labels, owned(sizes), "symmetric", ratio, np.arange(classes), seed)
    changed = [int((noisy[rows] != labels[rows]).sum()) for rows in map(owned(sizes).of, range(len(sizes)))]
    assert changed == [int(ratio * n) for n in sizes]
    assert ((noisy >= 0) & (noisy < classes)).all()


def test_symmetric_noise_is_uniform_over_the_others():
    """60,000 rows of class 2 of 5, all hit: the four others are equally likely (chi-squared)."""
    labels = np.full(60_000, 2)
    noisy = noisy_labels(labels, owned([60_000]), "symmetric", 1.0, np.arange(5), 0)
    seen = np.bincount(noisy, minlength=5)
    assert seen[2] == 0
    assert stats.chisquare(seen[[0, 1, 3, 4]]).pvalue > 1e-4


def test_a_higher_ratio_only_adds():
    labels = np.arange(200) % 7
    for kind in ("symmetric", "asymmetric"):
        low, high = (noisy_labels(labels, owned([50, 150]), kind, r, mistaken("next", toy(7)), 3) for r in (0.3, 0.6))
        hit = low != labels
        assert hit.sum() == 60
        assert np.array_equal(high[hit], low[hit])


def test_noise_belongs_to_the_client():
    """Client 1's noise is the same whoever else is there, and differs from client 0's."""
    labels = np.zeros(200, dtype=np.int64)
    both = noisy_labels(labels, owned([100, 100]), "symmetric", 0.5, np.arange(4), 0)
    alone = Ownership(np.array([0, 0, 100]), np.arange(100, 200))
    assert np.array_equal(noisy_labels(labels, alone, "symmetric", 0.5, np.arange(4), 0)[100:], both[100:])
    assert not np.array_equal(both[:100], both[100:])
    assert not labels.any(), "the caller's labels stay as they are"


def toy(classes: int, superclasses: tuple[int, ...] | None = None) -> Dataset:
    """Classes and no rows."""
    rows, labels = np.zeros((0, 2)), np.zeros(0, dtype=np.int64)
    names = tuple(f"class {k}" for k in range(classes))
    return Dataset("toy", "features", rows, labels, rows, labels, names, "", "none", superclasses=superclasses)


def test_what_classes_are_mistaken_for() -> None:
    """By class index, as FedLTF has it for CIFAR-10, CIFAR-100 and MNIST; worked out by hand."""
    assert mistaken("cifar10", toy(10)).tolist() == [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]
    assert mistaken("mnist", toy(10)).tolist() == [0, 1, 7, 8, 4, 6, 5, 7, 8, 9]
    hundred = mistaken("blocks", toy(100))
    assert hundred[[0, 3, 4, 5, 98, 99]].tolist() == [1, 4, 0, 6, 99, 95]
    assert sorted(hundred.tolist()) == list(range(100))
    assert mistaken("blocks", toy(7)).tolist() == [1, 2, 3, 4, 0, 6, 5]
    assert mistaken("next", toy(4)).tolist() == [1, 2, 3, 0]
    assert mistaken("superclass", toy(6, (1, 0, 1, 0, 2, 1))).tolist() == [2, 3, 5, 1, 4, 0]
    assert mistaken("3:1,0:2", toy(4)).tolist() == [2, 1, 2, 1]
    assert mistaken("", toy(3)).tolist() == [0, 1, 2]


def test_it_is_a_setting_and_not_guessed_from_the_source(tmp_path: Path) -> None:
    """A folder of any name; without the setting nothing is run."""
    y = np.arange(100) % 10
    found = {}
    for name in ("cifar10", "photos"):
        np.savez(tmp_path / name, x=np.random.default_rng(0).normal(size=(100, 3)), y=y)
        for text in ("cifar10", "next", "4:9"):
            asked = ["partition.kind=iid", "partition.clients=2", "shift.noise=asymmetric", "shift.noise_ratio=1"]
            asked += [f"data.source=npz:{tmp_path / name}.npz", f"shift.noise_map={text}"]
            exp = load_config(None, asked)
            dataset = load(exp.data)
            manifest, labels, _, _ = divide(exp, dataset, SILENT)
            mine = manifest.train.rows
            found[name, text] = dict(zip(dataset.train_labels[mine].tolist(), labels[mine].tolist(), strict=True))
    for name in ("cifar10", "photos"):
        assert found[name, "cifar10"] == dict(enumerate([0, 1, 0, 5, 7, 3, 6, 7, 8, 1]))
        assert found[name, "next"] == {k: (k + 1) % 10 for k in range(10)}
        assert found[name, "4:9"] == {**{k: k for k in range(10)}, 4: 9}
    plain = load_config(None, ["data.source=coloured-digits", "shift.noise=symmetric", "shift.noise_map=cifar10"])
    divide(plain, load(plain.data), SILENT)  # of two classes: symmetric noise needs no map, whatever it says
    line = "shift.noise = 'asymmetric' needs shift.noise_map, what a class is mistaken for: next"
    says(within("run", "--set", "shift.noise=asymmetric", "shift.noise_ratio=0.4", cwd=tmp_path), line)


MISTAKES = {
    "nxt": "shift.noise_map is 'nxt': expected next, blocks, superclass, cifar10, mnist, or pairs of labels such",
    "3-5": "expected next, blocks",
    "3:5,": "expected next, blocks",
    "3:5,3:6": "shift.noise_map = '3:5,3:6': expected labels 0 to 9, each at most once before a colon",
    "3:10": "expected labels 0 to 9",
    "superclass": "digits has no superclasses",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_what_cannot_be_meant_is_one_line(text: str, tmp_path: Path) -> None:
    asked = ("data.source=digits", "shift.noise=asymmetric", "shift.noise_ratio=0.4", f"shift.noise_map={text}")
    says(within("partition", "--set", *asked, cwd=tmp_path), MISTAKES[text])
    with pytest.raises(FedkeelError, match="'mnist' is for 10 classes, toy has 11"):
        mistaken("mnist", toy(11))


def test_asymmetric_noise_on_cifar10_realises_half():
    """Five of ten classes are mistaken for another: at ratio 1 exactly half of balanced labels change."""
    labels = np.arange(1000) % 10
    noisy = noisy_labels(labels, owned([400, 600]), "asymmetric", 1.0, mistaken("cifar10", toy(10)), 0)
    assert (noisy != labels).sum() == 500
    assert (noisy[labels == 9] == 1).all()


def test_noise_off_and_mistakes():
    labels = np.zeros(4, dtype=np.int64)
    copy = noisy_labels(labels, owned([4]), "none", 0.5, np.arange(1), 0)
    assert np.array_equal(copy, labels)
    assert copy is not labels
    for kind, ratio, classes, line in (
        ("symmetric", 0.5, 1, "at least 2 classes"),
        ("asymmetric", 1.2, 3, "between 0 and 1"),
        ("symmetric", float("nan"), 3, "between 0 and 1"),
        ("symetric", 0.1, 3, "did you mean 'symmetric'"),
    ):
        with pytest.raises(FedkeelError, match=line):
            noisy_labels(labels, owned([4]), kind, ratio, np.arange(classes), 0)
