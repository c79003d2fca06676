"""From a configuration to sites that can train: source, shift, partition, rows, and what the clients enrol with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, from_settings
from fedkeel.core.roster import Enrolment
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.corruptions import corrupted
from fedkeel.data.dataset import Dataset
from fedkeel.data.duplicates import Duplicates, without_copies
from fedkeel.data.label_noise import mistaken, noisy_labels
from fedkeel.data.manifest import Manifest, split
from fedkeel.data.ownership import Ownership
from fedkeel.data.shifts import flipped, long_tail
from fedkeel.engines.sites import Owned, Sites
from fedkeel.engines.store import Store
from fedkeel.metrics.accuracy import TestSets
from fedkeel.models.cache import features as encode
from fedkeel.runs.config import Experiment
from fedkeel.runs.opening import Opened, open_rows
from fedkeel.runs.provenance import Provenance


@dataclass(frozen=True)
class Federation:
    dataset: Dataset
    manifest: Manifest
    rows: Opened
    labels: np.ndarray
    """Training labels as the clients see them: with label noise, where there is any."""
    duplicates: Duplicates
    provenance: Provenance

    def label_counts(self) -> np.ndarray:
        return self.manifest.train.label_counts(self.labels, self.dataset.classes)

    def sites(self, seed: int, store: Store | None = None) -> Sites:
        """Every client with its rows as they were opened."""
        tested, manifest = self.tested(), self.manifest
        return Sites(
            manifest.names,
            self.rows.train,
            torch.from_numpy(self.labels),
            manifest.train,
            seed,
            self.dataset.classes,
            validation=manifest.validation,
            test=tested if len(manifest.test.rows) else None,
            store=store or Store(),
        )

    def tested(self) -> Owned:
        """Test rows and who owns which: the clients' own if they kept some, else the source's, which nobody owns."""
        owned, rows, labels = self.manifest.test, self.rows.test, self.dataset.test_labels
        if len(owned.rows) and self.manifest.test_rows == "train":
            rows, labels = self.rows.train.pick(torch.from_numpy(owned.rows)), self.dataset.train_labels[owned.rows]
            owned = Ownership(owned.offsets, np.arange(len(owned.rows)))
        return Owned(rows, torch.from_numpy(labels.astype(np.int64)), owned)

    def test_sets(self, sites: Sites) -> TestSets:
        """What models are tested on."""
        tested = sites.test or self.tested()
        return TestSets(tested.x, tested.y, None if sites.test is None else tested.owned, self.label_counts())

    def enrolment(self) -> Enrolment:
        tested, manifest = self.dataset.test_labels, self.manifest
        if len(manifest.test.rows) and manifest.test_rows == "train":
            tested = self.dataset.train_labels[manifest.test.rows]
        counts = np.bincount(tested, minlength=self.dataset.classes)
        return Enrolment.of_counts(manifest.names, self.label_counts(), len(manifest.validation.rows), counts)


def divide(
    experiment: Experiment, dataset: Dataset, watch: Watch = SILENT
) -> tuple[Manifest, np.ndarray, Dataset, Duplicates]:
    """The split before anything is trained: (who owns which rows, the labels clients train on, the shifted data, how
    many test rows are training rows as well)."""
    seed, shift = experiment.run.seed, experiment.shift
    kept = None
    if shift.long_tail > 1:
        kept = long_tail(dataset.train_labels, dataset.classes, shift.long_tail, seed, shift.order)
    manifest = split(
        experiment.partition,
        dataset,
        seed=seed,
        features=lambda: encode(experiment.data, dataset, progress=watch.encoded, notice=watch.notice).train,
        rows=kept,
    )
    drop = experiment.data.duplicates == "drop"
    manifest, duplicates = without_copies(dataset, manifest, drop, watch.notice)
    dataset, manifest = flipped(dataset, manifest, shift.flip, seed)
    dataset, manifest = corrupted(dataset, manifest, shift, seed)
    labels = dataset.train_labels.astype(np.int64)
    if shift.noise != "none":
        becomes = mistaken(shift.noise_map if shift.noise == "asymmetric" else "", dataset)
        labels = noisy_labels(labels, manifest.train, shift.noise, shift.noise_ratio, becomes, seed)
    return manifest, labels, dataset, duplicates


def assemble(experiment: Experiment, dataset: Dataset, watch: Watch = SILENT) -> Federation:
    """Everything a run needs, with features encoded or taken from the cache."""
    loaded = dataset
    manifest, labels, dataset, duplicates = divide(experiment, dataset, watch)
    method = from_settings(experiment.method)
    rows = open_rows(experiment.data, dataset, method, watch)
    if not len(manifest.train.rows):
        raise FedkeelError(
            "no client has a training row: check data.limit, data.duplicates, partition.validation and partition.test"
        )
    provenance = Provenance.of(experiment, loaded, (rows.encoder, rows.weights, rows.transform))
    federation = Federation(dataset, manifest, rows, labels, duplicates, provenance)
    if experiment.run.evaluate == "federated" and not len(manifest.test.rows):
        raise FedkeelError(
            "run.evaluate is 'federated', but no client has test rows of its own: set partition.test, e.g. 0.2, or "
            "partition.test_split, or give the source's test rows a client column"
        )
    admit(
        method, federation.enrolment(), dataset.class_names, np.bincount(dataset.test_labels, minlength=dataset.classes)
    )
    return federation


def admit(method: AnyMethod, enrolment: Enrolment, class_names: tuple[str, ...], tested: np.ndarray) -> None:
    """Make sure, before round 1, that the method can work on the clients that enrolled, and be tested on all classes.

    It looks at counts alone: each client's rows, and sums over all clients of everything else.
    """
    unseen = np.flatnonzero((enrolment.class_rows == 0) & (tested > 0))
    if len(unseen):  # no head could ever learn such a class
        raise FedkeelError(
            f"class {class_names[unseen[0]]!r} has {tested[unseen[0]]} test rows but no training rows at any "
            f"client ({len(unseen)} such classes): change the partition or data.limit, or leave it out of the data"
        )
    method.check(enrolment)
    phases = [phase for round in range(1, method.rounds + 1) for phase in method.plan(round)]
    if any(phase.on == "validation" for phase in phases) and not enrolment.validation_rows:
        raise FedkeelError(
            f"method {method.name} chooses models on validation rows and no client holds any: set partition.validation "
            "to the share of its rows that a client holds back, such as 0.1"
        )
