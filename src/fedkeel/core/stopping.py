"""Ctrl-C, and SIGTERM as ``docker stop`` sends it: one line and exit code 2, however often it comes.

Before a task has begun there is nothing to save, and an import that is torn apart fails in strange ways: the process
ends at once. Later the signal is a ``KeyboardInterrupt``, and more of them are passed over while that is seen to.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from time import monotonic
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEAF_SECONDS = 5.0
"""A further signal within this time changes nothing; if the first was lost somewhere, a later one is heard."""
NOTHING_BEGUN = "stopped before anything was begun: the same command starts again"


class _State:
    begun = False
    last: float | None = None


_STATE = _State()


@contextmanager
def heeding() -> Iterator[None]:
    """In this block signals stop the process as above; one that was ignored before, as nohup has it, still is."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _STATE.begun, _STATE.last = False, None
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _arrived)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def begin() -> None:
    """From here on there may be something to save."""
    _STATE.begun = True


def asked() -> bool:
    """Whether a signal has come."""
    return _STATE.last is not None


def leave(code: int) -> None:
    """End the process, with threads that are in the middle of something; nobody waits for them."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _arrived(number: int, frame: Any) -> None:
    if not _STATE.begun:
        os.write(2, f"fedkeel: {NOTHING_BEGUN}\n".encode())
        os._exit(2)
    now = monotonic()
    if _STATE.last is None or now - _STATE.last > DEAF_SECONDS:
        _STATE.last = now
        raise KeyboardInterrupt
