"""``fedkeel predict``: what it takes, what it writes, what it says of rows with labels, and what it keeps."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkeel as fk
from fedkeel import api
from fedkeel.commands.predict import Predictions, cell
from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import Watch
from fedkeel.data.new_rows import load_rows
from fedkeel.data.sources.base import Source
from fedkeel.models import cache
from fedkeel.models.encoders import Encoder, Model, open_named
from fedkeel.runs.model import Model as Finished
from test_cli import says, within

WORDS = {"sport": ("goal", "match", "team"), "food": ("soup", "bread", "oven"), "=sum": ("one", "two", "plus")}


class Bag:
    """An encoder of texts that counts words, in place of one that takes seconds; it notes how often it reads."""

    known = tuple(word for words in WORDS.values() for word in words)

    def __init__(self) -> None:
        self.read = 0

    def opened(self, name: str, *rest: Any) -> Encoder:
        if name != "hf:bag":
            return open_named(name, *rest)
        return Encoder(name, "texts", "weights", "", lambda: Model(len(self.known), self.encode))

    def encode(self, rows: Any) -> np.ndarray:
        self.read += len(rows)
        return np.array([[row.split().count(word) for word in self.known] for row in rows], dtype=np.float32)


@pytest.fixture(scope="module")
def bag() -> Iterator[Bag]:
    made = Bag()
    with pytest.MonkeyPatch.context() as patch:
        for module in ("fedkeel.models.encoders", "fedkeel.runs.model"):
            patch.setattr(f"{module}.open_named", made.opened)
        yield made


def texts(path: Path, head: str = "text,label", each: int = 20) -> Path:
    rows = [f"{words[k % 3]} {words[k % 2]},{name}" for name, words in WORDS.items() for k in range(each)]
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(bag: Bag, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("trained")
    source = f"csv:{texts(tmp_path / 'train.csv')}"
    partition = {"kind": "iid", "clients": 3, "validation": 0.2}
    data = {"source": source, "encoder": "hf:bag", "cache": str(tmp_path / "cache")}
    fk.run(data=data, partition=partition, method={"name": "ridge"}, out=tmp_path / "run")
    return tmp_path / "run"


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_rows_are_counted_from_0_whatever_lines_they_take(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text('text\n"goal\nmatch"\n\nsoup bread\none two\n')
    found = lines(within("predict", run, "--input", "new.csv", cwd=tmp_path))
    assert [row["row"] for row in found] == ["0", "1", "2"]
    assert [row["class"] for row in found] == ["sport", "food", "'=sum"]
    assert list(found[0]) == ["row", "class", "score"]


def test_settings_that_errors_name_are_taken(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("body,kind\ngoal,sport\nsoup,sport\n")
    use = ("predict", run, "--input", "new.csv")
    says(within(*use, cwd=tmp_path), "has no column 'text'", "set data.text_column")
    done = within(*use, "--set", "data.text_column=body", cwd=tmp_path)
    assert [row["class"] for row in lines(done)] == ["sport", "food"]
    assert "label" not in done.stderr
    done = within(*use, "--set", "data.text_column=body", "data.label_column=kind", cwd=tmp_path)
    assert "2 rows with a label: accuracy 50.00%" in done.stderr
    assert not re.search("not calibrated", done.stderr), "the run held rows back"
    done = within(*use, "--set", "data.text_column=body", f"data.cache={tmp_path / 'other'}", cwd=tmp_path)
    assert lines(done)
    assert (tmp_path / "other" / "features").is_dir()


@pytest.mark.parametrize(
    ("setting", "parts"),
    {
        "method.rounds=3": ("--set method", "data.* only"),
        "seed=3": ("--set seed", "data.* only"),
        "data=3": ("--set data", "data.text_column"),
        "data.features=raw": ("data.features", "the model keeps its own"),
        "data.source=digits": ("data.source", "--input names the rows"),
        "data.text_colum=body": ("data.text_colum", "did you mean 'data.text_column'?"),
        "data.pooling=3": ("--set: data.pooling",),
        "data.label_column=none": ("data.label_column=none", "has no such column"),
        "nonsense": ("expected key=value",),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_settings_are_refused_in_one_line(
    run: Path, tmp_path: Path, setting: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal\n")
    says(within("predict", run, "--input", "new.csv", "--set", setting, cwd=tmp_path), *parts)


def test_a_setting_of_another_kind_of_file_is_refused(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.eye(9))
    done = within("predict", run, "--input", "new.npz", "--set", "data.text_column=a", cwd=tmp_path)
    says(done, "data.text_column goes with data.source", "leave it out")


def test_another_encoder_is_noticed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal\n")
    asked = []

    def opened(name: str, *rest: Any) -> Encoder:
        asked.append(name)
        return Encoder(name, "texts", "others", "", lambda: Model(9, Bag().encode))

    monkeypatch.setattr("fedkeel.runs.model.open_named", opened)
    done = within("predict", run, "--input", "new.csv", "--set", "data.encoder=hf:moved", cwd=tmp_path)
    says(done, "hf:moved is not the one this model was trained with")
    assert asked == ["hf:moved"]


def test_probabilities_of_all_classes(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal match\nsoup one\n")
    found = lines(within("predict", run, "--input", "new.csv", "--probabilities", cwd=tmp_path))
    assert list(found[0]) == ["row", "class", "score", "p(=sum)", "p(food)", "p(sport)"]
    for row in found:
        shares = [float(row[f"p({name})"]) for name in WORDS]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert float(row["score"]) == max(shares) == float(row[f"p({row['class'].lstrip(chr(39))})"])
    assert fk.predict(run, input=tmp_path / "new.csv", probabilities=True).count("p(") == 3
    assert fk.predict(run, input=tmp_path / "new.csv").count("p(") == 0


def test_scores_carry_the_temperature(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal soup\n")
    model = Finished.load(run / "model.safetensors")
    assert model.temperature is not None
    found = api.predictions(run, input=tmp_path / "new.csv")
    # By hand: features, centred, unit length, head, softmax at 0.1 times the temperature.
    x = Bag().encode(["goal soup"]) - model.mean.numpy()  # type: ignore[union-attr]
    x /= np.linalg.norm(x)
    z = x @ model.shared["head.weight"].numpy().T + model.shared["head.bias"].numpy()
    expected = np.exp(z / 0.1 / model.temperature)
    np.testing.assert_allclose(found.scores, expected / expected.sum(), rtol=1e-3)
    assert found.temperature == model.temperature


# --- labels ---------------------------------------------------------------------------------------------------------


def test_metrics_where_a_table_has_labels(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text,label\ngoal,sport\nmatch,sport\nsoup,sport\nbread,food\none,music\ntwo,\n")
    done = within("predict", run, "--input", "new.csv", cwd=tmp_path)
    assert len(lines(done)) == 6
    assert "1 row of classes that the model does not know, not counted: music" in done.stderr
    assert "4 rows with a label: accuracy 75.00%, mean over classes 83.33%" in done.stderr
    found = api.predictions(run, input=tmp_path / "new.csv")
    assert found.classes == ["sport", "sport", "food", "food", "=sum", "=sum"]
    assert found.unknown == {"music": 1}
    assert found.metrics is not None
    at = np.array([found.class_names.index(name) for name in ("sport", "sport", "sport", "food")])
    assert found.metrics["log_loss"] == pytest.approx(-np.log(found.scores[np.arange(4), at]).mean())


def test_labels_of_arrays_are_names_or_positions(tmp_path: Path) -> None:
    y, names = np.arange(60) % 2, np.array(["dark", "light"])
    x = (np.eye(2)[y] + 0.1 * np.eye(2)[np.arange(60) % 3 % 2]).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=y, class_names=names)
    run = fk.run(data={"source": f"npz:{tmp_path / 'own.npz'}"}, partition={"kind": "iid", "clients": 2},
                 method={"name": "ncm"}, out=tmp_path / "run").folder  # fmt: skip
    for arrays in ({"y": names[y]}, {"y": y, "class_names": names}):
        np.savez(tmp_path / "new.npz", x=x, **arrays)
        done = within("predict", run, "--input", "new.npz", cwd=tmp_path)
        assert "60 rows with a label: accuracy 100.00%" in done.stderr
        assert done.stderr.count("scores are not calibrated") == 1
        assert "set partition.validation=0.1 and run again" in " ".join(done.stderr.split())
    np.savez(tmp_path / "new.npz", x=x, y=y)
    done = within("predict", run, "--input", "new.npz", cwd=tmp_path)
    assert "60 rows of classes that the model does not know, not counted: 0, 1" in done.stderr
    np.savez(tmp_path / "new.npz", x=x, y=y[:3])
    says(within("predict", run, "--input", "new.npz", cwd=tmp_path), "array y has shape (3,)", "a class for each row")


def test_an_image_has_the_class_of_its_folder(tmp_path: Path) -> None:
    from PIL import Image

    for place in ("day/a.png", "night/b.png", "c.png"):
        (tmp_path / "new" / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "new" / place)
    found = load_rows(tmp_path / "new", "images", Source.of())
    assert list(zip(found.names, found.labels or (), strict=True)) == [
        ("c.png", None), ("day/a.png", "day"), ("night/b.png", "night")]  # fmt: skip


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\tx", "\r=1", '=HYPERLINK("a","b")', "-"])
def test_a_cell_that_begins_like_a_formula_is_quoted(text: str) -> None:
    assert cell(text).startswith("\"'")
    assert next(csv.reader(io.StringIO(f"{cell(text)},1\n", newline=""))) == [f"'{text}", "1"]


@pytest.mark.parametrize("text", ["-1", "+2.5", "sport", "a=b", 'say "x"', "a,b", "two\nlines", "", "'quoted'"])
def test_other_cells_are_what_they_are(text: str) -> None:
    assert next(csv.reader(io.StringIO(f"{cell(text)},1\n", newline=""))) == [text, "1"]


def test_names_of_rows_and_classes_are_no_formulas() -> None:
    found = Predictions(["=x.png", "1"], ("@a", "-1"), np.array([[0.75, 0.25], [0.1, 0.9]]), None)
    assert found.csv(True).splitlines() == [
        "row,class,score,p(@a),p(-1)",
        '"\'=x.png","\'@a",0.750000,0.750000,0.250000',
        "1,-1,0.900000,0.100000,0.900000",
    ]


def test_out_is_whole_or_as_it_was(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal\n")
    use = ("predict", run, "--input", "new.csv", "--out")
    done = within(*use, "x.csv", cwd=tmp_path)
    assert done.stdout == ""
    text = (tmp_path / "x.csv").read_text()
    assert text == fk.predict(run, input=tmp_path / "new.csv")
    says(within(*use, "nowhere/x.csv", cwd=tmp_path), "nowhere", "there is no folder")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    says(within(*use, "x.csv", cwd=tmp_path), "x.csv: no space left on device")
    assert (tmp_path / "x.csv").read_text() == text
    assert not list(tmp_path.glob(".x.csv*"))


def test_what_is_no_file_stays_what_it_is(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal\n")
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    assert within("predict", run, "--input", "new.csv", "--out", "link.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("row,class,score\n")
    assert within("predict", run, "--input", "new.csv", "--out", "/dev/null", cwd=tmp_path).returncode == 0
    assert Path("/dev/null").is_char_device()


# --- the cache ------------------------------------------------------------------------------------------------------


def test_rows_are_encoded_once(run: Path, tmp_path: Path, bag: Bag, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal goal goal\nsoup\none\n")
    monkeypatch.setattr(cache, "CHUNK", 2)
    bag.read, seen = 0, list[tuple[int, int]]()
    watch = Watch(encoded=lambda done, total: seen.append((done, total)))
    first = fk.predict(run, input=tmp_path / "new.csv", watch=watch)
    assert bag.read == 3
    assert seen[-1] == (3, 3)
    assert (2, 3) in seen
    (tmp_path / "copy.csv").write_text("text,label\ngoal goal goal,a\nsoup,b\none,c\n")
    assert fk.predict(run, input=tmp_path / "copy.csv") == first
    assert bag.read == 3, "the same texts, wherever they are"
    (tmp_path / "new.csv").write_text("text\ngoal goal goal\nsoup\ntwo\n")
    fk.predict(run, input=tmp_path / "new.csv")
    assert bag.read == 6, "another text"


def test_a_row_that_cannot_be_encoded_is_named(
    run: Path, tmp_path: Path, bag: Bag, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.csv").write_text("text\nneither\nknown\n")
    monkeypatch.setattr(bag, "encode", lambda rows: np.full((len(rows), 9), np.nan, dtype=np.float32))
    with pytest.raises(FedkeelError, match=r"new\.csv row 0: encoder hf:bag gave NaN"):
        fk.predict(run, input=tmp_path / "new.csv")


# --- models of their own --------------------------------------------------------------------------------------------


def test_a_client_calibrates_its_own_model_by_itself(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\ngoal soup\n")
    record = api.personalize(run, method="lp", page=False)
    event = record.personal[0]
    assert event["temperature"] > 0
    own = api.predictions(run, input=tmp_path / "new.csv", client=event["name"])
    assert own.temperature == event["temperature"] != Finished.load(run / "model.safetensors").temperature
    assert {exchange["phase"] for exchange in record.exchanges} == set(), "nothing left the client"


def test_personal_methods_too(tmp_path: Path) -> None:
    for share in (0.2, 0.0):
        fk.run(data={"source": "digits", "limit": 200}, method={"name": "oll", "rounds": 1}, out=tmp_path / f"{share}",
               partition={"kind": "iid", "clients": 2, "validation": share})  # fmt: skip
        np.savez(tmp_path / "new.npz", x=np.zeros((1, 8, 8, 1), dtype=np.uint8))
        done = within("predict", f"{share}", "--input", "new.npz", "--client", "client-001", cwd=tmp_path)
        assert lines(done)
        told = "scores are not calibrated, client client-001 held no validation rows back"
        assert (told in " ".join(done.stderr.split())) == (share == 0)
