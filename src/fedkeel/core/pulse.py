"""The pulse of long work: it beats at every step, on whatever thread that is done.

Whoever starts the work may listen, to show how far it is or to end it at the next step. Nothing in between need know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int], None]


class Abandoned(BaseException):
    """Nobody waits for this work any more: no error, and none to be caught."""


def _nobody(rows: int) -> None:
    pass


_LISTENER: ContextVar[Listener] = ContextVar("listener", default=_nobody)


def beat(rows: int = 0) -> None:
    """A step is done: so many rows went through a network."""
    _LISTENER.get()(rows)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """In this block, and on threads that it starts, beats go to the listener, after whoever listens further out."""
    outer = _LISTENER.get()

    def both(rows: int) -> None:
        outer(rows)
        listener(rows)

    token = _LISTENER.set(both)
    try:
        yield
    finally:
        _LISTENER.reset(token)
