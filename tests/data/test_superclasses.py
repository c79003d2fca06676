"""Superclasses and class names: where sources have them, they come along; where they contradict, one line says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import named
from fedkeel.data.loading import load
from fedkeel.data.manifest import split
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import Split


def fails(**settings: Any) -> str:
    with pytest.raises(FedkeelError) as caught:
        load(Source.of(**settings))
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_newsgroups_have_the_groups_of_their_names() -> None:
    dataset = load(Source.of())
    assert dataset.superclass_names == ("alt", "comp", "misc", "rec", "sci", "soc", "talk")
    assert dataset.superclasses == (0, 1, 1, 1, 1, 1, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 6, 6, 6, 6)
    few = load(Source.of(limit=100))
    assert (few.superclasses, few.superclass_names) == (dataset.superclasses, dataset.superclass_names)


@pytest.mark.parametrize(
    ("source", "expected"), [("newsgroups20", True), ("digits", False), ("digits5", False), ("coloured-digits", True)]
)
def test_numbers_are_no_names(source: str, expected: bool) -> None:
    dataset = load(Source.of(source=source))
    assert named(dataset.class_names) is expected
    assert (dataset.superclasses is None) == (source != "newsgroups20")


def npz(path: Path, **more: Any) -> str:
    y = np.arange(40) % 4
    np.savez(path, x=np.ones((40, 2)), y=y, **more)
    return f"npz:{path}"


def test_npz(tmp_path: Path) -> None:
    groups = ["plant", "animal", "plant", "animal"]
    source = npz(tmp_path / "a.npz", class_names=["oak", "cat", "elm", "dog"], superclasses=groups)
    dataset = load(Source.of(source=source, limit=8))
    assert (dataset.superclass_names, dataset.superclasses) == (("animal", "plant"), (1, 0, 1, 0))
    assert named(dataset.class_names)
    assert split(Split.of(kind="pachinko", clients=2, alpha=1), dataset, seed=0).train.clients == 2
    plain = load(Source.of(source=npz(tmp_path / "b.npz")))
    assert (plain.superclasses, plain.superclass_names, named(plain.class_names)) == (None, (), False)
    line = fails(source=npz(tmp_path / "c.npz", superclasses=groups[:3]))
    assert "superclasses has shape (3,): expected one name for each of the 4 classes" in line


def table(path: Path, group_of_cat: str = "animal") -> str:
    lines = [f"text {i},{name},{group}" for i in range(9) for name, group in (("oak", "plant"), ("cat", "animal"))]
    path.write_text("\n".join(["text,label,superclass", *lines, f"last,cat,{group_of_cat}"]))
    return f"csv:{path}"


def test_csv(tmp_path: Path) -> None:
    dataset = load(Source.of(source=table(tmp_path / "a.csv")))
    assert (dataset.class_names, dataset.superclasses) == (("cat", "oak"), (0, 1))
    assert dataset.superclass_names == ("animal", "plant")
    line = fails(source=table(tmp_path / "b.csv", "plant"))
    assert "column 'superclass': class 'cat' has rows in the superclasses 'animal' and 'plant'" in line
    assert "1 of 19 rows have empty cells (1 in column 'superclass'; line 20)" in fails(
        source=table(tmp_path / "c.csv", "")
    )
    assert "set data.superclass_column" in fails(source=table(tmp_path / "d.csv"), superclass_column="group")
    renamed = tmp_path / "e.csv"
    renamed.write_text((tmp_path / "a.csv").read_text().replace("superclass", "group", 1))
    assert load(Source.of(source=f"csv:{renamed}")).superclasses is None
    assert load(Source.of(source=f"csv:{renamed}", superclass_column="group")).superclasses == (0, 1)


def test_hub_datasets(tmp_path: Path) -> None:
    """CIFAR-100 on the hub has coarse_label beside fine_label: naming the one leaves the other as the label."""
    import datasets

    features = datasets.Features(
        {
            "body": datasets.Value("string"),
            "fine_label": datasets.ClassLabel(names=["oak", "cat", "elm", "unseen"]),
            "coarse_label": datasets.ClassLabel(names=["plant", "animal"]),
        }
    )

    def saved(name: str, coarse: list[int]) -> str:
        columns = {"body": [f"text {i}" for i in range(12)], "fine_label": [0, 1, 2] * 4, "coarse_label": coarse}
        train = datasets.Dataset.from_dict(columns, features=features)
        datasets.DatasetDict({"train": train, "test": train.select(range(3))}).save_to_disk(str(tmp_path / name))
        return f"hf:{tmp_path / name}"

    source = saved("good", [0, 1, 0] * 4)
    dataset = load(Source.of(source=source, superclass_column="coarse_label"))
    assert dataset.class_names == ("oak", "cat", "elm", "unseen")
    assert dataset.superclass_names == ("animal", "plant")
    assert dataset.superclasses == (1, 0, 1, -1)
    manifest = split(Split.of(kind="pachinko", clients=3, alpha=1), dataset, seed=0)
    assert (manifest.train.sizes + manifest.test.sizes).tolist() == [5] * 3
    assert load(Source.of(source=source, label_column="fine_label")).superclasses is None
    bad = saved("bad", [0, 1, 0] * 3 + [1, 1, 0])
    assert "class 'oak' has rows in the superclasses" in fails(source=bad, superclass_column="coarse_label")
    blank = saved("blank", [0, 1, -1] * 4)
    assert "row 2 is empty" in fails(source=blank, superclass_column="coarse_label")
    assert "did you mean 'coarse_label'" in fails(source=source, superclass_column="coarse_labels")
