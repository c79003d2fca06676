"""From rows to clients: a split is drawn once, saved as a manifest, and the manifest is what a run trusts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.rng import generator
from fedkeel.data import splits
from fedkeel.data.dataset import Dataset
from fedkeel.data.ownership import Ownership
from fedkeel.data.settings import Partition


@dataclass(frozen=True)
class Kind:
    """A kind of split: how rows find owners, what it is, and which settings it reads."""

    owners: Callable[[Partition, splits.Pool], np.ndarray]
    about: str
    reads: tuple[str, ...] = ("clients",)
    test_splits: tuple[str, ...] = ()
    """which partition.test_split it can follow"""


PARTITIONS: dict[str, Kind] = {
    "iid": Kind(splits.iid, "random equal split", test_splits=("even",)),
    "shards": Kind(
        splits.shards,
        "n classes per client, n = classes_per_client; also shard-1, shard-2 (McMahan et al. 2017)",
        ("clients", "classes_per_client"),
        ("even",),
    ),
    "dirichlet": Kind(
        splits.dirichlet,
        "per class Dirichlet(alpha) shares over all clients (Yurochkin et al. 2019)",
        ("clients", "alpha"),
        ("same", "even", "own"),
    ),
    "bernoulli-dirichlet": Kind(
        splits.bernoulli_dirichlet,
        "each client may hold a class with chance p, Dirichlet(alpha) among those (Xu et al. 2022, FedCorr)",
        ("clients", "alpha", "p"),
        ("even",),
    ),
    "pachinko": Kind(
        splits.pachinko,
        "per client Dirichlet(alpha) over superclasses, then over their classes; test rows too (Reddi et al. 2021)",
        ("clients", "alpha"),
    ),
    "zipf": Kind(
        splits.zipf,
        "random labels, sizes ~ k ** -exponent (Park et al. 2025, OvA-LP)",
        ("clients", "exponent"),
        ("even",),
    ),
    "feature-clusters": Kind(
        splits.feature_clusters,
        "per class k-means on the features, a cluster per client (Park et al. 2025, OvA-LP)",
        test_splits=("even",),
    ),
    "spurious": Kind(
        splits.spurious,
        "an attribute that says much about the class, and something else at the next client (Chen et al. 2025, LP-FT)",
        ("clients", "correlation"),
    ),
    "column": Kind(splits.column, "the clients named in the data's own client column", ()),
}
_ALIASES = {"shard-1": 1, "shard-2": 2}


@dataclass(frozen=True)
class Manifest:
    """Who owns which row for what. Parts that were not asked for have no rows."""

    names: tuple[str, ...]
    train: Ownership
    validation: Ownership
    test: Ownership
    test_rows: Literal["train", "test"]
    """Do the ids in ``test`` count rows of the training pool (carved off) or of the source's test set?"""
    settings: dict[str, Any]
    """kind, the parameters that kind reads, validation, test and seed; balance and test_split where they are used"""
    data: str
    """The dataset's fingerprint."""

    def _content(self) -> dict[str, Any]:
        def part(owned: Ownership) -> dict[str, list[int]]:
            return {"offsets": owned.offsets.tolist(), "rows": owned.rows.tolist()}

        return {
            "names": list(self.names),
            "train": part(self.train),
            "validation": part(self.validation),
            "test": part(self.test),
            "test_rows": self.test_rows,
            "settings": self.settings,
            "data": self.data,
        }

    @property
    def hash(self) -> str:
        """sha256 over everything in the manifest."""
        return sha256(json.dumps(self._content(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write as JSON: the file is whole or absent, never half there."""
        write_atomically(Path(path), json.dumps({"hash": self.hash, **self._content()}, separators=(",", ":")).encode())

    @classmethod
    def load(cls, path: str | Path) -> Manifest:
        """Read what ``save`` wrote; a file that is not exactly that is named in one line."""

        def part(stored: dict[str, list[int]]) -> Ownership:
            return Ownership(np.array(stored["offsets"], dtype=np.int64), np.array(stored["rows"], dtype=np.int64))

        try:
            stored = json.loads(Path(path).read_bytes())
            manifest = cls(
                names=tuple(stored["names"]),
                train=part(stored["train"]),
                validation=part(stored["validation"]),
                test=part(stored["test"]),
                test_rows=stored["test_rows"],
                settings=stored["settings"],
                data=stored["data"],
            )
            intact = stored["hash"] == manifest.hash
        except OSError as error:
            raise FedkeelError(f"cannot read the split {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise FedkeelError(f"{path} is not a whole split manifest: it is damaged; make the split again") from None
        if not intact:
            raise FedkeelError(f"{path} does not match the hash stored in it: it was changed; make the split again")
        return manifest


def split(
    settings: Partition,
    dataset: Dataset,
    *,
    seed: int,
    features: Callable[[], np.ndarray] | None = None,
    rows: np.ndarray | None = None,
) -> Manifest:
    """Give every training row (or those in ``rows``) to one client, as train, validation or test row.

    Nobody has two owners; ``spurious`` and ``pachinko`` alone leave rows without one. ``pachinko`` deals the source's
    test rows together with the training rows, unless ``settings.test`` asks for a share of the clients' own rows.
    ``features`` gives one vector per training row of the dataset and is called only by ``feature-clusters``.
    """
    settings = _canonical(settings)
    kind = PARTITIONS[settings.kind]
    total = len(dataset.train_labels)
    kept = np.arange(total) if rows is None else np.sort(rows)
    names, column, test = _clients(settings, dataset)
    attribute = _attribute(dataset) if settings.kind == "spurious" else None
    superclasses = _superclasses(dataset) if settings.kind == "pachinko" else None
    pooled = dataset.test_labels if settings.kind == "pachinko" and not settings.test else dataset.test_labels[:0]
    pool = splits.Pool(
        settings.kind,
        seed,
        np.concatenate([dataset.train_labels[kept], pooled]),
        dataset.classes,
        None if features is None else lambda: features()[kept],
        None if column is None else column[kept],
        None if attribute is None else attribute[kept],
        dataset.attribute_names,
        dataset.class_names,
        superclasses,
    )
    owners = kind.owners(settings, pool)
    owner = np.full(total, -1, dtype=np.int64)
    owner[kept] = owners[: len(kept)]
    if len(pooled):
        test = Ownership.of_owners(owners[len(kept) :], len(names))
    elif settings.test_split != "none":
        test = Ownership.of_owners(splits.tested(settings, pool, _test_pool(pool, dataset)), len(names))
    strata = dataset.train_labels
    if attribute is not None:
        strata = strata * len(dataset.attribute_names) + attribute
        if dataset.test_attribute is not None and not settings.test:
            test = Ownership.of_owners(splits.spurious(settings, _test_pool(pool, dataset)), len(names))
    train, validation, carved = _carve(Ownership.of_owners(owner, len(names)), strata, settings, names, pool)
    return Manifest(
        names=names,
        train=train,
        validation=validation,
        test=carved if test is None else test,
        test_rows="train" if test is None else "test",
        settings={
            "kind": settings.kind,
            **{key: getattr(settings, key) for key in kind.reads},
            **settings.model_dump(include={"balance", "test_split"}, exclude_defaults=True),
            "validation": settings.validation,
            "test": settings.test,
            "seed": seed,
        },
        data=dataset.fingerprint,
    )


def _canonical(settings: Partition) -> Partition:
    if settings.validation + settings.test >= 1:
        raise FedkeelError(
            f"partition.validation + partition.test = {settings.validation:g} + {settings.test:g}: "
            "expected a sum below 1, so that rows are left to train on; lower one of them"
        )
    if known(settings.kind) in _ALIASES:
        settings = settings.model_copy(update={"kind": "shards", "classes_per_client": _ALIASES[settings.kind]})
    if settings.balance and settings.kind != "dirichlet":
        raise FedkeelError(
            f"partition.balance goes with partition.kind = 'dirichlet' only, not with {settings.kind!r}; switch it off"
        )
    asked = settings.test_split
    if asked == "none":
        return settings
    if settings.test:
        raise FedkeelError(
            f"partition.test_split = {asked!r} deals the source's test rows to the clients, partition.test = "
            f"{settings.test:g} keeps training rows for testing instead: set one of them only"
        )
    if asked not in PARTITIONS[settings.kind].test_splits:
        fitting = ", ".join(name for name, kind in PARTITIONS.items() if asked in kind.test_splits)
        raise FedkeelError(
            f"partition.test_split = {asked!r} does not go with partition.kind = {settings.kind!r}, only with "
            f"{fitting}; set it to 'none'"
        )
    return settings


def known(kind: str) -> str:
    """The kind itself, if there is one of that name."""
    if kind not in PARTITIONS and kind not in _ALIASES:
        raise unknown("partition", kind, [*PARTITIONS, *_ALIASES])
    return kind


def _clients(settings: Partition, dataset: Dataset) -> tuple[tuple[str, ...], np.ndarray | None, Ownership | None]:
    """The clients' names and, for ``column``, each training row's client and who owns which test row."""
    if settings.kind != "column":
        width = max(3, len(str(settings.clients - 1)))
        return tuple(f"client-{k:0{width}d}" for k in range(settings.clients)), None, None
    if dataset.train_client is None:
        raise FedkeelError(
            f"partition.kind = 'column' but {dataset.name} names no clients: add a client column to the data "
            "(data.client_column says its name; in an npz file the array client) or choose another kind"
        )
    names, column = np.unique(dataset.train_client.astype(str), return_inverse=True)
    found = tuple(str(name) for name in names)
    if dataset.test_client is None or settings.test:  # a share of the client's own rows was asked for
        return found, column, None
    tested = dataset.test_client.astype(str)
    strangers = sorted(set(tested.tolist()) - set(found))
    if strangers:
        raise FedkeelError(
            f"{dataset.name}: the test rows name {len(strangers)} client(s) without training rows, "
            f"such as {strangers[0]!r}; give them training rows or take them out"
        )
    return found, column, Ownership.of_owners(np.searchsorted(names, tested), len(found))


def _attribute(dataset: Dataset) -> np.ndarray:
    if dataset.train_attribute is None or len(dataset.attribute_names) < 2:
        found = "it has one value only" if dataset.attribute_names else "none is there"
        raise FedkeelError(
            f"partition.kind = 'spurious' needs an attribute of each row of {dataset.name}, and {found}: add such a "
            "column (data.attribute_column says its name; in an npz file the array attribute) or choose another kind"
        )
    return dataset.train_attribute


def _superclasses(dataset: Dataset) -> tuple[int, ...]:
    if dataset.superclasses is None:
        raise FedkeelError(
            f"partition.kind = 'pachinko' needs superclasses, and {dataset.name} has none: add such a column "
            "(data.superclass_column says its name; in an npz file the array superclasses) or choose dirichlet"
        )
    return dataset.superclasses


def _test_pool(pool: splits.Pool, dataset: Dataset) -> splits.Pool:
    kind, labels = f"{pool.kind} (test rows)", dataset.test_labels
    return replace(pool, kind=kind, labels=labels, attribute=dataset.test_attribute, features=None, column=None)


def _carve(
    owned: Ownership, strata: np.ndarray, settings: Partition, names: tuple[str, ...], pool: splits.Pool
) -> tuple[Ownership, Ownership, Ownership]:
    """Cut each client's rows into (train, validation, test).

    Of n rows, test gets test * n and validation gets validation * n, each rounded to the nearest whole number (halves
    up); if that left no row to train on, validation gives rows back first, then test. Within a client the rows are
    laid out stratum by stratum (a class, or a class with an attribute value) and taken at even distances from a random
    start, so every stratum gives its share, rounded down or up.
    """
    nobody = Ownership.of_lists([np.empty(0, dtype=np.int64)] * owned.clients)
    if not settings.validation and not settings.test:
        return owned, nobody, nobody
    parts: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] = ([], [], [])
    for client, name in enumerate(names):
        rows = owned.of(client)
        spare = max(0, len(rows) - 1)
        test = min(int(settings.test * len(rows) + 0.5), spare)
        validation = min(int(settings.validation * len(rows) + 0.5), spare - test)
        rng = generator(pool.seed, "partition", pool.kind, "carve", name)
        order = rng.permutation(rows)
        order = order[np.argsort(strata[order], kind="stable")]
        tested, order = _take(order, test, rng)
        validated, order = _take(order, validation, rng)
        for part, taken in zip(parts, (order, validated, tested), strict=True):
            part.append(np.sort(taken))
    train, validate, tests = (Ownership.of_lists(part) for part in parts)
    return train, validate, tests


def _take(order: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """``count`` entries at even distances around the ring, and the others."""
    taken = np.zeros(len(order), dtype=bool)
    if count:
        taken[(np.arange(count) * len(order) // count + rng.integers(len(order))) % len(order)] = True
    return order[taken], order[~taken]
