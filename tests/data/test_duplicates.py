"""Test rows that are training rows as well: all are found, none is made up, and dropping leaves the test as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedkeel as fk
from fedkeel.data import duplicates
from fedkeel.data.loading import load
from fedkeel.data.manifest import Manifest
from fedkeel.runs.federation import divide
from test_cli import within


def divided(data: dict[str, Any], told: list[str] | None = None, **partition: Any) -> tuple[Manifest, Any, Any]:
    """(the split, the counts, the data)"""
    exp = fk.experiment(data=data, partition={"kind": "iid", "clients": 2, **partition})
    dataset = load(exp.data, notice=lambda line: None)
    lines = [] if told is None else told
    manifest, _, _, found = divide(exp, dataset, fk.Watch(notice=lines.append))
    return manifest, found, dataset


X = np.random.default_rng(0).normal(size=(30, 5)).astype("float32")
"""Rows 0 to 19 to train on, 20 to 29 to test on; of these 20 and 21 are copies of 0, and 22 is one of 3 and of 4."""
X[4] = X[3]
X[[20, 21, 22]] = X[[0, 0, 3]]
Y = np.arange(30) % 2
Y[[20, 21]] = Y[0], 1 - Y[0]
FOUND = {"test_rows": 3, "other_label": 2, "train_rows": 3, "dropped": False}


def npz(folder: Path) -> str:
    np.savez(folder / "rows.npz", x=X[:20], y=Y[:20], x_test=X[20:], y_test=Y[20:])
    return f"npz:{folder / 'rows.npz'}"


def pictures(folder: Path) -> str:
    """uint8 of 75 bytes a row, which are not whole words."""
    images = np.random.default_rng(1).integers(0, 255, (30, 5, 5, 3), dtype=np.uint8)
    images[4], images[[20, 21, 22]] = images[3], images[[0, 0, 3]]
    np.savez(folder / "rows.npz", x=images[:20], y=Y[:20], x_test=images[20:], y_test=Y[20:])
    return f"npz:{folder / 'rows.npz'}"


def content(row: int) -> int:
    return {4: 3, 20: 0, 21: 0, 22: 3}.get(row, row)


def csv(folder: Path) -> str:
    lines = [f"text {content(i)},{Y[i]},{'train' if i < 20 else 'test'}" for i in range(30)]
    (folder / "rows.csv").write_text("text,label,split\n" + "\n".join(lines) + "\n")
    return f"csv:{folder / 'rows.csv'}"


def images(folder: Path) -> str:
    for i in range(30):
        path = folder / "rows" / ("train" if i < 20 else "test") / str(Y[i]) / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (content(i), 0, 0)).save(path)
    return f"images:{folder / 'rows'}"


def hub(folder: Path) -> str:
    import datasets

    images(folder)
    paths = [next((folder / "rows").rglob(f"{i:02}.png")) for i in range(30)]
    table = {"image": [{"bytes": path.read_bytes(), "path": None} for path in paths], "label": Y.tolist()}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    whole = datasets.Dataset.from_dict(table, features=features)
    parts = {"train": whole.select(range(20)), "test": whole.select(range(20, 30))}
    datasets.DatasetDict(parts).save_to_disk(str(folder / "hub"))
    shutil.rmtree(folder / "rows")
    return f"hf:{folder / 'hub'}"


@pytest.mark.parametrize("source", [npz, pictures, csv, images, hub], ids=lambda source: source.__name__)
def test_copies_are_counted_told_and_dropped(source: Any, tmp_path: Path) -> None:
    where, told = source(tmp_path), list[str]()
    manifest, found, data = divided({"source": where}, told)
    assert vars(found) == FOUND
    assert told == [
        "3 of 10 test rows are training rows as well, 2 of them with another label: "
        "set data.duplicates=drop to train without their 3 copies"
    ]
    told.clear()
    dropped, found, same = divided({"source": where, "duplicates": "drop"}, told)
    assert vars(found) == {**FOUND, "dropped": True}
    assert told[0].endswith("their 3 copies are not trained on (data.duplicates = drop)")
    assert sorted(set(manifest.train.rows) - set(dropped.train.rows)) == copies_in(data)
    for client in range(2):
        assert set(dropped.train.of(client)) <= set(manifest.train.of(client)), "the split is the same but for them"
    assert np.array_equal(data.test_labels, same.test_labels)
    assert dropped.hash != manifest.hash


def copies_in(data: Any) -> list[int]:
    """The places of the three copies; folders put rows of a class together."""
    if data.name.startswith("images:"):
        return [at for at, path in enumerate(data.train) if path.stem in ("00", "03", "04")]
    return [0, 3, 4]


def test_a_source_without_copies_is_not_talked_about(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X[5:20], y=Y[5:20], x_test=X[23:], y_test=Y[23:])
    told: list[str] = []
    _, found, _ = divided({"source": f"npz:{tmp_path / 'rows.npz'}"}, told)
    assert (found.test_rows, found.other_label, found.train_rows, told) == (0, 0, 0, [])


def test_rows_that_clients_hold_back_are_not_trained_on_elsewhere(tmp_path: Path) -> None:
    """Test rows that are carved from the training rows, and copies in the rows that models are chosen by."""
    rows = np.repeat(X[:20:2], 6, axis=0)
    np.savez(tmp_path / "rows.npz", x=rows, y=np.arange(60) % 2, x_test=X[23:], y_test=Y[23:])
    keep = {"source": f"npz:{tmp_path / 'rows.npz'}"}
    share = {"test": 0.2, "validation": 0.3}
    manifest, found, _ = divided(keep, **share)
    inside = {rows[at].tobytes() for at in manifest.test.rows}
    used = [*manifest.train.rows, *manifest.validation.rows]
    assert found.train_rows == sum(rows[at].tobytes() in inside for at in used) > 0
    assert 0 < found.test_rows <= len(manifest.test.rows)
    dropped, _, _ = divided({**keep, "duplicates": "drop"}, **share)
    assert np.array_equal(dropped.test.rows, manifest.test.rows)
    assert not inside & {rows[at].tobytes() for at in [*dropped.train.rows, *dropped.validation.rows]}


@pytest.mark.parametrize("seed", range(20))
def test_none_is_missed_and_none_is_made_up(seed: int) -> None:
    """Against all pairs, one by one; and where every hash collides only equal rows are called equal."""
    draw = np.random.default_rng(seed)
    train, test = (draw.integers(0, 7, draw.integers(1, 12)).tolist() for _ in range(2))
    kinds = draw.normal(size=(7, 3)).astype("float32")
    parts = [duplicates._Part(kinds[part], np.array(part) % 2) for part in (train, test)]
    everything = [np.arange(len(part)) for part in (train, test)]
    for clash in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if clash:
                patch.setattr(duplicates, "_hashes", lambda rows: np.zeros(len(rows), dtype=np.uint64))
            copies, found = duplicates._copies(parts[0], everything[0], parts[1], everything[1])
        assert copies.tolist() == [at for at, one in enumerate(train) if one in test]
        assert (found.test_rows, found.train_rows) == (sum(one in train for one in test), len(copies))
        assert found.other_label == 0


def test_packs_that_come_with_fedkeel(tmp_path: Path) -> None:
    """The counts of docs/data.md."""
    for source, counts in {"newsgroups20": (32, 20, 30), "digits": (0, 0, 0), "digits5": (0, 0, 0)}.items():
        _, found, _ = divided({"source": source})
        assert (found.test_rows, found.other_label, found.train_rows) == counts, source


def test_a_run_has_them_on_record_and_a_grid_tells_them_once(tmp_path: Path) -> None:
    npz(tmp_path)
    words = ("--set", "data.source=npz:rows.npz", "partition.clients=2", "method.rounds=1", "--out", "grid", "--json")
    done = within("compare", "--methods", "ridge,ncm", "--partitions", "iid", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.replace("\n", " ").count("3 of 10 test rows are training rows as well") == 1
    record = fk.Result.load(tmp_path / "grid/ridge-iid-seed0").record
    assert record.start["data"]["duplicates"] == FOUND
    looked = within("partition", *words[:3], "data.duplicates=drop", "partition.kind=iid", cwd=tmp_path)
    assert "3 copies are not trained on" in looked.stderr.replace("\n", " ")
    assert json.loads(done.stdout)[0]["provenance"]
