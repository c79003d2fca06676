"""What a person sees while something runs: a live bar in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedkeel.core.watch import Watch
from fedkeel.core.wrap import width_of, wrapped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedkeel.commands.result import Result

QUIET_SECONDS = 2.0
WHOLE = 100_000
"""Columns of a file, in which no line has to end."""
LONGEST_HEADING = 80
"""A longer notice is something to know, not the name of what runs now; unless it is that of a cell."""
CELL = re.compile(r"\d+/\d+ ")
BAR_AND_COUNT = 50
"""Columns that a heading leaves to the rest of its line."""


@contextmanager
def watched(console: Console, title: str) -> Iterator[Watch]:
    """A Watch that shows progress on the console until the block ends."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield _bars(progress, title)
    else:
        yield _lines(console, title)


def _bars(progress: Progress, title: str) -> Watch:
    tasks: dict[str, TaskID] = {}
    heading = [title]

    def show(kind: str, done: int, total: int, text: str) -> None:
        if kind not in tasks:
            tasks[kind] = progress.add_task(text, total=total)
        progress.update(tasks[kind], completed=done, total=total, description=text)

    def notice(text: str) -> None:
        if len(text) <= LONGEST_HEADING or CELL.match(text):
            room = max(12, progress.console.width - BAR_AND_COUNT)
            heading[0] = text if len(text) <= room else f"{text[: room - 1]}…"
        _print(progress.console, text, style="dim")

    return Watch(
        encoded=lambda done, total: show("encode", done, total, "encoding"),
        round=lambda round, rounds, acc: show("round", round, rounds, f"{heading[0]}  accuracy {acc:6.2%}"),
        client=lambda done, total, acc: show("client", done, total, f"{heading[0]}  {_own(acc)}"),
        notice=notice,
    )


def _own(accuracy: float | None) -> str:
    return "no test rows of its own" if accuracy is None else f"own test set {accuracy:6.2%}"


def _lines(console: Console, title: str) -> Watch:
    last = [monotonic()]

    def line(text: str, final: bool) -> None:
        if final or monotonic() - last[0] > QUIET_SECONDS:
            last[0] = monotonic()
            _print(console, text)

    return Watch(
        encoded=lambda done, total: line(f"encoded {done:,} of {total:,} rows", done == total),
        round=lambda round, rounds, acc: line(f"round {round} of {rounds}, accuracy {acc:.2%}", round == rounds),
        client=lambda done, total, acc: line(f"client {done} of {total}, {_own(acc)}", done == total),
        notice=lambda text: _print(console, text),
    )


def _print(console: Console, text: str, style: str | None = None) -> None:
    """A line as it is, whatever it holds: on a terminal broken between words, elsewhere whole."""
    line = wrapped(text, console.width if console.is_terminal else None, indent=2)
    console.print(line, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line, to standard output unless told: on a terminal broken between words, elsewhere whole."""
    print(wrapped(text, width_of(stream), indent=2), file=stream)


def show(view: RenderableType) -> None:
    """Print what Rich can draw: as wide as the terminal, elsewhere in whole lines."""
    width = width_of()
    Console(width=width or WHOLE).print(view, crop=False)


def print_entries(entries: Mapping[str, str]) -> None:
    """Names in one column, what they are in the next."""
    widest, width = max(len(name) for name in entries), width_of()
    for name, line in entries.items():
        room = None if width is None else max(20, width - widest - 2)
        first, *rest = wrapped(line, room).splitlines()
        print("\n".join([f"{name:<{widest}}  {first}", *(f"{' ' * widest}  {more}" for more in rest)]))


def tell_refusals(results: Sequence[Result]) -> None:
    """A line for each run in which updates were refused."""
    for result in results:
        if count := result.summary["refused"]:
            say(f"note: {count:,} updates were refused in {result.folder}; its report says why", sys.stderr)
