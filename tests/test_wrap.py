"""What is printed: on a terminal lines end between words, in a file they stay whole, whatever names there are."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedkeel import api
from fedkeel.cli import BY_USE, app, main
from fedkeel.core.wrap import folded, width_of, wrapped
from fedkeel.data.describe import render
from fedkeel.reporting.columns import columns
from fedkeel.screen import print_entries, show, watched
from test_cli import within

WORDS = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=30)
LISTS = ("methods", "strategies", "partitions", "sources", "encoders", "modules", "observers")


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def on_terminal() -> Iterator[Terminal]:
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
            yield screen


def fits(text: str, whole: str, width: int = 80) -> None:
    """No line is too long, and every word of the whole text is there, in one piece."""
    assert max(map(len, text.splitlines())) <= width
    assert not set(whole.replace("─", "").split()) - set(text.split()), "words that were broken"


# --- lines ------------------------------------------------------------------------------------------------------------


@given(st.lists(WORDS, min_size=1, max_size=40), st.integers(30, 100), st.integers(0, 8))
def test_words_that_fit_are_never_broken(words: list[str], width: int, indent: int) -> None:
    text = " ".join(words)
    lines = folded(text, width)
    assert max(map(len, lines)) <= width
    assert " ".join(lines) == text
    assert wrapped(text, None) == text, "a file has whole lines"
    indented = wrapped(text, width + indent, indent).splitlines()
    assert all(line.startswith(" " * indent) for line in indented[1:])
    assert max(map(len, indented)) <= width + indent


def test_a_word_that_is_too_wide_is_broken_where_it_has_a_seam() -> None:
    assert folded("on bernoulli-dirichlet", 12) == ["on", "bernoulli-", "dirichlet"]
    assert folded("aggregation=total", 12) == ["aggregation=", "total"]
    assert folded("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_stream_knows_how_wide_it_is() -> None:
    with on_terminal():
        assert width_of() == 80
    assert width_of(io.StringIO()) is None


# --- tables -----------------------------------------------------------------------------------------------------------

HEAD = ["Method", "Split", "Accuracy %", "Up", "Down", "Time"]
ROWS = [
    ["ova-lp, optimizer=sgd, lr=1.0, aggregation=total", "bernoulli-dirichlet", "71.23 ± 0.42", "1 MB", "2 MB", "3 s"],
    ["fedavg", "iid", "9.00", "10.1 MB", "148 MB", "58.4 ms"],
]


def test_a_table_is_as_wide_as_it_is_unless_it_has_to_fit() -> None:
    lines = columns(HEAD, ROWS, 2).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert columns(HEAD, ROWS, 2, 200) == columns(HEAD, ROWS, 2)
    assert lines[0].index("Accuracy %") + len("Accuracy %") == lines[2].index("71.23 ± 0.42") + len("71.23 ± 0.42")


def test_a_table_that_has_to_fit_wraps_words_and_then_leaves_columns_out() -> None:
    narrow = columns(HEAD, ROWS, 2, 80, spare=2)
    fits(narrow, columns(HEAD, ROWS, 2))
    less = columns(HEAD, ROWS, 2, 56, spare=2)
    assert less.splitlines()[-1] == "no room for Time: the report has it all"
    assert max(map(len, less.splitlines())) <= 56
    assert "aggregation=total" in less
    assert "71.23 ± 0.42" in less
    assert max(map(len, columns(HEAD, ROWS, 2, 24, spare=2).splitlines())) <= 24, "too narrow for any table"


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", LISTS)
def test_lists_wrap_beside_their_names(what: str) -> None:
    entries = api.catalogue(what)
    with on_terminal() as terminal:
        print_entries(entries)
    fits(terminal.getvalue(), " ".join([*entries, *entries.values()]))
    names = [line.split()[0] for line in terminal.getvalue().splitlines() if not line.startswith(" ")]
    assert names == list(entries), "further lines are indented"
    assert "``" not in terminal.getvalue()


def test_a_list_in_a_pipe_has_a_line_for_each(tmp_path: Path) -> None:
    done = within("list", "methods", cwd=tmp_path)
    assert len(done.stdout.splitlines()) == len(api.catalogue("methods"))


def test_a_mistake_wraps_on_a_terminal_and_is_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fedkeel", "compare", "--methods", "bogus"])
    with on_terminal() as terminal, pytest.raises(SystemExit):
        main()
    told = terminal.getvalue()[terminal.getvalue().index("fedkeel: ") :]  # after the bar, which has gone
    assert len(told.splitlines()) > 3
    piped = within("compare", "--methods", "bogus", cwd=Path()).stderr
    assert len(piped.splitlines()) == 1
    fits(told, piped)


def help_of(*words: str) -> str:
    out = io.StringIO()
    app.help_print([*words], console=Console(file=out, width=80, color_system=None))
    return out.getvalue()


def test_help_names_commands_by_use() -> None:
    named = re.findall(r"^│ ([a-z]+) ", help_of(), re.M)
    assert tuple(named) == BY_USE == ("run", "compare", "reproduce", "personalize", "predict", *BY_USE[5:])


COMMANDS = [
    *((name,) for name in BY_USE if name != "deploy"),
    ("deploy", "init"),
    ("deploy", "trial"),
    ("site", "check"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_examples_of_a_help_fit_a_line(command: tuple[str, ...]) -> None:
    text, found = help_of(*command), app
    assert max(map(len, text.splitlines())) <= 80
    for word in command:
        found = found[word]
    said = re.findall(r"^        (fedkeel .*)$", found.default_command.__doc__ or "", re.M)
    assert said
    shown = [line.strip() for line in text.splitlines()]
    assert [line for line in said if line not in shown] == []


@pytest.mark.parametrize("width", [80, 120])
def test_a_split_with_long_names_fits(width: int) -> None:
    split = api.partition(data={"source": "digits"}, partition={"kind": "dirichlet", "clients": 8, "alpha": 0.5})
    clients = tuple(f"the hospital of a town with a long name, ward {k}" for k in range(8))
    classes = [f"a diagnosis with a long name {k}" for k in range(10)]
    view, out, whole = (
        render(replace(split.manifest, names=clients), split.labels, classes),
        io.StringIO(),
        io.StringIO(),
    )
    Console(file=out, width=width, color_system=None).print(view)
    Console(file=whole, width=10_000, color_system=None).print(view)
    fits(out.getvalue(), whole.getvalue(), width)


def test_a_view_in_a_pipe_has_whole_lines() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as pipe:
        show("word " * 100)
    assert len(pipe.getvalue().splitlines()) == 1


@pytest.mark.parametrize("where", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
def test_notices_are_told_as_they_are(where: io.StringIO) -> None:
    text = "client [/foo] :smile: " + "a word " * 30
    console = Console(file=where, width=80, force_terminal=where.isatty(), color_system=None)
    with watched(console, "title") as watch:
        watch.notice(text.strip())
    told = re.sub(r"\x1b\[[0-9?;]*[a-zA-Z]", "", where.getvalue())
    assert "client [/foo] :smile:" in told
    lines = [line.rstrip("\r") for line in told.splitlines() if "word" in line]
    assert (len(lines) == 1) == (not where.isatty())
