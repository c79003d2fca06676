"""The kinds of split: each gives every row of a pool one owner, or -1 where a kind has no use for the row."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.data.settings import Partition

TRIES = 100
"""How often a balanced Dirichlet split is drawn until nobody is empty."""
FINE = 10.0
"""Pachinko allocation's concentration over the classes of a superclass, in FedPuReL as in Reddi et al. 2021."""


@dataclass(frozen=True)
class Pool:
    """The rows to deal out. Every draw is keyed by seed, kind and purpose."""

    kind: str
    seed: int
    labels: np.ndarray
    classes: int
    features: Callable[[], np.ndarray] | None = None
    """Gives one feature vector per row; called only by the kind that needs it."""
    column: np.ndarray | None = None
    """The user's own client per row, as an index into the sorted client names."""
    attribute: np.ndarray | None = None
    values: tuple[str, ...] = ()
    """The attribute of each row, as an index into its values."""
    class_names: tuple[str, ...] = ()
    superclasses: tuple[int, ...] | None = None
    """The superclass of each class."""

    def rng(self, *key: int | str) -> np.random.Generator:
        return generator(self.seed, "partition", self.kind, *key)

    def by_class(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each class that has rows, with the positions of its rows."""
        order = np.argsort(self.labels, kind="stable")
        present, starts = np.unique(self.labels[order], return_index=True)
        return zip(present.tolist(), np.split(order, starts[1:]), strict=False)


def largest_remainder(quotas: np.ndarray) -> np.ndarray:
    """Whole numbers next to ``quotas`` with the same (whole) sum: round down, then up where most was lost."""
    sizes: np.ndarray = np.floor(quotas).astype(np.int64)
    missing = round(float(quotas.sum())) - int(sizes.sum())
    sizes[np.argsort(sizes - quotas, kind="stable")[:missing]] += 1
    return sizes


def dirichlet_shares(rng: np.random.Generator, alpha: float, parts: int) -> np.ndarray:
    """One draw of Dir(alpha, .., alpha). Where floating point fails, the limit of that alpha: one-hot or even."""
    shares: np.ndarray = rng.dirichlet(np.full(parts, alpha))
    if abs(shares.sum() - 1) < 1e-6:  # false for NaN as well
        return shares
    if alpha >= 1:
        return np.full(parts, 1 / parts)
    shares = np.zeros(parts)
    shares[rng.integers(parts)] = 1
    return shares


def iid(settings: Partition, pool: Pool) -> np.ndarray:
    """A random equal split: sizes differ by at most one."""
    owner = np.arange(len(pool.labels)) % settings.clients
    return pool.rng().permutation(owner)


def shards(settings: Partition, pool: Pool) -> np.ndarray:
    """Cut the classes into clients x n shards and deal each client n of them, of min(n, classes) different classes.

    A class goes to the clients with most room left, drawn at random among equals; this always ends with every client
    full (Gale and Ryser 1957), whatever the order of classes. Classes of unequal size are cut so that shards are
    about equal.
    """
    clients, each = settings.clients, settings.classes_per_client
    groups = list(pool.by_class())
    if clients * each < len(groups):
        raise FedkeelError(
            f"partition.kind = 'shards': {clients} clients x {each} classes per client make {clients * each} shards, "
            f"but the data have {len(groups)} classes and each needs one; raise clients or classes_per_client"
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


def dirichlet(settings: Partition, pool: Pool) -> np.ndarray:
    """Per class: shares ~ Dir(alpha) over all clients, then a multinomial number of its rows to each.

    With ``balance``, only over the clients that hold fewer than N / K rows so far: the law of drawing shares for all,
    setting those of the others to 0 and renormalising. Classes come in the order of their label; if somebody ends
    without a row, everything is drawn again.
    """
    return _dirichlet(settings, pool)[0]


def _dirichlet(settings: Partition, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """The owner of each row, and the shares (classes, clients) by which rows were dealt."""
    if not settings.balance:
        return _by_class_shares(settings, pool)
    for attempt in range(TRIES):
        owner, shares = _by_class_shares(settings, pool, "try", attempt)
        if len(np.unique(owner)) == settings.clients:
            return owner, shares
    raise FedkeelError(
        f"partition.kind = {pool.kind} with partition.balance: {len(pool.labels):,} rows could not be dealt so that "
        f"each of {settings.clients} clients has one; raise partition.alpha, lower partition.clients or set balance off"
    )


def _by_class_shares(settings: Partition, pool: Pool, *key: int | str) -> tuple[np.ndarray, np.ndarray]:
    owner = np.empty(len(pool.labels), dtype=np.int64)
    shares = np.zeros((pool.classes, settings.clients))
    sizes = np.zeros(settings.clients, dtype=np.int64)
    for label, rows in pool.by_class():
        rng = pool.rng(*key, "class", label)
        room = sizes * settings.clients < len(pool.labels) if settings.balance else np.ones(len(sizes), dtype=bool)
        shares[label, room] = dirichlet_shares(rng, settings.alpha, int(room.sum()))
        counts = np.zeros_like(sizes)
        counts[room] = rng.multinomial(len(rows), shares[label, room])
        owner[rng.permutation(rows)] = np.repeat(np.arange(settings.clients), counts)
        sizes += counts
    return owner, shares


def tested(settings: Partition, pool: Pool, test: Pool) -> np.ndarray:
    """The owner of each row of ``test`` as partition.test_split says, where ``pool`` was dealt out for training.

    same: by the training rows' shares of each class; own: by shares of a further draw. Here the rows of a class are
    dealt to the nearest whole number (largest remainder): the training rows' multinomial would add noise, and a client
    that is due a row of a small class could go without. even: one row after the other, class by class, to one client
    after the other, so that nobody has more than one row more than anybody else, of any class or in all. Rounding is
    our choice. Rows of a class that has no training rows belong to nobody with "same".
    """
    owner = np.full(len(test.labels), -1, dtype=np.int64)
    clients = np.arange(settings.clients)
    if settings.test_split == "even":
        turns = test.rng("turns").permutation(clients)
        dealt = 0
        for label, rows in test.by_class():
            owner[test.rng("deal", label).permutation(rows)] = turns[(dealt + np.arange(len(rows))) % len(turns)]
            dealt += len(rows)
        return owner
    _, shares = _dirichlet(settings, pool if settings.test_split == "same" else test)
    for label, rows in test.by_class():
        if shares[label].any():
            counts = largest_remainder(len(rows) * shares[label])
            owner[test.rng("deal", label).permutation(rows)] = np.repeat(clients, counts)
    return owner


def pachinko(settings: Partition, pool: Pool) -> np.ndarray:
    """Pachinko allocation: each client draws rows // clients rows, one after the other and without replacement.

    A client's weights over superclasses are ~ Dir(alpha), over the classes of a superclass ~ Dir(10). A row is drawn as
    superclass, then class, then one of the class's rows that are left. A class whose last row is gone is taken out and
    the weights of its superclass are renormalised, a superclass likewise. What remains (less than one row for each
    client) belongs to nobody.

    This is the law of the loop over single rows, not an approximation: until a class runs out, the draws of a client
    are independent and of one law. So they are drawn all at once and kept up to the one that takes a class's last row;
    the rest is drawn again with the new weights. A class runs out once, so there are at most clients + classes draws.
    """
    assert pool.superclasses is not None  # split() has told the user already
    each = len(pool.labels) // settings.clients
    if not each:
        raise FedkeelError(
            f"partition.kind = 'pachinko' gives all clients as many rows, and there are {len(pool.labels)} for "
            f"{settings.clients} clients; lower partition.clients"
        )
    _, group = np.unique(pool.superclasses, return_inverse=True)
    left = np.bincount(pool.labels, minlength=pool.classes)
    counts = np.zeros((settings.clients, pool.classes), dtype=np.int64)
    for client in range(settings.clients):
        rng = pool.rng("client", client)
        coarse = np.zeros(group.max() + 1)
        fine = rng.standard_gamma(FINE, size=pool.classes)  # Dir(10) once it is divided by the sum over a superclass
        missing = each
        while missing:
            classes = np.where(left > 0, fine, 0)
            within = np.bincount(group, weights=classes)
            coarse[within == 0] = 0
            if not coarse.any():
                # At the start. Later only if all that had a weight is gone, as what was left had underflowed: what is
                # left of a Dirichlet draw, renormalised, is a Dirichlet draw that does not depend on the rest.
                coarse[within > 0] = dirichlet_shares(rng, settings.alpha, int(np.count_nonzero(within)))
            coarse /= coarse.sum()
            law = coarse[group] * classes / np.maximum(within, np.finfo(float).tiny)[group]
            taken = _until_one_is_gone(rng.choice(pool.classes, size=missing, p=law / law.sum()), left)
            counts[client] += taken
            left -= taken
            missing -= int(taken.sum())
    owner = np.full(len(pool.labels), -1, dtype=np.int64)
    for label, rows in pool.by_class():
        dealt = np.repeat(np.arange(settings.clients), counts[:, label])
        owner[pool.rng("class", label).permutation(rows)[: len(dealt)]] = dealt
    return owner


def _until_one_is_gone(drawn: np.ndarray, left: np.ndarray) -> np.ndarray:
    """How many of each class are drawn up to and with the first draw that takes the last one of a class."""
    order = np.argsort(drawn, kind="stable")
    label = drawn[order]
    nth = np.arange(1, len(drawn) + 1) - np.searchsorted(label, label)
    end = order[nth == left[label]].min(initial=len(drawn) - 1) + 1
    return np.bincount(drawn[:end], minlength=len(left))


def bernoulli_dirichlet(settings: Partition, pool: Pool) -> np.ndarray:
    """Who may hold a class is a coin of bias p; among those, shares ~ Dir(alpha) and each row is drawn on its own."""
    eligible = _eligible(settings.clients, pool.classes, settings.p, pool.rng("eligible"))
    owner = np.empty(len(pool.labels), dtype=np.int64)
    for label, rows in pool.by_class():
        rng = pool.rng("class", label)
        clients = np.flatnonzero(eligible[:, label])
        if not len(clients):
            clients = rng.integers(settings.clients, size=1)
        owner[rows] = rng.choice(clients, size=len(rows), p=dirichlet_shares(rng, settings.alpha, len(clients)))
    return owner


def _eligible(clients: int, classes: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """A (clients, classes) matrix of coins of bias p in which no row is empty."""
    coins = rng.random((clients, classes)) < p
    # Redrawing an empty row until it is not would never end for tiny p. The law of the row it ends with is known:
    # the first class held has a geometric law cut off at the last class, and the later classes are free coins.
    first_law = (1 - p) ** np.arange(classes)
    first_law /= first_law.sum()
    for client in np.flatnonzero(~coins.any(axis=1)):
        first = int(rng.choice(classes, p=first_law))
        coins[client, first] = True
        coins[client, first + 1 :] = rng.random(classes - first - 1) < p
    return coins


def zipf(settings: Partition, pool: Pool) -> np.ndarray:
    """Random labels, sizes proportional to k ** -exponent; nobody is empty while there are rows enough."""
    rows, clients = len(pool.labels), settings.clients
    if rows <= clients:
        sizes = (np.arange(clients) < rows).astype(np.int64)
    else:
        weights = np.arange(1, clients + 1, dtype=np.float64) ** -settings.exponent
        # What a client is due beyond its first row; equals rows * share - 1 where everybody is due at least one.
        beyond = np.maximum(rows * weights / weights.sum() - 1, 0)
        sizes = 1 + largest_remainder((rows - clients) * beyond / beyond.sum())
    return pool.rng().permutation(np.repeat(np.arange(clients), sizes))


def feature_clusters(settings: Partition, pool: Pool) -> np.ndarray:
    """Per class: k-means with one cluster per client; clusters go to clients in a random order of their own per class.

    The paper does not say how the clusters of different classes are joined; a keyed order per class is our choice.
    """
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if pool.features is None:
        raise FedkeelError(
            "partition.kind = 'feature-clusters' needs features: set data.encoder to one that gives them"
        )
    features = np.asarray(pool.features(), dtype=np.float32)
    if not np.isfinite(features).all():
        raise FedkeelError("partition.kind = 'feature-clusters': the features hold NaN or infinity; check the source")
    owner = np.empty(len(pool.labels), dtype=np.int64)
    # One thread: sums in a fixed order, so the same split on every machine with the same libraries.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal rows make fewer clusters; that is fine here
        for label, rows in pool.by_class():
            rng = pool.rng("class", label)
            means = KMeans(
                min(settings.clients, len(rows)), n_init=1, max_iter=50, random_state=int(rng.integers(2**31))
            )
            owner[rows] = rng.permutation(settings.clients)[means.fit_predict(features[rows])]
    return owner


def column(settings: Partition, pool: Pool) -> np.ndarray:
    """The clients the data came with."""
    assert pool.column is not None  # split() has told the user already
    return pool.column


def spurious(settings: Partition, pool: Pool) -> np.ndarray:
    """An attribute says much about the class, and something else at the next client.

    Of A attribute values, client k connects class c with value (c + k) mod A: among its rows of the class,
    int(correlation * n + 1 / 2) of n have that value, and the others are spread evenly over the other values. Every
    client gets the same number n of rows of a class, the largest for which the class has rows enough; what is left
    then belongs to nobody. Which clients exist besides two for CheXpert and four for CelebA the paper does not say;
    taking turns is our choice, and so is cutting all clients to the same size.
    """
    assert pool.attribute is not None  # split() has told the user already
    values, clients = len(pool.values), settings.clients
    owner = np.full(len(pool.labels), -1, dtype=np.int64)
    for label, rows in pool.by_class():
        held = [rows[pool.attribute[rows] == value] for value in range(values)]
        have = np.array([len(part) for part in held])
        few, many = 0, len(rows) // clients + 1  # few rows are there for everybody, many are not
        while many - few > 1:
            middle = (few + many) // 2
            enough = (_by_value(settings, label, values, middle).sum(0) <= have).all()
            few, many = (middle, many) if enough else (few, middle)
        if not few:
            short = np.argmax(_by_value(settings, label, values, 1).sum(0) - have)
            raise FedkeelError(
                f"partition.kind = {pool.kind}: class {pool.class_names[label]!r} has {have[short]} rows with the "
                f"attribute {pool.values[short]!r}, too few for {clients} clients; lower partition.clients"
            )
        counts = _by_value(settings, label, values, few)
        for value, part in enumerate(held):
            chosen = pool.rng("class", label, "value", value).permutation(part)[: counts[:, value].sum()]
            owner[chosen] = np.repeat(np.arange(clients), counts[:, value])
    return owner


def _by_value(settings: Partition, label: int, values: int, rows: int) -> np.ndarray:
    """How many of the ``rows`` rows of a class each client gets of each attribute value: (clients, values)."""
    main = int(settings.correlation * rows + 0.5)
    after = np.arange(1, values)
    others = [(rows - main + values - 1 - step) // (values - 1) for step in after]
    client = np.arange(settings.clients)
    counts = np.empty((settings.clients, values), dtype=np.int64)
    counts[client, (label + client) % values] = main
    for step, count in zip(after, others, strict=True):
        counts[client, (label + client + step) % values] = count
    return counts
