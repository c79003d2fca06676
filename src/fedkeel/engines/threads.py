"""Several clients at once where each trains a network: a thread for each, with a network of its own.

Small networks leave most of a processor's cores idle; clients side by side do not. A network whose weights are replaced
for a call serves one thread only, so every other thread has a twin of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

Place = TypeVar("Place")
Item = TypeVar("Item")
Found = TypeVar("Found")


def side_by_side(
    work: Callable[[Place, Item], Found], items: Sequence[Item], places: Callable[[int], Place]
) -> Iterator[Found]:
    """The results of all items in their order; ``places(k)`` is where the k-th thread works. PyTorch says how many."""
    threads = min(torch.get_num_threads(), len(items))
    if threads <= 1:
        yield from (work(places(0), item) for item in items)
        return

    free: SimpleQueue[Place] = SimpleQueue()
    for number in range(threads):
        free.put(places(number))

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
