"""Several clients at once where each trains a network: a thread for each, with a network of its own.

Small networks leave most of a processor's cores idle; clients side by side do not. A network whose weights are replaced
for a call serves one thread only, so every other thread has a twin of it. The main thread only waits: it hears Ctrl-C
in the middle of a backward pass, and all others end at their next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, current_thread, main_thread
from typing import Generic, TypeVar

import torch

from fedkeel.core.pulse import Abandoned, heard

Place = TypeVar("Place")
Item = TypeVar("Item")
Found = TypeVar("Found")


class Places(Generic[Place]):
    """Where threads work: the first at the place that is there, every other at a twin, made when it is needed."""

    def __init__(self, first: Place, twin: Callable[[], Place]) -> None:
        self._made, self._twin = [first], twin

    def of(self, threads: int) -> list[Place]:
        while len(self._made) < threads:
            self._made.append(self._twin())
        return self._made[:threads]


LOOK_SECONDS = 0.2
PATIENCE = 1.0
"""Seconds in which threads that were told to end may do so; a step of a large network takes longer."""


def in_parallel(
    work: Callable[[Place, Item], Found], items: Sequence[Item], places: Places[Place], among: int = 1
) -> Generator[Found, None, None]:
    """The results of all items in their order, on as many threads as PyTorch has.

    An item alone has all cores, unless it is one ``among`` several that were done before: how many threads a matrix is
    multiplied on shows in the last bit, and what is done again must come out the same.
    """
    cores = torch.get_num_threads()
    threads = min(cores, len(items))
    if not items or (threads == 1 and current_thread() is not main_thread()):
        yield from (work(place, item) for place in places.of(1) for item in items)
        return

    free: SimpleQueue[Place] = SimpleQueue()
    for place in places.of(threads):
        free.put(place)
    stopped = Event()

    def end_if_told(rows: int) -> None:
        if stopped.is_set():
            raise Abandoned

    def alone(item: Item) -> Found:
        torch.set_num_threads(1 if max(threads, among) > 1 else cores)  # of this thread
        place = free.get()
        try:
            with heard(end_if_told):
                return work(place, item)
        finally:
            free.put(place)

    pool, patience = ThreadPoolExecutor(threads), None
    begun: deque[Future[Found]] = deque()
    try:
        begun.extend(pool.submit(copy_context().run, alone, item) for item in items[:threads])
        for following in range(threads, len(items) + threads):
            while not begun[0].done():
                wait([begun[0]], LOOK_SECONDS)  # a signal that comes just before a wait does not end it
            yield begun[0].result()
            begun.popleft()
            if following < len(items):  # only now, so that no more results wait in memory than there are threads
                begun.append(pool.submit(copy_context().run, alone, items[following]))
    except (KeyboardInterrupt, GeneratorExit):
        patience = PATIENCE
        raise
    finally:
        stopped.set()
        wait(begun, patience)
        pool.shutdown(wait=False, cancel_futures=True)
