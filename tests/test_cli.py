"""The command line in real processes: every command, and every mistake in one line with exit code 2."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedkeel.cli import main

FAST = ("--set", "data.source=digits", "partition.clients=6", "partition.alpha=0.5", "method.rounds=2")


def fedkeel(*words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedkeel", *map(str, words)]
    environment = {**os.environ, "COLUMNS": "100", **env}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, env=environment)


def within(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same command in this process, which need not import everything anew."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        before, sys.argv = sys.argv, ["fedkeel", *map(str, words)]
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.argv = before
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def says(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One line on stderr that starts with fedkeel:, exit code 2, no traceback."""
    assert done.returncode == 2, done.stderr + done.stdout
    lines = [line for line in done.stderr.strip().splitlines() if line.startswith("fedkeel: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1] == lines[0]
    for part in parts:
        assert part in lines[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run in it."""
    folder = tmp_path_factory.mktemp("home")
    done = within("run", *FAST, "--out", "mine", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2
    return folder


def test_run_prints_a_table_and_where_the_report_is(tmp_path: Path) -> None:
    done = fedkeel("run", *FAST, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ova-lp" in done.stdout
    assert "report: runs/ova-lp-bernoulli-dirichlet-seed0/report.html" in done.stdout
    assert (tmp_path / "runs/ova-lp-bernoulli-dirichlet-seed0/report.html").exists()
    assert "round 2 of 2" in done.stderr


def test_refused_updates_are_told(tmp_path: Path) -> None:
    """A client whose numbers are so large that its updates overflow: the others go on without it."""
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype("float32"), np.arange(60) % 3
    x[:20] *= 1e30
    np.savez(tmp_path / "odd.npz", x=x, y=y, client=np.array(["huge", "oslo", "rome"])[np.arange(60) // 20])
    settings = ("data.source=npz:odd.npz", "data.features=raw", "partition.kind=column", "method.optimizer=sgd")
    done = within("run", "--set", *settings, "method.rounds=2", "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["refused"], summary["lost"]) == (2, 0)
    assert "note: 2 updates were refused in run" in done.stderr
    page = (tmp_path / "run/report.html").read_text()
    assert "huge" in page
    assert "exchange was lost" not in page


def test_a_run_in_which_no_update_is_accepted_is_no_run(tmp_path: Path) -> None:
    """A learning rate that makes every update overflow: it stops in one line, and no model of zeros is left."""
    words = ("run", *FAST, "method.optimizer=sgd", "method.lr=1e30")
    done = within(*words, "--out", "run", cwd=tmp_path)
    says(done, "run: round 1, phase 'stage-1', was lost 3 times in a row", "none of 6 updates was accepted (client")
    assert done.stderr.count("is lost") == 3, "told each time"
    assert not (tmp_path / "run/model.safetensors").exists()
    assert not (tmp_path / "run/summary.json").exists()
    again = within("run", "--out", "run", "--resume", "--set", "run.lost=1", cwd=tmp_path)
    says(again, "was lost 1 times in a row (run.lost)", "fedkeel run --out run --resume")
    page = within("report", "run", "--out", "page.html", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    text = (tmp_path / "page.html").read_text()
    assert "the exchange was lost, changed nothing and was tried again: 3 times" in text
    assert text.count("client-0") >= 3


def test_compare(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('[data]\nsource = "digits"\n[partition]\nclients = 10\n[method]\nrounds = 2\n')
    words = ("compare", "study.toml", "--methods", "fedavg,ova-lp", "--partitions", "iid,shard-1", "--seeds", "0,42")
    done = within(*words, "--out", "grid", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("±") >= 4
    assert len(list((tmp_path / "grid").glob("*/summary.json"))) == 8
    for runs in (
        ["grid"],
        [str(path) for path in (tmp_path / "grid").iterdir()],
    ):  # a page is there, too
        page = within("report", *runs, "--out", "page.html", cwd=tmp_path)
        assert page.returncode == 0, page.stderr
        assert "8 runs" in (tmp_path / "page.html").read_text()
    again = within(*words, "--out", "grid", "--json", cwd=tmp_path)
    assert len(json.loads(again.stdout)) == 8


def test_a_smaller_comparison_keeps_the_larger_page(tmp_path: Path) -> None:
    """The page shows every finished cell of the folder, the table what was asked for; finished cells say so."""

    def compare(methods: str, *changes: str) -> subprocess.CompletedProcess[str]:
        few = ("data.source=digits", "partition.clients=4", "method.rounds=1", *changes)
        words = ("--methods", methods, "--partitions", "iid", "--set", *few, "--out", "grid")
        done = within("compare", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    lines = [line for line in compare("fedavg,ridge,ncm").stderr.splitlines() if "/3 " in line]
    assert [line.split()[1] for line in lines[::2]] == [f"{name}-iid-seed0" for name in ("fedavg", "ridge", "ncm")]
    assert all(re.fullmatch(r"[12]/3 \S+: \d\d\.\d\d %, about \d+ (s|min) left", line) for line in lines[1:5:2])
    assert re.fullmatch(r"3/3 ncm-iid-seed0: \d\d\.\d\d %", lines[5]), "nothing is left"
    (tmp_path / "grid" / "ncm-iid-seed0" / "events.jsonl").write_text("{}\nno json\n{}\n")
    write_npz(tmp_path / "other.npz")
    compare("oll", "data.source=npz:other.npz")
    smaller = compare("ridge")
    assert re.search(r"^1/1 ridge-iid-seed0: \d\d\.\d\d %, kept$", smaller.stderr, re.MULTILINE)
    assert "left out of the page: grid/ncm-iid-seed0/events.jsonl" in smaller.stderr
    assert "fedavg" not in smaller.stdout
    page = (tmp_path / "grid/report.html").read_text()
    assert "2 runs" in page, "fedavg and ridge: of the others one is damaged and one of other data"
    assert "fedavg" in page


def test_partition(tmp_path: Path) -> None:
    done = within("partition", "--set", "data.source=digits", "partition.clients=20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")
    assert "empty" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


def test_encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    first = within("encode", "--set", "data.source=digits", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "1,797 rows of 64 features by pixels" in first.stdout
    again = within("encode", "--set", "data.source=digits", cwd=tmp_path)
    assert again.stdout == first.stdout
    assert "encoded" not in again.stderr


def test_report_from_the_events_alone(home: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "events.jsonl").write_bytes((home / "mine" / "events.jsonl").read_bytes())
    done = within("report", "copy", "--out", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "drawing the page" in done.stderr
    assert done.stdout == "report: page.html\n"
    assert (tmp_path / "page.html").read_text().count("<svg") >= 2


def test_predict(home: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 8, 8, 1), dtype=np.uint8))
    done = within("predict", home / "mine", "--input", "new.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["row"] for row in rows] == ["0", "1", "2"]
    assert all(row["class"] in "0123456789" and 0 < float(row["score"]) <= 1 for row in rows)
    assert within("predict", home / "mine", "--input", "new.npz", "--out", "x.csv", cwd=tmp_path).stdout == ""
    assert (tmp_path / "x.csv").read_text() == done.stdout


def test_predict_texts_with_a_model_trained_on_embedded_features(tmp_path: Path) -> None:
    """The head was trained on features from the pack; new texts go through the real encoder."""
    run = within("run", "--set", "partition.kind=iid", "method.rounds=2", "--out", "news", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    texts = {
        "The goalie made thirty saves and the Bruins won the playoff game in overtime.": "hockey",
        "The shuttle will carry a new telescope into orbit around the Earth, NASA said.": "space flight",
        "My motorcycle's clutch slips when I ride in second gear, which oil should I use?": "motorcycles",
    }
    with (tmp_path / "posts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["text"], *([text] for text in texts)])
    done = within("predict", "news", "--input", "posts.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["class"] for row in csv.DictReader(done.stdout.splitlines())] == list(texts.values())


@pytest.mark.parametrize("what", ["methods", "strategies", "partitions", "sources", "encoders", "modules", "observers"])
def test_list(what: str, tmp_path: Path) -> None:
    done = within("list", what, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    assert max(len(line) for line in done.stdout.splitlines()) <= 130


def test_help_is_quick_and_has_examples(tmp_path: Path) -> None:
    for command in ("run", "compare", "reproduce", "partition", "encode", "report", "predict", "list"):
        done = fedkeel(command, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert f"fedkeel {command}" in done.stdout.split("For example:")[1]
    heavy = (
        "import sys, fedkeel.cli; print(sorted({'torch', 'pydantic', 'numpy', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "help must not load heavy packages"


MISTAKES = {
    "a misspelt key": (("run", "--set", "method.ruonds=3"), "did you mean 'method.rounds'?"),
    "a misspelt method": (("run", "--set", "method.name=ovalp"), "did you mean 'ova-lp'?"),
    "a misspelt partition": (("run", "--set", "partition.kind=dirichlett"), "did you mean 'dirichlet'?"),
    "a misspelt source": (("run", "--set", "data.source=digit"), "did you mean 'digits'?"),
    "a misspelt encoder": (("run", "--set", "data.encoder=minilmm"), "did you mean 'minilm'?"),
    "a misspelt command": (("rnu",), "run"),
    "a misspelt option": (("run", "--ot", "x"), "--ot"),
    "no such config": (("run", "none.toml"), "none.toml"),
    "no such file": (("run", "--set", "data.source=npz:none.npz"), "none.npz"),
    "no such run": (("report", "nowhere"), "nowhere"),
    "a file is no run": (("report", __file__), "is not a run folder"),
    "predict without a run": (("predict", "nowhere", "--input", "x.csv"), "nowhere"),
    "seeds that are no numbers": (("compare", "--seeds", "a,b"), "--seeds"),
    "nothing to report": (("report",), "run"),
    "a page that cannot be written": (("partition", "--set", "data.source=digits", "--png", "no/p.png"), "no/p.png"),
}


@pytest.mark.parametrize(("words", "part"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes(words: tuple[str, ...], part: str, tmp_path: Path) -> None:
    says(within(*words, cwd=tmp_path), part)
    assert not (tmp_path / "runs").exists(), "nothing was begun"


def write_npz(path: Path, **changes: np.ndarray) -> None:
    draw = np.random.Generator(np.random.Philox(0))
    y = np.arange(60) % 3
    arrays = {
        "x": draw.normal(size=(60, 5)).astype(np.float32) + y[:, None],
        "y": y,
        "client": np.array(["a", "b"] * 30),
    }
    np.savez(path, **{**arrays, **changes})


def test_nan_in_features_names_file_row_and_client(tmp_path: Path) -> None:
    x = np.ones((60, 5), dtype=np.float32)
    x[7, 2] = np.nan
    write_npz(tmp_path / "bad.npz", x=x)
    says(within("run", "--set", "data.source=npz:bad.npz", cwd=tmp_path), "bad.npz", "row 7", "client b", "column 2")


def test_a_class_with_one_row(tmp_path: Path) -> None:
    write_npz(tmp_path / "bad.npz", y=np.array([0, 1] * 29 + [0, 2]))
    says(within("run", "--set", "data.source=npz:bad.npz", cwd=tmp_path), "class '2' has one row")


def test_a_missing_label_column(tmp_path: Path) -> None:
    (tmp_path / "posts.csv").write_text("text,lable\nhello,a\nworld,b\n")
    done = within("run", "--set", "data.source=csv:posts.csv", cwd=tmp_path)
    says(done, "posts.csv", "'label'", "did you mean 'lable'?", "data.label_column")


def test_the_user_s_own_clients_one_of_them_without_training_rows(tmp_path: Path) -> None:
    """client_test names a client that has no training rows."""
    write_npz(
        tmp_path / "own.npz",
        x_test=np.zeros((2, 5), dtype=np.float32), y_test=np.array([0, 1]), client_test=np.array(["a", "c"]),
    )  # fmt: skip
    done = within("run", "--set", "data.source=npz:own.npz", "partition.kind=column", cwd=tmp_path)
    says(done, "'c'")


def test_own_clients_run(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz")
    changes = ("data.source=npz:own.npz", "partition.kind=column", "method.rounds=3")
    done = within("run", "--set", *changes, "--out", "own", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["clients"] == 2


def test_out_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    says(within("run", *FAST, "--out", "file/run", cwd=tmp_path), "file", "choose another --out")


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the record of the rounds outgrows it half way."""
    longer = (*FAST, "method.rounds=40")
    reference = within("run", *longer, "--out", "whole", "--json", cwd=tmp_path)
    assert reference.returncode == 0, reference.stderr
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY));"
        "sys.argv[0] = 'fedkeel'; from fedkeel.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "run", *longer, "--out", "run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    says(done, "events.jsonl", "--resume")
    assert 0 < (tmp_path / "run/events.jsonl").read_text().count('"event":"round"') < 40
    again = within("run", "--out", "run", "--resume", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["digest"] == json.loads(reference.stdout)["digest"]


def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    words = ["run", *FAST, "method.rounds=2000", "run.engine=wire", "--out", "run"]
    command = [sys.executable, "-m", "fedkeel", *words]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, text=True, **pipes)
    log = tmp_path / "run" / "events.jsonl"
    until = time.monotonic() + 120
    while not (log.exists() and log.read_text().count('"event":"round"') >= 3):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert stderr.strip().splitlines()[-1] == "fedkeel: stopped: fedkeel run --out run --resume continues"
    rounds = log.read_text().count('"event":"round"')
    assert 3 <= rounds < 2000
