"""CheXpert as it is downloaded: which rows are read under which rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.manifest import split
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import Split
from small_tables import CHEXPERT, chexpert


def read(folder: Path, said: list[str] | None = None, **settings: str) -> Dataset:
    return Source.of(source=f"chexpert:{folder}", **settings).read(([] if said is None else said).append)


def refused(folder: Path, **settings: str) -> str:
    with pytest.raises(FedkeelError) as error:
        read(folder, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_edema_and_no_finding_with_the_patient_s_sex(tmp_path: Path) -> None:
    home, said = chexpert(tmp_path), list[str]()
    dataset = read(home, said)
    assert dataset.class_names == ("Edema", "No Finding")
    assert dataset.attribute_names == ("Female", "Male")
    assert (len(dataset.train), len(dataset.test)) == (40, 20)
    assert dataset.train[0] == home / "train/patient00001/study1/view1_frontal.jpg"
    assert dataset.test[0] == home / "valid/patient00001/study1/view1_frontal.jpg"
    assert dataset.train_attribute is not None
    pairs = Counter(zip(dataset.train_labels.tolist(), dataset.train_attribute.tolist(), strict=True))
    assert pairs == {(c, a): 10 for c in (0, 1) for a in (0, 1)}
    assert said == [
        f"{home / 'train.csv'}: 3 of 44 rows left out: 2 with uncertain or empty labels, 1 of unknown Sex",
        f"{home}: 1 of 61 rows have none or several of Edema, No Finding: left out",
    ]


def test_the_folder_or_the_one_above_it_whatever_it_is_called(tmp_path: Path) -> None:
    home = chexpert(tmp_path)
    first = read(home)
    assert read(tmp_path).fingerprint == first.fingerprint
    home.rename(tmp_path / "lungs")
    assert read(tmp_path / "lungs").fingerprint == first.fingerprint
    chexpert(tmp_path)
    assert f"holds several folders with a train.csv ({CHEXPERT}, lungs): name one of them" in refused(tmp_path)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"uncertain": "ones"}, {"Edema": 22, "No Finding": 20}),
        ({"uncertain": "zeros"}, {"Edema": 20, "No Finding": 20}),
        ({"label_column": "Edema"}, {"Edema": 20, "no Edema": 21}),
        ({"label_column": "Edema", "uncertain": "zeros"}, {"Edema": 20, "no Edema": 23}),
        ({"label_column": "Edema", "uncertain": "ones"}, {"Edema": 22, "no Edema": 21}),
        ({"label_column": "Edema", "empty": "drop"}, {"Edema": 20}),
        ({"label_column": "Edema", "empty": "ones"}, {"Edema": 41}),
        ({"label_column": "Fracture,Edema,No Finding"}, {"Edema": 20, "Fracture": 1, "No Finding": 20}),
    ],
)
def test_rules_for_uncertain_and_empty_labels(tmp_path: Path, settings: dict[str, str], rows: dict[str, int]) -> None:
    dataset = read(chexpert(tmp_path), **settings)
    assert Counter(dataset.class_names[label] for label in dataset.train_labels) == rows


def test_two_clients_at_90_percent(tmp_path: Path) -> None:
    dataset = read(chexpert(tmp_path))
    manifest = split(Split.of(kind="spurious", clients=2), dataset, seed=0)
    assert manifest.test_rows == "test"
    assert dataset.train_attribute is not None
    for client, rows in enumerate(map(manifest.train.of, (0, 1))):
        pairs = zip(dataset.train_labels[rows].tolist(), dataset.train_attribute[rows].tolist(), strict=True)
        found = Counter(pairs)
        assert found == {(c, a): 9 if a == (c + client) % 2 else 1 for c in (0, 1) for a in (0, 1)}


def test_wrong_layouts_are_one_line_each(tmp_path: Path) -> None:
    assert "there is no train.csv in" in refused(tmp_path)
    home = chexpert(tmp_path)
    assert "has no column 'Oedema': did you mean 'Edema'?" in refused(home, label_column="Oedema")
    assert "set data.attribute_column" in refused(home, attribute_column="Gender")
    listed = (home / "train.csv").read_text()
    for old, new, line in (
        ("-1.0", "-2.0", "Edema is '-2.0'; expected 1.0, 0.0, -1.0 or nothing"),
        ("Path,", "File,", "train.csv has no column Path: it is not CheXpert's list"),
        ("patient00002", "patient70002", "names 'train/patient70002/study1/view1_frontal.jpg', and there is no file"),
    ):
        (home / "train.csv").write_text(listed.replace(old, new))
        assert line in refused(home)
    (home / "train.csv").write_text(listed[:-12])
    assert "line 45 has 11 fields, the first line has 19" in refused(home)
    (home / "train.csv").write_text(listed)
    (home / "valid.csv").unlink()
    assert "valid.csv: No such file" in refused(home)
