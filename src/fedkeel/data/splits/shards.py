"""A few classes per client.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

import heapq
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.data.splits.base import Pool, Split, register


@register("n classes per client, n = classes_per_client (McMahan et al. 2017)")
class Shards(Split):
    kind: Literal["shards"] = "shards"
    classes_per_client: int = Field(1, ge=1)
    """how many classes a client holds"""

    def owners(self, pool: Pool) -> np.ndarray:
        """Cut the classes into clients x n shards and deal each client n of them, of min(n, classes) different classes.

        A class goes to the clients with most room left, drawn at random among equals; this always ends with every
        client full (Gale and Ryser 1957), whatever the order of classes. Classes of unequal size are cut so that shards
        are about equal.
        """
        clients, each = self.clients, self.classes_per_client
        groups = list(pool.by_class())
        if clients * each < len(groups):
            raise FedkeelError(
                f"partition.kind = 'shards': {clients} clients x {each} classes per client make {clients * each} "
                f"shards, but the data have {len(groups)} classes and each needs one; raise clients or "
                "classes_per_client"
            )
        rng = pool.rng()
        cuts = _cuts(np.array([len(rows) for _, rows in groups]), clients, each, rng)
        # A class with a whole shard for everybody (cuts >= clients) leaves only its remainder to be dealt.
        room = each - int((cuts // clients).sum())
        left = np.full(clients, room)
        owner = np.empty(len(pool.labels), dtype=np.int64)
        for group in rng.permutation(len(groups)):
            whole, extra = divmod(int(cuts[group]), clients)
            chosen = np.lexsort((rng.random(clients), -left))[:extra]
            left[chosen] -= 1
            holders = rng.permutation(np.concatenate([np.tile(np.arange(clients), whole), chosen]))
            shuffled = rng.permutation(groups[group][1])
            for holder, rows in zip(holders, np.array_split(shuffled, len(holders)), strict=True):
                owner[rows] = holder
        return owner


class Alias(Split):
    """A short name of shards with so many classes per client."""

    each: ClassVar[int]

    def canonical(self) -> Shards:
        return Shards(**self.model_dump(exclude={"kind"}), classes_per_client=self.each)


@register("one class per client: shards with classes_per_client = 1")
class OneShard(Alias):
    kind: Literal["shard-1"] = "shard-1"
    each = 1


@register("two classes per client: shards with classes_per_client = 2")
class TwoShards(Alias):
    kind: Literal["shard-2"] = "shard-2"
    each = 2


def _cuts(sizes: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Into how many shards each class is cut: clients x each in all, found by always cutting the largest shards.

    With C classes every class gets at least one shard, and between clients * floor(each / C) and
    clients * ceil(each / C) of them, so that a client can hold min(each, C) different classes.
    """
    if not len(sizes):
        return sizes
    least, most = max(1, clients * (each // len(sizes))), clients * -(-each // len(sizes))
    cuts = np.full(len(sizes), least)
    heap = [(-size / least, tie, i) for i, (size, tie) in enumerate(zip(sizes, rng.random(len(sizes)), strict=True))]
    heapq.heapify(heap)
    for _ in range(clients * each - least * len(sizes)):
        _, tie, i = heapq.heappop(heap)
        cuts[i] += 1
        if cuts[i] < most:
            heapq.heappush(heap, (-sizes[i] / cuts[i], tie, i))
    return cuts
