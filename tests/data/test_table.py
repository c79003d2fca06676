"""Tables of image paths or texts: what their columns say, which rows are used, and what is wrong with a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import SILENT
from fedkeel.data.dataset import Dataset
from fedkeel.data.sources.base import Source
from fedkeel.deploy.init import init, planned
from fedkeel.deploy.rows import own_rows
from fedkeel.deploy.settings import read_site
from small_tables import picture, table


def read(path: Path, said: list[str] | None = None, **settings: str) -> Dataset:
    return Source.of(source=f"table:{path}", **settings).read(([] if said is None else said).append)


def refused(path: Path, **settings: str) -> str:
    with pytest.raises(FedkeelError) as error:
        read(path, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def written(folder: Path, *lines: str) -> Path:
    for name in "abcd":
        picture(folder / f"{name}.png", ord(name))
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder / "t.csv"


def test_images_with_all_that_the_table_says_of_them(tmp_path: Path) -> None:
    dataset = read(table(tmp_path))
    assert dataset.kind == "images"
    assert (len(dataset.train), len(dataset.test)) == (18, 6)
    assert dataset.train[:2] == [tmp_path / "scans/00.png", tmp_path / "scans/01.png"]
    assert dataset.class_names == ("healthy", "ill")
    assert dataset.test_labels.tolist() == [0, 1] * 3
    assert dataset.train_client is not None
    assert dataset.train_client[:3].tolist() == ["bern", "bern", "oslo"]
    assert dataset.attribute_names == ("f", "m")
    assert dataset.attribute_parts == ()
    assert dataset.train_sha256 is not None
    assert len(dataset.train_sha256[0]) == 64


def test_the_fingerprint_is_of_the_rows(tmp_path: Path) -> None:
    """Not of where they lie, nor of columns that are not read; of their content and of what they are for."""
    (tmp_path / "b").mkdir()
    path, other = table(tmp_path), table(tmp_path / "b")
    first = read(path).fingerprint
    assert read(other).fingerprint == first
    other.write_text("\n".join(f"{line},x{k}" for k, line in enumerate(other.read_text().splitlines())))
    assert read(other).fingerprint == first
    other.write_text(path.read_text().replace("test", "train", 1))
    assert read(other).fingerprint != first
    other.write_text(path.read_text())
    picture(tmp_path / "b/scans/00.png", 99)
    assert read(other).fingerprint != first


def test_a_root_and_columns_of_other_names(tmp_path: Path) -> None:
    picture(tmp_path / "scans/x/a.png", 0)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/t.csv").write_text("file;finding;part;ward\nx/a.png;yes;train;1\nx/a.png;no;test;2\n")
    names = {"image_column": "file", "label_column": "finding", "split_column": "part", "client_column": "ward"}
    dataset = read(tmp_path / "lists/t.csv", **names, root="../scans")
    assert dataset.test == [tmp_path / "lists/../scans/x/a.png"]
    assert dataset.test_client is not None
    assert dataset.test_client.tolist() == ["2"]
    assert read(tmp_path / "lists/t.csv", **names, root=str(tmp_path / "scans")).class_names == ("no", "yes")
    assert "no column 'files': did you mean 'file'?" in refused(
        tmp_path / "lists/t.csv", **{**names, "image_column": "files"}
    )
    assert "set data.split_column" in refused(tmp_path / "lists/t.csv", **{**names, "split_column": "parts"})


def test_texts_where_there_are_no_images(tmp_path: Path) -> None:
    path = written(tmp_path, "text,label,split", "one,a,train", "two,b,train", "three,a,test")
    dataset = read(path)
    assert (dataset.kind, dataset.encoder, dataset.test) == ("texts", "minilm", ["three"])
    assert (
        "neither a column 'image' of paths nor 'text': its columns are t, label; set data.image_column or"
        in refused(written(tmp_path, "t,label", "one,a", "two,b"))
    )


def test_rows_for_validation_are_left_out_unless_it_is_said_what_they_are_for(tmp_path: Path) -> None:
    path = written(tmp_path, "image,label,split", "a.png,x,train", "b.png,y,valid", "c.png,y,train", "d.png,x,test")
    said: list[str] = []
    dataset = read(path, said)
    assert [len(dataset.train), len(dataset.test)] == [2, 1]
    assert said == [f"{path}: 1 rows are for validation: left out (data.valid says train or test)"]
    assert [len(part) for part in (read(path, valid="train").train, read(path, valid="train").test)] == [3, 1]
    assert [len(part) for part in (read(path, valid="test").train, read(path, valid="test").test)] == [2, 2]
    for text in ("val", "Validation", "DEV ", " valid"):
        path.write_text(path.read_text().replace("valid", text))
        assert [len(read(path).train), len(read(path).test)] == [2, 1]
        path.write_text(path.read_text().replace(text, "valid"))
    path.write_text(path.read_text().replace("train", "Training").replace("test", "testing"))
    assert [len(read(path).train), len(read(path).test)] == [2, 1]
    path.write_text(path.read_text().replace("valid", "devel"))
    assert "t.csv line 3: split is 'devel'; expected train, valid or test" in refused(path)


def test_several_columns_of_labels_are_one_class_each(tmp_path: Path) -> None:
    rows = ["image,Edema,No Finding", "a.png,1,0", "b.png,0.0,1.0", "c.png,1,1", "d.png,0,0"]
    said: list[str] = []
    for names in ("Edema,No Finding", "No Finding, Edema"):
        dataset = read(written(tmp_path, *rows), said, label_column=names)
        assert dataset.class_names == ("Edema", "No Finding")
        assert dataset.train == [tmp_path / "a.png", tmp_path / "b.png"]
    assert "2 of 4 rows have none or several of Edema, No Finding: left out" in said[0]
    assert "no row is left" in refused(written(tmp_path, rows[0], *rows[3:]), label_column="Edema,No Finding")
    assert "line 2: Edema is '-1'; expected 0, 0.0, 1 or 1.0" in refused(
        written(tmp_path, rows[0], "a.png,-1,0"), label_column="Edema,No Finding"
    )
    assert "no column 'Odema': did you mean 'Edema'?" in refused(written(tmp_path, *rows), label_column="Odema,Edema")
    assert read(written(tmp_path, *rows), label_column="Edema").class_names == ("0", "0.0", "1")


def test_findings_that_are_not_mentioned_are_what_the_rule_says(tmp_path: Path) -> None:
    rows = ["image,Edema,No Finding", "a.png,1,", "b.png,,1.0", "c.png,1,1", "d.png,0,0"]
    names = {"label_column": "Edema,No Finding"}
    path = written(tmp_path, *rows)
    assert "2 of 4 rows have empty cells" in refused(path, **names)
    found = read(path, **names, empty_label="zeros")
    assert [path.name for path in found.train] == ["a.png", "b.png"]
    assert found.train_labels.tolist() == [0, 1]
    path = written(tmp_path, rows[0], "a.png,0,", "b.png,,0", "c.png,1,")
    assert [found.name for found in read(path, **names, empty_label="ones").train] == ["a.png", "b.png"]
    assert "'zeros' is for several label columns of ones and zeros, data.label_column names 'Edema' alone" in refused(
        path, label_column="Edema", empty_label="zeros"
    )
    assert "no column 'Odema'" in refused(path, label_column="Edema,Odema", empty_label="zeros")


def test_a_table_made_on_windows_has_backslashes(tmp_path: Path) -> None:
    path = table(tmp_path)
    before = read(path)
    path.write_text(path.read_text().replace("scans/", "scans\\"))
    assert read(path).train == before.train
    assert read(path).fingerprint == before.fingerprint
    path.write_text(path.read_text().replace("02.png", "77.png"))
    assert "(1 of 24 images are missing)" in refused(path)


def test_several_columns_of_attributes_are_one_together(tmp_path: Path) -> None:
    path = written(
        tmp_path, "image,label,sex,hair", "a.png,x,m,red", "b.png,y,f,red", "c.png,y,m,red", "d.png,x,f,dark"
    )
    dataset = read(path, attribute_column="sex,hair")
    assert dataset.attribute_names == ("f, dark", "f, red", "m, red")
    assert dataset.attribute_parts == (("f", "f", "m"), ("dark", "red", "red"))
    assert dataset.train_attribute is not None
    assert dataset.train_attribute.tolist() == [2, 1, 2, 0]
    assert "attribute_column names 'label', which is the label" in refused(path, attribute_column="sex,label")
    assert "no column 'hare'" in refused(path, attribute_column="sex,hare")
    assert (
        read(written(tmp_path, "image,attribute", "a.png,x", "b.png,y"), label_column="attribute").attribute_names == ()
    )


def test_empty_cells_are_told_or_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "image,label,client,note", "a.png,x,1,", "b.png,,1,", "c.png,y,,", "d.png,y,2,")
    assert "2 of 4 rows have empty cells (1 in column 'label', 1 in column 'client'; line 3, 4)" in refused(path)
    said: list[str] = []
    assert read(path, said, empty="drop").train == [tmp_path / "a.png", tmp_path / "d.png"]
    assert said[0].endswith("left out")


def test_missing_images_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "image,label", "a.png,x", "e.png,y", "f.png,y")
    line = refused(path)
    assert f"names 'e.png', and there is no file {tmp_path / 'e.png'} (2 of 3 images are missing)" in line
    assert line.endswith("put them there, or set data.root")
    for name in ("x" * 5000, "a\0.png"):  # no file system takes these
        assert "1 of 2 images are missing" in refused(written(tmp_path, "image,label", "a.png,x", f"{name},y"))


CONSORTIUM = """
[data]
source = "table:patients.csv"
encoder = "pixels"
[method]
name = "ridge"
[deploy]
sites = ["north", "south"]
superlink = "127.0.0.1:1"
"""


def test_a_real_site_names_a_table_that_lies_beside_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path)
    (tmp_path / "config.toml").write_text(CONSORTIUM)
    init(tmp_path / "c", planned(tmp_path / "config.toml"), SILENT)
    home = tmp_path / "c/sites/north"
    table(home, 16)
    federation = own_rows(read_site(home / "site.toml"))
    assert federation.dataset.train[0] == home / "scans/00.png"
    assert federation.label_counts().tolist() == [[6, 6]]
    assert len(federation.manifest.test.rows) == 4


def test_a_run_of_clients_that_the_table_names(tmp_path: Path) -> None:
    result = fk.run(
        out=tmp_path / "run", data={"source": f"table:{table(tmp_path)}", "encoder": "pixels"},
        partition={"kind": "column"}, method={"rounds": 3},
    )  # fmt: skip
    assert result.record.start["clients"]["names"] == ["bern", "oslo"]
    assert result.record.end is not None
    assert result.record.end["per_client_basis"] == "own test rows"
    assert np.isfinite(result.accuracy)
