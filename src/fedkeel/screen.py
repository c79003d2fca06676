"""What a person sees while something runs: a live bar in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from fedkeel.core import stopping
from fedkeel.core.errors import printable
from fedkeel.core.watch import Watch, spoken
from fedkeel.core.wrap import width_of, wrapped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedkeel.commands.result import Result

QUIET_SECONDS = 1.5
WHOLE = 100_000
"""Columns of a file, in which no line has to end."""


@contextmanager
def watched(console: Console, title: str) -> Iterator[Watch]:
    """A Watch that shows progress on the console until the block ends."""
    stopping.begin()
    if console.is_terminal:
        text = TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        )
        columns = (text, BarColumn(bar_width=12), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, expand=True) as progress:
            yield _bars(progress, title)
    else:
        yield _lines(console, title)


def _bars(progress: Progress, title: str) -> Watch:
    tasks: dict[str, TaskID] = {"start": progress.add_task(title, total=None)}  # something moves from the start
    heading, rest = [title], [""]

    def show(kind: str, done: float, total: int | None, text: str) -> None:
        if "start" in tasks:
            progress.remove_task(tasks.pop("start"))
        if kind not in tasks:
            tasks[kind] = progress.add_task(text, total=total)
        progress.update(tasks[kind], completed=done, total=total, description=text)

    def begun(number: int, total: int, name: str) -> None:
        heading[0] = printable(f"{number}/{total} {name}")
        for kind in tasks.keys() - {"grid"}:
            progress.remove_task(tasks.pop(kind))
        show("grid", number - 1, total, f"{title}{rest[0]}")
        show("round", 0, None, heading[0])

    def ended(number: int, total: int, name: str, left: str) -> None:
        _print(progress.console, f"{number}/{total} {name}")
        rest[0] = f"{left and ', '}{left}"
        show("grid", number, total, f"{title}{rest[0]}")

    def encoded(done: int, total: int) -> None:
        show("encode", done, total, "encoding")
        if done == total:
            progress.remove_task(tasks.pop("encode"))

    return Watch(
        encoded=encoded,
        round=lambda round, rounds, acc: show("round", round, rounds, f"{heading[0]}  accuracy {acc:6.2%}"),
        client=lambda done, total, acc: show("client", done, total, f"{heading[0]}  {_own(acc)}"),
        share=lambda done, left: show("share", 100 * done, 100, f"per cent{_left(left)}"),
        begun=begun,
        ended=ended,
        notice=lambda text: _print(progress.console, text, style="dim"),
    )


def _own(accuracy: float | None) -> str:
    return "no test rows of its own" if accuracy is None else f"own test set {accuracy:6.2%}"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {spoken(seconds)} left"


def _lines(console: Console, title: str) -> Watch:
    last = [monotonic()]

    def line(text: str, final: bool = False) -> None:
        if final or monotonic() - last[0] > QUIET_SECONDS:
            last[0] = monotonic()
            _print(console, text)

    def ended(number: int, total: int, name: str, left: str) -> None:
        line(f"{number}/{total} {name}{left and ', '}{left}", True)

    return Watch(
        encoded=lambda done, total: line(f"encoded {done:,} of {total:,} rows", done == total),
        round=lambda round, rounds, acc: line(f"round {round} of {rounds}, accuracy {acc:.2%}", round == rounds),
        client=lambda done, total, acc: line(f"client {done} of {total}, {_own(acc)}", done == total),
        share=lambda done, left: line(f"{done:.0%} done{_left(left)}"),
        begun=lambda number, total, name: line(f"{number}/{total} {name}", True),
        ended=ended,
        notice=lambda text: _print(console, text),
    )


def _print(console: Console, text: str, style: str | None = None) -> None:
    """A line as it is, whatever it holds: on a terminal broken between words, elsewhere whole."""
    line = wrapped(printable(text), console.width if console.is_terminal else None, indent=2)
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
