"""How a long task tells what it is doing, and how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic

TELL_SECONDS = 0.5
SURE_SECONDS = 1.0
"""Before so much time has passed nobody can say how long the rest takes."""


@dataclass(frozen=True)
class Watch:
    """Silent unless told otherwise."""

    encoded: Callable[[int, int], None] = lambda done, total: None
    round: Callable[[int, int, float], None] = lambda round, rounds, accuracy: None
    client: Callable[[int, int, float | None], None] = lambda done, total, accuracy: None
    """a client was personalised; the accuracy is that of its model on its own test set"""
    share: Callable[[float, float | None], None] = lambda done, left: None
    """how much of the personalising is done, from 0 to 1, and the seconds that are left, None while unknown; told on
    any thread, twice a second at most"""
    begun: Callable[[int, int, str], None] = lambda number, total, name: None
    """one of many runs begins"""
    ended: Callable[[int, int, str, str], None] = lambda number, total, name, left: None
    """one of many runs has ended: its name and what came of it, and how long the rest takes, nothing while unknown"""
    notice: Callable[[str], None] = lambda text: None


SILENT = Watch()


class Progress:
    """How much of some work is done, told to a watch; the amounts may come from any thread."""

    def __init__(self, total: int, tell: Callable[[float, float | None], None]) -> None:
        self._total, self._done, self._tell = max(1, total), 0, tell
        self._began = self._told = monotonic()
        self._lock = Lock()

    def add(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            now = monotonic()
            if not amount or now - self._told < TELL_SECONDS:
                return
            self._told = now
            share, passed = min(1.0, self._done / self._total), now - self._began
        self._tell(share, passed * (1 - share) / share if passed > SURE_SECONDS else None)


def spoken(seconds: float) -> str:
    """A time as one says it: 200 -> '3 min'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 10 * 3600 else f"{round(seconds / 3600)} h"


def to_stderr(line: str) -> None:
    """A notice for who started a task from Python and gave no ``Watch``."""
    print(line, file=sys.stderr, flush=True)
