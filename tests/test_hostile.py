"""Names, numbers, files and terminals that are out to break a command: one line with exit code 2, or none is needed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import fedkeel as fk
from fedkeel.cli import main, use
from fedkeel.core.atomic import safe_name
from fedkeel.core.errors import FedkeelError, MethodFailed, memory_ran_out
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import Split
from fedkeel.runs.config import load as load_config
from fedkeel.screen import watched
from test_cli import says, within

MANY = "9" * 100_000
BAD_SETTINGS = {
    "a seed of 100,000 digits": (f"run.seed={MANY}", "run.seed is '999", "an integer"),
    "a seed of 30 digits": ("run.seed=" + "9" * 30, "run.seed", "less than or equal to 9223372036854775807"),
    "true for a number": ("run.seed=true", "run.seed is true: expected a number"),
    "true for another": ("method.batch=true", "method.batch is true: expected a number"),
    "true for a share": ("partition.validation=false", "partition.validation is false: expected a number"),
    "no number": ("run.seed=nan", "run.seed is nan"),
    "threads without end": ("run.threads=1e9", "run.threads", "less than or equal to 1024"),
    "rounds without end": ("method.rounds=999999999999", "method.rounds", "less than or equal to 1000000"),
    "deep brackets": ("run.seed=" + "[" * 100_000, "run.seed is '[[["),
    "deep braces": ("run.seed=" + "{a=" * 5000, "run.seed is '{a={a="),
    "deep dots": ("run.seed={" + "a." * 30_000 + "a=1}", "run.seed is '{a.a."),
    "a list for a section": ("data=[1]", "data is a section", "e.g. data.source"),
    "a source that clears the screen": ("data.source=npz:a\x1b[2J\nb", r"cannot read a\x1b[2J b: No such file"),
    "a source of 5,000 letters": ("data.source=npz:" + "x" * 5000, "xxx ... xxx", "ile name too long"),
}


@pytest.mark.parametrize("mistake", BAD_SETTINGS)
def test_a_setting_that_is_none(tmp_path: Path, mistake: str) -> None:
    setting, *parts = BAD_SETTINGS[mistake]
    done = within("run", "--set", "data.source=digits", setting, "--out", "run", cwd=tmp_path)
    says(done, *parts)
    assert len(done.stderr) < 2000
    assert done.stderr.strip().isprintable()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seeds", [MANY, "-1", "1.5", "true", ""])
def test_seeds_that_are_none(tmp_path: Path, seeds: str) -> None:
    done = within("compare", "--methods", "fedavg", "--partitions", "iid", "--seeds", seeds, cwd=tmp_path)
    says(done, "seeds")
    assert len(done.stderr) < 2000


BAD_FILES = {
    "deep brackets": (b"x = " + b"[" * 100_000, "is not valid TOML: it is nested too deep"),
    "deep tables": (b"[a" + b".a" * 100_000 + b"]\nx = 1", "is not valid TOML: a key of 100 parts and more"),
    "a number of 100,000 digits": (b"[run]\nseed = " + MANY.encode(), "is not valid TOML: Exceeds the limit"),
    "no UTF-8": (b"[run]\nseed = 0 # \xe9", "is not valid TOML"),
    "a NUL": (b"[run]\nseed = 0\x00", "is not valid TOML"),
    "a list": (b"run = [1]", "run is a section: set one of its keys, e.g. run.seed"),
    "tables in a list": (b"[[run]]\nseed = 1", "run is a section"),
    "data instead": (bytes(2 << 20), "has more than 1,048,576 bytes: expected a config"),
}


@pytest.mark.parametrize("mistake", BAD_FILES)
def test_a_config_that_is_none(tmp_path: Path, mistake: str) -> None:
    content, line = BAD_FILES[mistake]
    (tmp_path / "study.toml").write_bytes(content)
    says(within("run", "study.toml", cwd=tmp_path), "study.toml", line)


def test_a_config_of_windows_is_read(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_bytes(b"\xef\xbb\xbf[run]\r\nseed = 7\r\n")
    assert load_config(tmp_path / "study.toml").run.seed == 7


def test_clients_that_are_all_empty() -> None:
    digits = load(Source.of(source="digits"))
    with pytest.raises(FedkeelError, match=r"partition.clients = 999,999,999,999, but digits has 1,438 training rows"):
        Split.of(kind="iid", clients=999_999_999_999).names(digits)
    assert len(Split.of(kind="iid", clients=10_000).names(digits)) == 10_000


# --- names ----------------------------------------------------------------------------------------------------------

STRANGE = [
    "[/foo]",
    "[bold]b",
    ":smile:",
    "a\nb",
    "\x1b[31mred",
    "😀",
    "..",
    "CON",
    "con",
    "FOO",
    "foo",
    "x" * 10_000,
    "",
]


def test_no_two_names_become_one_file() -> None:
    marked = [safe_name("a b"), safe_name("FOO")]
    names = [*STRANGE, "a b", "a  b", "a_b", ".", "foo.", "aux.txt", "\ud800", *marked, *map(safe_name, marked)]
    files = [safe_name(name) for name in names]
    assert len({file.casefold() for file in files}) == len(set(names))
    for file in files:
        assert len(file) <= 100
        assert not file.startswith(".")
        assert file.split(".")[0].casefold() not in ("con", "aux", "")
    for name in ("client-007", "ova-lp_stages=1", "dirichlet_alpha=0.1"):
        assert safe_name(name) == name, "most need no mark"


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of clients and classes with such names."""
    folder, rng = tmp_path_factory.mktemp("strange"), np.random.default_rng(0)
    y = np.arange(20 * len(STRANGE)) % 3
    x = rng.normal(size=(len(y), 4)) + 3 * np.eye(3, 4)[y]
    classes = np.array(["[/x]", "a\nb", "\x1b[31mred"])
    np.savez(folder / "rows.npz", x=x, y=classes[y], client=np.repeat(np.array(STRANGE), 20))
    return folder


COLUMN = ("--set", "data.source=npz:rows.npz", "partition.kind=column", "partition.test=0.2")


def test_a_run_of_clients_with_strange_names(strange: Path) -> None:
    assert within("partition", *COLUMN, cwd=strange).returncode == 0
    done = within("run", *COLUMN, "method.rounds=1", "--out", "run", cwd=strange)
    assert done.returncode == 0, done.stderr
    done = within("personalize", "run", "--method", "lp", "--set", "method.epochs=1", cwd=strange)
    assert done.returncode == 0, done.stderr
    assert len(list((strange / "run" / "personal" / "lp_epochs=1" / "clients").iterdir())) == len(STRANGE)
    for client in ("[/foo]", "FOO", "foo"):
        done = within("predict", "run", "--input", "rows.npz", "--client", client, cwd=strange)
        assert done.returncode == 0, done.stderr
    says(within("personalize", "run", "--method", "lp", "--clients", "[/nobody]", cwd=strange), "'[/nobody]'")


@pytest.mark.parametrize("terminal", [True, False])
def test_notices_are_no_markup(terminal: bool) -> None:
    out = io.StringIO()
    with watched(Console(file=out, force_terminal=terminal, width=100, color_system=None), "training") as watch:
        watch.notice("client [/foo]: its model diverged, :smile:, \x1b]0;owned\x07")
        watch.round(1, 1, 0.5)
    assert "client [/foo]: its model diverged, :smile:, \\x1b]0;owned\\x07" in out.getvalue()


# --- terminals ------------------------------------------------------------------------------------------------------


def in_ascii(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> str:
    raw = io.BytesIO()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    monkeypatch.setattr(sys, "argv", ["fedkeel", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    return raw.getvalue().decode("ascii")


def test_ascii_stdout(strange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = in_ascii(monkeypatch, strange, "partition", *COLUMN)
    assert "share of a client's rows: .. to 5 %" in split
    table = in_ascii(monkeypatch, strange, "run", *COLUMN, "method.rounds=1", "--out", "ascii")
    assert "\n-----" in table
    assert "ova-lp" in table
    page = (strange / "ascii" / "report.html").read_bytes()
    assert page.decode("utf-8")


def test_what_programs_read_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with pytest.raises(FedkeelError, match=r"stdout is ascii, which has no '\\xe9': write to a file with --out"):
        use.exactly("row,class\n1,caf\u00e9\n")
    assert raw.getvalue() == b""


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """``fedkeel list methods | head -1``, and no stdout at all."""
    command = f"{sys.executable} -m fedkeel list methods"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true; {command} >&-"],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0


# --- memory ---------------------------------------------------------------------------------------------------------


def no_memory() -> None:
    raise MemoryError("Unable to allocate 37.3 GiB for an array with shape (100000, 50000)")


def no_memory_in_torch() -> None:
    torch.empty(1 << 55)


@pytest.mark.parametrize("failing", [no_memory, no_memory_in_torch])
def test_no_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: object) -> None:
    monkeypatch.setattr(fk.api, "partition", lambda *_, **__: failing())  # type: ignore[operator]
    says(
        within("partition", "--set", "data.source=digits", cwd=tmp_path),
        "out of memory (",
        "data.limit",
        "method.batch",
    )


def test_no_memory_in_a_method_and_other_errors() -> None:
    failed = MethodFailed("method x failed in loss")
    failed.__cause__ = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
    assert "out of memory ([enforce fail]" in (memory_ran_out(failed) or "")
    assert memory_ran_out(RuntimeError("shapes do not fit")) is None
    assert "has no more" in (memory_ran_out(MemoryError()) or "")


def test_other_errors_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(fk.api, "partition", wrong)
    with pytest.raises(RuntimeError, match="a bug"):
        within("partition", cwd=tmp_path)


def test_a_memory_limit(tmp_path: Path) -> None:
    """Features of 800 MB in a process that may have 600 MB."""
    rows = 200_000
    np.savez(tmp_path / "rows.npz", x=np.ones((rows, 1000), np.float16), y=np.arange(rows) % 2)
    start = (
        "import resource, sys; from fedkeel import api; from fedkeel.cli import main; "
        "most = int(open('/proc/self/statm').read().split()[0]) * 4096 + (600 << 20); "
        "resource.setrlimit(resource.RLIMIT_AS, (most, most)); sys.argv = ['fedkeel', *sys.argv[1:]]; main()"
    )
    words = ["run", "--set", "data.source=npz:rows.npz", "method.rounds=1", "run.threads=1"]
    done = subprocess.run(
        [sys.executable, "-c", start, *words], capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    says(done, "out of memory")
