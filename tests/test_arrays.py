"""Rows that Python holds go in directly: every command takes them, and a run folder tells only what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.commands import run as run_command
from fedkeel.data.sources.arrays import HELD, Arrays
from test_cli import says, within

FAST = {"method": "ridge", "run": {"threads": 1}}


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.Generator(np.random.Philox(seed))
    y = np.arange(90) % 3
    x = draw.normal(size=(90, 6)) + 2 * np.eye(3, 6)[y]
    return x, np.array(["ant", "bee", "cat"])[y], np.array(["oslo", "bern", "rome"])[np.arange(90) // 30]


def test_rows_that_name_their_clients_are_split_by_them(tmp_path: Path) -> None:
    x, y, client = rows()
    result = fk.run(data=(x, y, client), out=tmp_path / "run", **FAST)
    assert result.record.start["clients"]["names"] == ["bern", "oslo", "rome"]
    assert result.record.start["data"]["classes"] == ["ant", "bee", "cat"]
    assert result.accuracy > 0.8
    assert result.predict(x[:3])[0] == ["ant", "bee", "cat"]
    assert result.record.start["data"]["source"] not in {arrays.source for arrays in HELD}, "the rows are let go"
    assert 'source = "arrays:' in (tmp_path / "run/config.toml").read_text()
    assert (tmp_path / "run/report.html").exists()


def test_without_clients_or_with_a_partition_they_are_dealt_out(tmp_path: Path) -> None:
    x, y, client = rows()
    assert fk.experiment(data=(x, y)).partition.kind == fk.experiment().partition.kind
    assert fk.experiment(data=(x, y, client)).partition.kind == "column"
    assert fk.experiment(data=(x, y, client), partition={"test": 0.2}).partition.kind == "column"
    assert fk.experiment(data=(x, y, client), partition="dirichlet:alpha=0.5").partition.kind == "dirichlet"
    assert fk.experiment(data=(x, y, client), set=["partition.kind=iid"]).partition.kind == "iid"
    (tmp_path / "study.toml").write_text('[partition]\nkind = "zipf"\n')
    assert fk.experiment(tmp_path / "study.toml", data=(x, y, client)).partition.kind == "zipf"


def test_the_same_rows_as_an_npz_file_give_the_same_model(tmp_path: Path) -> None:
    x, y, client = rows()
    parts = {"x": x[:60], "y": y[:60], "client": client[:60], "x_test": x[60:], "y_test": y[60:]}
    np.savez(tmp_path / "rows.npz", **parts)
    there = fk.run(data=f"npz:{tmp_path / 'rows.npz'}", partition="column", out=tmp_path / "file", **FAST)
    here = fk.run(data=fk.Arrays(**parts), out=tmp_path / "memory", **FAST)
    assert here.digest == there.digest
    assert here.accuracy == there.accuracy


def test_a_run_resumes_with_the_same_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, client = rows()
    more: dict[str, Any] = {"method": "fedavg:rounds=4", "run": {"threads": 1}, "out": tmp_path / "run"}

    def stop(self: object, *values: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedkeel.runs.observers.evaluation.EvaluationObserver.round_ended", stop)
        with pytest.raises(fk.FedkeelError, match="stopped"):
            fk.run(data=(x, y, client), **more)
    with pytest.raises(fk.FedkeelError, match=r"another data\.source \('arrays:"):
        fk.run(data=(x + 1, y, client), resume=True, out=tmp_path / "run")
    with pytest.raises(fk.FedkeelError, match="were given from Python"):
        fk.run(resume=True, out=tmp_path / "run")
    says(within("run", "--out", "run", "--resume", cwd=tmp_path), "given from Python", "data=(x, y, client)")
    again = fk.run(data=(x, y, client), resume=True, out=tmp_path / "run")
    assert again.digest == fk.run(data=(x, y, client), **{**more, "out": tmp_path / "other"}).digest
    shown = within("run", "--out", "run", "--resume", cwd=tmp_path)
    assert shown.returncode == 0, "a finished run is shown without them: its source is their fingerprint"


def test_every_other_command_takes_them(tmp_path: Path) -> None:
    data = fk.Arrays(*rows())
    split = fk.partition(data=data)
    assert split.manifest.names == ("bern", "oslo", "rome")
    assert fk.encode(data=rows()).train.shape == (72, 6)
    grid = fk.compare(
        data=data, methods=["ridge", "ncm"], partitions=["iid", "column"], out=tmp_path / "grid", run={"threads": 1},
        partition={"clients": 3},
    )  # fmt: skip
    assert len(grid) == 4
    assert (tmp_path / "grid/report.html").exists()
    run = grid[-1].folder
    del data
    with pytest.raises(fk.FedkeelError, match="given from Python"):
        fk.personalize(run, method="lp")
    with pytest.raises(fk.FedkeelError, match="give the rows it was run on"):
        fk.personalize(run, method="lp", data=rows(1))
    personal = fk.personalize(run, method="lp:epochs=1", data=rows())
    assert len(personal.personal) == 3
    np.savez(tmp_path / "new.npz", x=rows()[0])
    assert fk.predict(run, input=tmp_path / "new.npz").startswith("row,class,score")
    assert fk.report([run], out=tmp_path / "page.html").exists()


def test_images_and_texts(tmp_path: Path) -> None:
    y = np.arange(24) % 2
    images = np.zeros((24, 8, 8, 1), dtype=np.uint8) + (200 * y)[:, None, None, None].astype(np.uint8)
    seen = fk.run(data=(images, y), set=["data.encoder=pixels"], partition="iid:clients=2", out=tmp_path / "i", **FAST)
    assert seen.accuracy == 1
    texts = [f"{('a goal in the match', 'salt and pepper in the soup')[k]} {n}" for n, k in enumerate(y.tolist())]
    given = fk.Arrays(texts, y.tolist(), class_names=["sport", "cooking"])
    assert (given.dataset.kind, given.dataset.encoder) == ("texts", "minilm")
    assert given.dataset.class_names == ("sport", "cooking")
    assert given.dataset.train == texts
    assert fk.Arrays(np.array(texts), y, class_names=["sport", "cooking"]).source == given.source


def test_the_fingerprint_tells_rows_apart() -> None:
    x, y, client = rows()
    given = fk.Arrays(x, y, client)
    same = [fk.Arrays(x.tolist(), y.tolist(), client.tolist()), fk.Arrays(x.astype(np.float32), y, client)]
    assert {one.source for one in same} == {given.source}
    other = [
        fk.Arrays(x[::-1], y, client), fk.Arrays(x, y[::-1], client), fk.Arrays(x, y, client[::-1]), fk.Arrays(x, y),
        fk.Arrays(x, y, client, x_test=x, y_test=y), fk.Arrays(x, y, client, attribute=client),
    ]  # fmt: skip
    assert len({one.source for one in [given, *other]}) == 7


def test_rows_that_changed_meanwhile_are_noticed(tmp_path: Path) -> None:
    x, y, client = rows()
    x = x.astype(np.float32)
    data = fk.Arrays(x, y, client)
    x[3, 2] += 1
    with pytest.raises(fk.FedkeelError, match="changed after"):
        fk.run(data=data, out=tmp_path / "run", **FAST)


def test_the_user_s_arrays_stay_what_they_are(tmp_path: Path) -> None:
    x, y, client = rows()
    x = x.astype(np.float32)
    before = x.copy()
    fk.run(data=fk.Arrays(x, y, client, x_test=x, y_test=y), out=tmp_path / "run", **FAST)
    assert (x == before).all()


X, Y, CLIENT = rows()
MISTAKES: dict[str, tuple[Any, str]] = {
    "one value": ((X,), "data is 1 values: expected"),
    "no rows at all": (7, "data is int: expected"),
    "labels of other length": ((X, Y[:-1]), r"array y has shape \(89,\)"),
    "clients of other length": ((X, Y, CLIENT[:5]), r"array client has shape \(5,\)"),
    "not a number": ((np.where(X[3, 2] == X, np.nan, X), Y, CLIENT), "row 3 .client oslo. column 2 is nan"),
    "fractions as labels": ((X, X[:, 0]), "labels are float64"),
    "objects as labels": ((X, [None] * 90), "array y holds Python objects"),
    "rows of several lengths": (([[1.0], [1.0, 2.0]], [0, 1]), "are not of one shape"),
    "a text that is none": ((["a", 3, "b"], [0, 1, 0]), "row 1 is 3: expected a text"),
    "one class": ((X, np.zeros(90, int)), "training rows of 1 class"),
}


@pytest.mark.parametrize(("data", "part"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told_in_one_line(data: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(fk.FedkeelError, match=part) as told:
        fk.run(data=data, out=tmp_path / "run", **FAST)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


def test_an_array_of_an_unknown_name() -> None:
    with pytest.raises(fk.FedkeelError, match="did you mean 'class_names'"):
        fk.Arrays(X, Y, class_name=["a", "b", "c"])


def test_names() -> None:
    assert fk.Arrays is Arrays
    assert fk.run is run_command.run
