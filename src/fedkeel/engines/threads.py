"""Several clients at once where each trains a network: a thread for each, with a network of its own.

Small networks leave most of a processor's cores idle; clients side by side do not. A network whose weights are replaced
for a call serves one thread only, so every other thread has a twin of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

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


def in_parallel(work: Callable[[Place, Item], Found], items: Sequence[Item], places: Places[Place]) -> Iterator[Found]:
    """The results of all items in their order, on as many threads as PyTorch has."""
    threads = min(torch.get_num_threads(), len(items))
    if threads <= 1:
        yield from (work(place, item) for place in places.of(1) for item in items)
        return

    free: SimpleQueue[Place] = SimpleQueue()
    for place in places.of(threads):
        free.put(place)

    def alone(item: Item) -> Found:
        torch.set_num_threads(1)  # of this thread
        place = free.get()
        try:
            return work(place, item)
        finally:
            free.put(place)

    with ThreadPoolExecutor(threads) as pool:
        begun = deque(pool.submit(alone, item) for item in items[:threads])
        for following in range(threads, len(items) + threads):
            yield begun.popleft().result()
            if following < len(items):  # only now, so that no more results wait in memory than there are threads
                begun.append(pool.submit(alone, items[following]))
