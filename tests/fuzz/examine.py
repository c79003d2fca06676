"""One example of a target: only a ``FedkeelError`` of one line may leave, in bounded time and memory."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from fedkeel.core.errors import FedkeelError
from fuzz.targets import Target

SECONDS, MEGABYTES, LONGEST_LINE = 10, 300, 1000
"""What an example may take, and how long the line may be that refuses it."""
SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink)
)


class Finding(AssertionError):
    """What must not happen has happened."""


@contextmanager
def bounded() -> Iterator[None]:
    """Too long, or far more memory than ever before, is a finding; memory that is never touched does not count."""

    def too_long(*_: Any) -> None:
        raise Finding(f"more than {SECONDS} seconds")

    before, old = _peak(), signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    if _peak() - before > MEGABYTES:
        raise Finding(f"{_peak() - before:.0f} MB of memory")


def _peak() -> float:
    """The most memory that this process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def examine(target: Target, data: bytes) -> bool:
    """Whether the target accepted the example; anything but that or a refusal in one line is raised."""
    with bounded():
        try:
            target.check(data)
        except FedkeelError as error:
            line = str(error)
            if not line or len(line.splitlines()) != 1 or len(line) > LONGEST_LINE:
                raise Finding(f"not one line of at most {LONGEST_LINE} characters: {line[:2000]!r}") from error
            return False
    return True


def search(target: Target, examples: int, keep: Path, *, until: float = inf, same: bool = False) -> tuple[int, int]:
    """(examples, of which accepted); the smallest example that is a finding is kept in a file, and raised.

    With ``same`` they are the same ones each time; after ``until`` no more are tried.
    """
    count = accepted = 0

    @settings(SETTINGS, max_examples=examples, derandomize=same)
    @given(target.inputs)
    def one(data: bytes) -> None:
        nonlocal count, accepted
        if monotonic() > until:
            return
        count += 1
        try:
            accepted += examine(target, data)
        except BaseException:
            keep.write_bytes(data)
            raise

    one()
    return count, accepted
