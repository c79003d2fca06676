"""Spurious split: the attribute says as much about the class as was asked for, and nobody's row is anybody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.data.manifest import Manifest, split
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import Split


def toy(counts: list[list[int]], tests: list[list[int]] | None = None) -> Dataset:
    """``counts[c][a]`` training rows of class c with the attribute value a."""

    def rows(table: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        cells = [(c, a) for c, row in enumerate(table) for a, n in enumerate(row) for _ in range(n)]
        found = np.array(cells, dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    y, attribute = rows(counts)
    y_test, attribute_test = rows(tests or [])
    return Dataset(
        "toy", "features", np.zeros((len(y), 1)), y, np.zeros((len(y_test), 1)), y_test,
        tuple(f"class {c}" for c in range(len(counts))), "f00d", "none",
        train_attribute=attribute, test_attribute=attribute_test if tests else None,
        attribute_names=tuple("abcdefgh"[: len(counts[0])]),
    )  # fmt: skip


def table(data: Dataset, rows: np.ndarray, part: str = "train") -> np.ndarray:
    """Rows per class and attribute value."""
    values = len(data.attribute_names)
    cell = getattr(data, f"{part}_labels")[rows] * values + getattr(data, f"{part}_attribute")[rows]
    return np.bincount(cell, minlength=data.classes * values).reshape(data.classes, values)


def spurious(data: Dataset, clients: int, correlation: float = 0.9, seed: int = 0, **more: Any) -> Manifest:
    return split(Split.of(kind="spurious", clients=clients, correlation=correlation, **more), data, seed=seed)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_shares_are_right_to_a_row_and_nothing_is_dealt_twice(draw: st.DataObject) -> None:
    classes, values, clients = (draw.draw(st.integers(low, high)) for low, high in ((1, 3), (2, 4), (1, 6)))
    cell = st.integers(clients, 40)
    counts = [[draw.draw(cell) for _ in range(values)] for _ in range(classes)]
    correlation = draw.draw(st.floats(0, 1))
    data = toy(counts)
    manifest = spurious(data, clients, correlation, seed=draw.draw(st.integers(0, 99)))
    assert len(np.unique(manifest.train.rows)) == len(manifest.train.rows)
    assert len(set(manifest.train.sizes.tolist())) == 1, "all clients have the same size"
    for client in range(clients):
        found = table(data, manifest.train.of(client))
        for label in range(classes):
            rows, main = found[label].sum(), (label + client) % values
            assert rows > 0
            assert abs(found[label, main] - correlation * rows) <= 0.5 + 1e-9
            others = np.delete(found[label], main)
            assert others.max() - others.min() <= 1
    used = sum(table(data, manifest.train.of(client)) for client in range(clients))
    assert (used <= np.array(counts)).all()
    for label in range(classes):  # there would not have been one row more for everybody
        rows = used[label].sum() // clients + 1
        main = int(correlation * rows + 0.5)
        share, extra = divmod(rows - main, values - 1)
        asked = np.zeros(values, dtype=int)
        for client in range(clients):
            for step in range(values):
                asked[(label + client + step) % values] += main if step == 0 else share + (step <= extra)
        assert (asked > counts[label]).any()


def test_chexpert_by_hand() -> None:
    """Two classes, two values, 100 rows of each pair: all are dealt, and client 1 has the reverse of client 0."""
    data = toy([[100, 100], [100, 100]])
    manifest = spurious(data, 2)
    assert table(data, manifest.train.of(0)).tolist() == [[90, 10], [10, 90]]
    assert table(data, manifest.train.of(1)).tolist() == [[10, 90], [90, 10]]
    assert manifest.settings == {
        "kind": "spurious", "clients": 2, "correlation": 0.9, "validation": 0.0, "test": 0.0, "seed": 0,
    }  # fmt: skip


def test_celeba_by_hand() -> None:
    """Four values, four clients, 39 rows of each pair: n = 39 rows of a class for each, 35 of them of the main value.

    Four are left for three values: 2, 1, 1. Over the four clients every value is asked for 35 + 2 + 1 + 1 = 39 rows.
    """
    data = toy([[39] * 4, [39] * 4])
    manifest = spurious(data, 4)
    assert table(data, manifest.train.of(1)).tolist() == [[1, 35, 2, 1], [1, 1, 35, 2]]
    assert manifest.train.sizes.tolist() == [78] * 4


def test_test_rows_by_the_same_rule_or_carved() -> None:
    """50 test rows of each pair go to the clients; a share that is asked for is cut off the training rows instead."""
    data = toy([[100, 100], [100, 100]], [[50, 50], [50, 50]])
    manifest = spurious(data, 2)
    assert manifest.test_rows == "test"
    assert table(data, manifest.test.of(1), "test").tolist() == [[5, 45], [45, 5]]
    for given_data in (data, toy([[100, 100], [100, 100]])):
        carved = spurious(given_data, 2, test=0.2)
        assert carved.test_rows == "train"
        assert table(given_data, carved.test.of(0)).tolist() == [[18, 2], [2, 18]]
        assert table(given_data, carved.train.of(0)).tolist() == [[72, 8], [8, 72]]


def test_a_pair_without_rows_is_named() -> None:
    with pytest.raises(FedkeelError, match="class 'class 1' has 0 rows with the attribute 'b'"):
        spurious(toy([[9, 9], [9, 0]]), 2)
    with pytest.raises(FedkeelError, match="too few for 30 clients"):
        spurious(toy([[9, 9], [9, 9]]), 30)
    with pytest.raises(FedkeelError, match=r"spurious \(test rows\): class 'class 0' has 0 rows"):
        spurious(toy([[9, 9], [9, 9]], [[0, 9], [9, 9]]), 2)
    with pytest.raises(FedkeelError, match="needs an attribute of each row of digits, and none is there"):
        spurious(load(Source.of(source="digits")), 2)
    with pytest.raises(FedkeelError, match="one value only"):
        spurious(toy([[9], [9]]), 2)


def test_coloured_digits_here() -> None:
    data = load(Source.of(source="coloured-digits"))
    manifest = spurious(data, 2)
    assert manifest.train.sizes.tolist() == [500, 500]
    assert table(data, manifest.train.of(0)).tolist() == [[225, 25], [25, 225]]
    assert manifest.test.sizes.tolist() == [250, 250]
    assert table(data, manifest.test.of(1), "test").tolist() == [[12, 113], [113, 12]]


# --- where attributes come from -------------------------------------------------------------------------------------

SEX = np.array(["m", "f"] * 10)
X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) // 2 % 2


def test_attributes_of_an_npz_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, attribute=SEX, x_test=X[:4], y_test=Y[:4], attribute_test=SEX[:4])
    data = load(Source.of(source=f"npz:{tmp_path / 'a.npz'}"))
    assert data.attribute_names == ("f", "m")
    assert data.train_attribute is not None
    assert data.test_attribute is not None
    assert data.train_attribute.tolist() == [1, 0] * 10
    assert data.test_attribute.tolist() == [1, 0, 1, 0]
    np.savez(tmp_path / "b.npz", x=X, y=Y, attribute=SEX)
    held = load(Source.of(source=f"npz:{tmp_path / 'b.npz'}"))  # row i has x = 2 i, and m where i is even
    for rows, attribute in ((held.train, held.train_attribute), (held.test, held.test_attribute)):
        assert attribute is not None
        assert attribute.tolist() == [1 - int(x) // 2 % 2 for x in np.asarray(rows)[:, 0]]
    np.savez(tmp_path / "c.npz", x=X, y=Y, attribute=SEX[:3])
    np.savez(tmp_path / "d.npz", x=X, y=Y, x_test=X, y_test=Y, attribute_test=SEX)
    np.savez(tmp_path / "e.npz", x=X, y=Y, attribute=X[:, 0])
    for name, line in (("c", r"array attribute has shape \(3,\)"), ("d", "no attribute"), ("e", "float64")):
        with pytest.raises(FedkeelError, match=line):
            load(Source.of(source=f"npz:{tmp_path / name}.npz"))


def test_limit_is_even_over_attributes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, attribute=SEX, x_test=X, y_test=Y, attribute_test=SEX)
    data = load(Source.of(source=f"npz:{tmp_path / 'a.npz'}", limit=8))
    assert table(data, np.arange(8)).tolist() == [[2, 2], [2, 2]]


def test_attributes_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label,sex,split\na,0,m,train\nb,1,f,train\nc,1,m,test\nd,0,f,train\ne,1,m,train\n")
    data = load(Source.of(source=f"csv:{path}", attribute_column="sex"))
    assert (data.train_attribute.tolist(), data.test_attribute.tolist()) == ([1, 0, 0, 1], [1])  # type: ignore[union-attr]
    assert load(Source.of(source=f"csv:{path}")).train_attribute is None
    with pytest.raises(FedkeelError, match=r"did you mean 'sex'.*data\.attribute_column"):
        load(Source.of(source=f"csv:{path}", attribute_column="sexx"))


def test_attributes_of_a_hub_dataset(tmp_path: Path) -> None:
    import datasets

    rows = {"text": [f"text {i}" for i in range(20)], "label": Y.tolist(), "Male": [i % 2 == 0 for i in range(20)]}
    saved = datasets.DatasetDict({part: datasets.Dataset.from_dict(rows) for part in ("train", "test")})
    saved.save_to_disk(tmp_path / "saved")
    data = load(Source.of(source=f"hf:{tmp_path / 'saved'}", attribute_column="Male"))
    assert data.attribute_names == ("False", "True")
    for attribute in (data.train_attribute, data.test_attribute):
        assert attribute is not None
        assert attribute.tolist() == [1, 0] * 10
    with pytest.raises(FedkeelError, match=r"no column 'male'.*data\.attribute_column"):
        load(Source.of(source=f"hf:{tmp_path / 'saved'}", attribute_column="male"))
