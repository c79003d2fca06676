"""One example of a target: only a ``FedkeelError`` may leave, in bounded time and memory."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fedkeel.core.errors import FedkeelError
from fuzz.target import Target

SECONDS = 10
"""What an example may take."""
AT_MOST = 4 * 2**30
"""Bytes that it can have at all: a finding must not take the machine with it."""


class Finding(AssertionError):
    """What must not happen has happened."""


@dataclass
class Hunt:
    """What came of some examples."""

    tried: int = 0
    accepted: int = 0
    data: bytes = b""
    error: Exception | None = None
    """What was found, and ``data`` is what it was found with."""


@contextmanager
def bounded(megabytes: int) -> Iterator[None]:
    """Too long or too much memory is a finding; what asks for very much does not get it."""

    def too_long(*_: Any) -> None:
        raise Finding(f"more than {SECONDS} seconds")

    _forget_the_peak()
    before, old, limits = _peak(), signal.signal(signal.SIGALRM, too_long), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_size() + AT_MOST, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    if _peak() - before > megabytes:
        raise Finding(f"{_peak() - before:.0f} MB of memory")


PROCESS = Path("/proc/self")
"""What Linux tells of a process; elsewhere only a new peak of memory is seen, and nothing is withheld."""


def _forget_the_peak() -> None:
    if PROCESS.exists():
        (PROCESS / "clear_refs").write_text("5")


def _peak() -> float:
    """The most memory that this process has had, in megabytes."""
    if PROCESS.exists():
        (kilobytes,) = re.findall(r"VmHWM:\s*(\d+) kB", (PROCESS / "status").read_text())
        return int(kilobytes) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _size() -> int:
    """What this process has of addresses, in bytes."""
    return int((PROCESS / "statm").read_text().split()[0]) * resource.getpagesize() if PROCESS.exists() else 2**50


def examine(target: Target, data: bytes) -> bool:
    """Whether the target accepted the example; anything but that or a refusal is raised."""
    with bounded(target.megabytes):
        try:
            target.check(data)
        except FedkeelError:
            return False
    return True


def hunt(target: Target, examples: int, number: int) -> Hunt:
    """Try so many examples, drawn by hypothesis: the same for the same number. A finding is made small."""
    seen = Hunt()

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
              report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink))  # fmt: skip
    @given(st.randoms(use_true_random=False))
    def holds(random: Random) -> None:
        seen.data = target.make(random)
        seen.tried += 1
        seen.accepted += examine(target, seen.data)

    try:
        holds()
    except Exception as error:  # the last one tried is the smallest one found
        seen.error = error
    return seen
