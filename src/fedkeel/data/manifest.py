"""From rows to clients: a split is drawn once, saved as a manifest, and the manifest is what a run trusts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.data.dataset import Dataset
from fedkeel.data.ownership import Ownership
from fedkeel.data.splits.base import Pool, Split


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
    """What the split says of itself (``Split.told``), and the seed."""
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
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise FedkeelError(f"{path} is not a whole split manifest: it is damaged; make the split again") from None
        if not intact:
            raise FedkeelError(f"{path} does not match the hash stored in it: it was changed; make the split again")
        return manifest


def split(
    settings: Split,
    dataset: Dataset,
    *,
    seed: int,
    features: Callable[[], np.ndarray] | None = None,
    rows: np.ndarray | None = None,
) -> Manifest:
    """Give every training row (or those in ``rows``) to one client at most, as train, validation or test row.

    Where the kind deals the source's test rows as well, these are the clients' test rows; else a share of each client's
    own rows is, if ``settings.test`` asks for one. ``features`` gives one vector per training row of the dataset and is
    called only by the kind that needs it.
    """
    settings.check()
    settings = settings.canonical()
    names = settings.names(dataset)
    kept = np.arange(len(dataset.train_labels)) if rows is None else np.sort(rows)
    pool = Pool(
        settings.kind,
        seed,
        dataset,
        dataset.train_labels[kept],
        None if dataset.train_client is None else dataset.train_client[kept],
        None if dataset.train_attribute is None else dataset.train_attribute[kept],
        None if features is None else lambda: features()[kept],
    )
    tests = f"{settings.kind} (test rows)", seed, dataset, dataset.test_labels
    owners, tested = settings.deal(pool, Pool(*tests, dataset.test_client, dataset.test_attribute))
    owner = np.full(len(dataset.train_labels), -1, dtype=np.int64)
    owner[kept] = owners
    owned = Ownership.of_owners(owner, len(names))
    train, validation, carved = carve(owned, settings.strata(dataset), settings, names, pool)
    return Manifest(
        names=names,
        train=train,
        validation=validation,
        test=carved if tested is None else Ownership.of_owners(tested, len(names)),
        test_rows="train" if tested is None else "test",
        settings={**settings.told(), "seed": seed},
        data=dataset.fingerprint,
    )


def carve(
    owned: Ownership, strata: np.ndarray, settings: Split, names: tuple[str, ...], pool: Pool
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
