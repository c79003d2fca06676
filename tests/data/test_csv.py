"""CSV files as people have them: any separator, any encoding, cells that are empty."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.new_rows import load_rows
from fedkeel.data.sources.base import Source
from fedkeel.data.sources.csv import read_csv
from fedkeel.runs.config import load as load_config

ROWS = [("text", "label"), ("one; and\ttwo, too", "a"), ("fünf", "b"), ("six | seven", "a")]


def lines(separator: str, rows: list[tuple[str, ...]] = ROWS) -> str:
    return "".join(separator.join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def read(path: Path, said: list[str] | None = None, **settings: str) -> Dataset:
    return Source.of(source=f"csv:{path}", **settings).read(([] if said is None else said).append)


def refused(path: Path, **settings: str) -> str:
    with pytest.raises(FedkeelError) as error:
        read(path, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(tmp_path: Path, separator: str) -> None:
    (tmp_path / "a.csv").write_text(lines(separator))
    dataset = read(tmp_path / "a.csv")
    assert dataset.train == [text for text, _ in ROWS[1:]]
    assert dataset.class_names == ("a", "b")


def test_of_two_that_cut_the_first_line_the_one_that_cuts_the_others_alike(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;label,maybe\none, two;a\nthree;b\n")
    assert list(read_csv(tmp_path / "a.csv").columns) == ["text", "label,maybe"]
    (tmp_path / "a.csv").write_text("text;or so,label\none,a\ntwo;three,b\n")
    assert list(read_csv(tmp_path / "a.csv").columns) == ["text;or so", "label"]


def test_a_separator_can_be_set(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text^label\none^a\ntwo^b\n")
    assert "has no column 'text'" in refused(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv", separator="^").train == ["one", "two"]
    (tmp_path / "a.csv").write_text("text,no\tlabel\none\ta\ntwo\tb\n")
    assert read(tmp_path / "a.csv", separator="tab", text_column="text,no").train == ["one", "two"]


@pytest.mark.parametrize("wrong", ["", ";;", "semicolon", '"', "\n"])
def test_a_separator_is_one_character(wrong: str) -> None:
    with pytest.raises(FedkeelError, match=r"data.separator is .*expected auto, tab or one character such as ;"):
        load_config(None, ["data.source=csv:x", f"data.separator={wrong!r}"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_the_encoding_is_found(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(lines(",").encode(encoding))
    assert read(tmp_path / "a.csv").train[1] == "fünf"
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF16_BE + lines(";").encode("utf-16-be"))
    assert read(tmp_path / "a.csv").train[1] == "fünf"


def test_an_encoding_that_cannot_be_found_is_told_with_the_line_and_can_be_set(tmp_path: Path) -> None:
    long = [("text", "label"), *[("x" * 100, "a")] * 1000, ("fünf", "b")]  # the decoder reads in pieces
    (tmp_path / "a.csv").write_bytes(lines(",", long).encode("cp1252"))
    line = refused(tmp_path / "a.csv")
    assert "a.csv line 1002 is not UTF-8 (byte 0xfc): set data.encoding, e.g. cp1252" in line
    assert read(tmp_path / "a.csv", encoding="cp1252").train[-1] == "fünf"
    (tmp_path / "a.csv").write_bytes(lines(",").encode("utf-16-le"))
    assert "set data.encoding=utf-16-le" in refused(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv", encoding="UTF-16LE").train[1] == "fünf"
    with pytest.raises(FedkeelError, match=r"data.encoding is 'klingon': expected auto or an encoding that"):
        load_config(None, ["data.source=csv:x", "data.encoding=klingon"])


GAPS = "text,label,client\none,a,x\n ,b,x\nthree,,y\nfour,b,\n,,y\nsix,a,y\nseven,b,x\n"


def test_empty_cells_are_counted_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GAPS)
    line = refused(tmp_path / "a.csv")
    assert "4 of 7 rows have empty cells (2 in column 'text', 2 in column 'label', 1 in column 'client'" in line
    assert "line 3, 4, 5, 6): fill them in, or leave these rows out with data.empty=drop" in line


def test_rows_with_empty_cells_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GAPS)
    said: list[str] = []
    dataset = read(tmp_path / "a.csv", said, empty="drop")
    assert dataset.train == ["one", "six", "seven"]
    assert dataset.train_labels.tolist() == [0, 0, 1]
    assert dataset.train_client is not None
    assert dataset.train_client.tolist() == ["x", "y", "x"]
    assert len(said) == 1
    assert "4 of 7 rows have empty cells" in said[0]
    (tmp_path / "a.csv").write_text("text,label\n,a\n")
    assert "no row is left" in refused(tmp_path / "a.csv", empty="drop")


def test_cells_that_nobody_reads_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label,note\none,a,\ntwo,b,\n")
    assert len(read(tmp_path / "a.csv").train) == 2


def test_what_is_read_in_another_way_has_another_fingerprint(tmp_path: Path) -> None:
    """And what is read in the usual way has the one that it always had: hold-outs and caches depend on it."""
    path = tmp_path / "a.csv"
    path.write_bytes("text,label,a;b\nfünf,a,1;2\nsix,b,3;4\nseven,,5;6\n".encode("cp1252"))
    found = {
        read(path, encoding=encoding, empty="drop", **more).fingerprint
        for encoding in ("cp1252", "cp1250")
        for more in ({}, {"client_column": "a;b"})
    }
    assert len(found) == 2, "of the same cells by the same encoding the same"
    path.write_text("text,label\none,a\ntwo,b\n")
    usual = read(path).fingerprint
    assert usual == read(path, separator=",", encoding="utf8").fingerprint == read(path, empty="drop").fingerprint
    assert usual == "76a9504d5e6a9392e243ce65780311c935a003ba9708c4d36f47a3b40f37821f"
    path.write_text(GAPS)
    everybody = read(path, empty="drop").fingerprint
    assert read(path, empty="drop", client_column="label").fingerprint != everybody, "other rows are left out"


def test_new_rows_are_read_the_same_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new.csv"
    path.write_text("id;text\n1;one, two\n2;\n3;three\n")
    with pytest.raises(FedkeelError, match=r"1 of 3 rows have empty cells .*data.empty=drop"):
        load_rows(path, "texts", Source.of())
    rows = load_rows(path, "texts", Source.of(empty="drop"))
    assert rows.rows == ["one, two", "three"]
    assert "left out" in capsys.readouterr().err
    path.write_bytes("text\nfünf\n".encode("latin-1"))
    assert load_rows(path, "texts", Source.of(encoding="latin-1")).rows == ["fünf"]


def test_a_row_of_another_width_says_what_cuts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;label\none;a\ntwo;three;b\n")
    assert "line 3 has 3 fields, the first line has 2: quote texts with semicolons, or set data.separator" in refused(
        tmp_path / "a.csv"
    )
