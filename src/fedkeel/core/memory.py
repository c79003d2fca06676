"""How much memory there is for what a user's file asks for."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path


def available() -> int:
    """Bytes that this process may still take: what the machine, its container and ``ulimit -v`` leave it."""
    return max(0, min(_left()))


def _left() -> Iterator[int]:
    yield _machine()
    group = Path("/sys/fs/cgroup")
    most, used = (_number(group / name) for name in ("memory.max", "memory.current"))
    if most is not None and used is not None:
        yield most - used
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        pages = _number(Path("/proc/self/statm")) or 0
        yield limit - pages * os.sysconf("SC_PAGE_SIZE")


def _machine() -> int:
    try:
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(told["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # no Linux
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _number(path: Path) -> int | None:
    """The first number in a file of the kernel's, if there is one."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
