"""How a long task tells what it is doing, and how long it will take."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident
from time import monotonic

TELL_SECONDS = 0.5
RECENT_SECONDS = 10.0
SURE_SECONDS, SURE_SHARE = 20.0, 0.03
"""Before either has passed nobody can say how long the rest takes."""


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
    """How much of some work is done, told to a watch; amounts come from the threads that have just done them.

    How long the rest takes is what the last seconds show: not all is equally quick, and the first is slow. What stands
    for no amount is not counted in time either, so that it cannot make the rest look long.
    """

    def __init__(self, total: int, tell: Callable[[float, float | None], None]) -> None:
        self._total, self._tell, self._lock = max(1, total), tell, Lock()
        self._done, self._busy, self._began, self._told = 0, 0.0, monotonic(), 0.0
        self._last: dict[int, float] = {}
        """when each thread was heard of"""
        self._seen: deque[tuple[float, int, float]] = deque([(self._began, 0, 0.0)])
        """when so much was done, and the seconds that all threads together had spent on it"""

    def add(self, amount: int) -> None:
        with self._lock:
            now, here = monotonic(), get_ident()
            passed = now - self._last.get(here, self._began)
            self._last[here] = now
            if not amount:
                return
            self._done += amount
            self._busy += passed
            if now - self._told < TELL_SECONDS:
                return
            self._told = now
            self._seen.append((now, self._done, self._busy))
            while len(self._seen) > 2 and now - self._seen[0][0] > RECENT_SECONDS:
                self._seen.popleft()
            share, left = min(1.0, self._done / self._total), self._left(now)
        self._tell(share, left)

    def _left(self, now: float) -> float | None:
        (_, then, busy_then), (_, done, busy) = self._seen[0], self._seen[-1]
        if now - self._began < SURE_SECONDS and done < SURE_SHARE * self._total:
            return None
        threads = sum(now - last < RECENT_SECONDS for last in self._last.values())
        return max(0, self._total - done) * (busy - busy_then) / (done - then) / threads


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
