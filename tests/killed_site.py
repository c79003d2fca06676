"""A site that is killed, as by a power cut, the second time that it comes to a point: POINT site.toml.

The second time, because the letter that it was at lies in its inbox, and is answered when it is started again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from fedkeel import api
from fedkeel.engines.flower.fleet import Fleet
from fedkeel.engines.store import Store

POINTS = ("before it sends", "after it sent", "as it writes what it keeps")
passed = 0


def killed_at(point: str) -> None:
    if point == "before it sends":
        Fleet.reply = wrapped(Fleet.reply, die, None)  # type: ignore[method-assign]
    elif point == "after it sent":
        Fleet.reply = wrapped(Fleet.reply, None, die)  # type: ignore[method-assign]
    elif point == "as it writes what it keeps":
        Store._keep = wrapped(Store._keep, None, die)  # type: ignore[method-assign]  # before it is committed
    else:
        raise ValueError(point)


def wrapped(call: Callable[..., Any], before: Callable[[], None] | None, after: Callable[[], None] | None) -> Any:
    def one(*given: Any, **named: Any) -> Any:
        if before:
            before()
        found = call(*given, **named)
        if after:
            after()
        return found

    return one


def die() -> None:
    global passed
    passed += 1
    if passed == 2:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    killed_at(sys.argv[1])
    api.site(sys.argv[2])
