"""CelebA as it is downloaded: official parts, four different clients."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.manifest import split
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import Split
from small_tables import CELEBA, celeba


def read(folder: Path, **settings: str) -> Dataset:
    return Source.of(source=f"celeba:{folder}", **settings).read(lambda text: None)


def refused(folder: Path, **settings: str) -> str:
    with pytest.raises(FedkeelError) as error:
        read(folder, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_smiles_with_sex_and_hair(tmp_path: Path) -> None:
    home = celeba(tmp_path)
    dataset = read(home)
    assert dataset.class_names == ("not smiling", "smiling")
    assert dataset.attribute_names == (
        "female, blond hair", "female, not blond hair", "male, blond hair", "male, not blond hair",
    )  # fmt: skip
    assert (len(dataset.train), len(dataset.test)) == (80, 40)
    assert dataset.train[0] == home / "img_align_celeba/000001.jpg"
    assert dataset.test[0] == home / "img_align_celeba/000013.jpg"
    assert len(read(home, valid="train").train) == len(read(home, valid="test").test) + 40 == 96
    assert np.bincount(dataset.train_labels).tolist() == [40, 40]
    assert dataset.train_attribute is not None
    assert (dataset.train_labels[0], dataset.train_attribute[0]) == (1, 2), "a smile of a blond man"


def test_other_labels(tmp_path: Path) -> None:
    home = celeba(tmp_path)
    assert read(home, label_column="Male", attribute_column="Smiling").class_names == ("female", "male")
    assert "names 'blond hair', which is the label" in refused(home, label_column="Blond_Hair")
    hair = read(home, label_column="Blond_Hair,Black_Hair", attribute_column="Male")
    assert hair.class_names == ("black hair", "blond hair")
    assert np.bincount(hair.train_labels)[1] == 40
    assert "has no column 'Smile': did you mean 'Smiling'?" in refused(home, label_column="Smile")


def test_lists_as_kaggle_and_the_download_have_them(tmp_path: Path) -> None:
    home = celeba(tmp_path)
    first = read(home).fingerprint
    for folder, name in (
        ("Anno", "list_attr_celeba.txt"),
        ("Eval", "list_eval_partition.txt"),
        ("Img", "img_align_celeba"),
    ):
        (home / folder).mkdir()
        (home / name).rename(home / folder / name)
    assert read(home).fingerprint == first
    lines = (home / "Anno/list_attr_celeba.txt").read_text().splitlines()[2:]
    header = ",".join(["image_id", *CELEBA.split()])
    (home / "list_attr_celeba.csv").write_text("\n".join([header, *(",".join(line.split()) for line in lines)]) + "\n")
    parts = (home / "Eval/list_eval_partition.txt").read_text().replace(" ", ",")
    (home / "list_eval_partition.csv").write_text(f"image_id,partition\n{parts}")
    for folder in ("Anno", "Eval"):
        (home / folder).rename(tmp_path / folder)
    (home / "Img/img_align_celeba").rename(home / "twice")
    (home / "img_align_celeba").mkdir()
    (home / "twice").rename(home / "img_align_celeba/img_align_celeba")
    assert read(home).fingerprint == first
    (home / "list_eval_partition.csv").write_text(f"image,part\n{parts}")
    assert "list_eval_partition.csv has no column image_id: it is not CelebA's list" in refused(home)


def test_wrong_layouts_are_one_line_each(tmp_path: Path) -> None:
    assert "there is no list_attr_celeba.txt in" in refused(tmp_path)
    home = celeba(tmp_path)
    listed, parts = home / "list_attr_celeba.txt", home / "list_eval_partition.txt"
    for path, old, new, line in (
        (listed, "\n000002", "\n900002", "do not list the same images (2 are in one only, such as 000002.jpg)"),
        (listed, "136\n", "202599\n", "lists 136 images, and its first line says 202599: get it again"),
        (listed, " 1 ", " 2 ", "is '2'; expected -1 or 1"),
        (listed, "000001.jpg -1", "000001.jpg", "line 3 has 40 fields: expected an image and 40 more"),
        (parts, "000002.jpg 0", "000002.jpg 3", "line 2: partition is '3'; expected 0, 1 or 2"),
        (parts, "000002.jpg 0", "000002.jpg", "line 2 has 1 fields: expected an image and 1 more"),
    ):
        before = path.read_text()
        path.write_text(before.replace(old, new))
        assert line in refused(home)
        path.write_text(before)
    parts.write_bytes(b"\xff\xfe\x00")
    assert "is no text: it is not the official list" in refused(home)
    parts.write_text("")
    assert "line 1 has 0 fields" in refused(home)
    parts.unlink()
    assert "there is no list_eval_partition.txt" in refused(home)
    home = celeba(tmp_path)
    (home / "img_align_celeba/000002.jpg").unlink()
    assert f"names '000002.jpg', and there is no file {home / 'img_align_celeba/000002.jpg'}" in refused(home)


def test_four_clients_of_which_no_two_are_alike(tmp_path: Path) -> None:
    """Nine in ten of a client's smiles are of men, of women, of blonds or of others, the other column as it comes."""
    dataset = read(celeba(tmp_path, 40))
    manifest = split(Split.of(kind="spurious", clients=4), dataset, seed=0)
    ends = ("male", "female", "not blond hair", "blond hair")
    assert manifest.names == tuple(f"client-{k:03d}-{end}" for k, end in enumerate(ends))
    assert manifest.test_rows == "test"
    assert len(set(manifest.train.rows.tolist())) == len(manifest.train.rows)
    attribute = dataset.train_attribute
    assert attribute is not None
    sizes = set()
    for client, (column, tied) in enumerate(((0, "male"), (0, "female"), (1, "not blond hair"), (1, "blond hair"))):
        for label in (0, 1):
            rows = manifest.train.of(client)
            values = attribute[rows[dataset.train_labels[rows] == label]]
            sizes.add((label, n := len(values)))
            said = [Counter(part[value] for value in values.tolist()) for part in dataset.attribute_parts]
            main = int(0.9 * n + 0.5)
            assert said[column][tied] == (main if label else n - main)
            assert all(0.2 * n < count < 0.8 * n for count in said[1 - column].values())
    assert len(sizes) == 2, "as many rows of a class at every client"


def test_two_clients_are_those_of_the_first_column(tmp_path: Path) -> None:
    dataset = read(celeba(tmp_path))
    assert split(Split.of(kind="spurious", clients=2), dataset, seed=0).names == (
        "client-000-male",
        "client-001-female",
    )
    six = split(Split.of(kind="spurious", clients=6), dataset, seed=0)
    assert [name[11:] for name in six.names] == ["male", "female", "not blond hair", "blond hair", "male", "female"]
    assert len(set(six.train.sizes.tolist())) == 1


def test_a_column_of_one_value_connects_nothing(tmp_path: Path) -> None:
    dataset = read(celeba(tmp_path), attribute_column="Male,Bald")
    with pytest.raises(FedkeelError, match=r"needs an attribute of each row of celeba:.*it has one value only"):
        split(Split.of(kind="spurious", clients=4), dataset, seed=0)
