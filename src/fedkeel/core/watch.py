"""How a long task tells what it is doing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    """Silent unless told otherwise."""

    encoded: Callable[[int, int], None] = lambda done, total: None
    round: Callable[[int, int, float], None] = lambda round, rounds, accuracy: None
    client: Callable[[int, int, float | None], None] = lambda done, total, accuracy: None
    """a client was personalised; the accuracy is that of its model on its own test set"""
    notice: Callable[[str], None] = lambda text: None


SILENT = Watch()


def to_stderr(line: str) -> None:
    """A notice for who started a task from Python and gave no ``Watch``."""
    print(line, file=sys.stderr, flush=True)
