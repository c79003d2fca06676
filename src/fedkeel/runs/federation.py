"""From a configuration to clients that can train: source, shift, partition, features, preparation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Method, from_settings
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.corruptions import corrupted
from fedkeel.data.dataset import Dataset
from fedkeel.data.ownership import Ownership
from fedkeel.data.partition import Manifest, split
from fedkeel.data.settings import Data
from fedkeel.data.shifts import flipped, long_tail, noisy_labels
from fedkeel.engines.base import Clients
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.transformer.base import Tuned, tokens_of
from fedkeel.models.backbone import Backbone, Inputs
from fedkeel.models.cache import Features, encoded_by
from fedkeel.models.cache import features as encode
from fedkeel.models.dual import Items, items, open_dual
from fedkeel.models.encoders import NETWORKS, encoder_name, open_encoder
from fedkeel.models.prepare import as_rows
from fedkeel.runs.config import Experiment


@dataclass(frozen=True)
class Federation:
    dataset: Dataset
    manifest: Manifest
    features: Features
    labels: np.ndarray
    """Training labels as the clients see them: with label noise, where there is any."""

    def label_counts(self) -> np.ndarray:
        return self.manifest.train.label_counts(self.labels, self.dataset.classes)

    def clients(self, seed: int) -> Clients:
        """The clients with their encoded rows, not yet prepared."""
        rows, labels = _rows(self.features.train), torch.from_numpy(self.labels)
        train, held = self.manifest.train, self.manifest.validation
        return Clients(self.manifest.names, rows, labels, train, seed, self.dataset.classes, validation=held)

    def test_rows(self) -> tuple[Tensor, Tensor, Ownership | None]:
        """(encoded rows, labels, who owns which): the clients' own test rows if they kept some, else the source's."""
        owned, encoded, labels = self.manifest.test, self.features.test, self.dataset.test_labels
        inside: Ownership | None = owned if len(owned.rows) else None
        if inside is not None and self.manifest.test_rows == "train":
            encoded, labels = self.features.train[owned.rows], self.dataset.train_labels[owned.rows]
            inside = Ownership(owned.offsets, np.arange(len(owned.rows)))
        return _rows(encoded), torch.from_numpy(labels.astype(np.int64)), inside


def divide(experiment: Experiment, dataset: Dataset, watch: Watch = SILENT) -> tuple[Manifest, np.ndarray, Dataset]:
    """The split before anything is trained: (who owns which rows, the labels clients train on, the shifted data)."""
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
    dataset, manifest = flipped(dataset, manifest, shift.flip, seed)
    dataset, manifest = corrupted(dataset, manifest, shift, seed)
    labels = dataset.train_labels.astype(np.int64)
    if shift.noise != "none":
        source = dataset.name
        labels = noisy_labels(labels, manifest.train, shift.noise, shift.noise_ratio, dataset.classes, source, seed)
    return manifest, labels, dataset


def assemble(experiment: Experiment, dataset: Dataset, watch: Watch = SILENT) -> Federation:
    """Everything a run needs, with features encoded or taken from the cache."""
    manifest, labels, dataset = divide(experiment, dataset, watch)
    method = from_settings(experiment.method)
    if method.reads == "inputs":
        encoded = to_be_read(experiment, dataset, method)
    elif isinstance(method, DualTuned):
        encoded = in_two_towers(experiment.data, dataset, method, watch)
    else:
        _must_be_trained(experiment.data, dataset)
        encoded = encode(experiment.data, dataset, progress=watch.encoded, notice=watch.notice)
    if not len(manifest.train.rows):
        raise FedkeelError("no client has a training row: check data.limit, partition.validation and partition.test")
    federation = Federation(dataset, manifest, encoded, labels)
    counts = federation.label_counts()
    check_seen(counts, dataset)
    method.check(counts, manifest.names)
    check_held_back(method, manifest)
    return federation


def _must_be_trained(data: Data, dataset: Dataset) -> None:
    """A head on features that nobody ever trained learns nothing worth having, unless that was asked for."""
    if (name := encoder_name(data, dataset)) in NETWORKS:
        raise FedkeelError(
            f"encoder {name} has no trained weights, so a head alone would learn little: train it as well with "
            "method.name=fedavg method.tune=network, or set data.encoder to one that is trained, or to pixels"
        )


def to_be_read(experiment: Experiment, dataset: Dataset, method: Method) -> Features:
    """In the place of features the rows themselves, for a method that encodes them in every step."""
    backbone = Backbone.of(open_encoder(experiment.data, dataset, trains=True))
    if isinstance(method, Tuned):
        backbone.must_be_transformer()
    train: Any = backbone.inputs(dataset.train, tokens_of(method))
    test: Any = backbone.inputs(dataset.test, tokens_of(method))
    return Features(train, test, backbone.encoder, backbone.weights, backbone.transform, where="read when needed")


def in_two_towers(data: Data, dataset: Dataset, method: DualTuned, watch: Watch) -> Features:
    """In the place of features the items of a dual encoder, with all that the method needs of them."""
    name = encoder_name(data, dataset)
    dual = open_dual(name, data, dataset.kind, dataset.class_names, dataset.name, method.template, method.scale)
    item = open_encoder(data, dataset)
    dual = replace(dual, upper=method.module.upper(item))
    method.module.fresh(dual, 0)  # a start that cannot be made is told before a run begins
    told: dict[str, Any] = {"progress": watch.encoded, "notice": watch.notice}
    arrays = {
        array: encoded_by(encoder, data, dataset, **told) for array, encoder in method.module.encoders(item).items()
    }
    if "features" not in arrays:
        arrays["features"] = encode(data, dataset, **told)
    train: Any = items(dual, **{array: made.train for array, made in arrays.items()})
    test: Any = items(dual, **{array: made.test for array, made in arrays.items()})
    return Features(train, test, item.name, item.weights, item.transform, where="with a dual encoder")


def _rows(features: Any) -> Any:
    return features if isinstance(features, Inputs | Items) else as_rows(features)


def check_held_back(method: Method, manifest: Manifest) -> None:
    """A method that measures on validation rows needs some; better said now than in its last rounds."""
    phases = [phase for round in range(1, method.rounds + 1) for phase in method.plan(round)]
    if any(phase.on == "validation" for phase in phases) and not len(manifest.validation.rows):
        raise FedkeelError(
            f"method {method.name} chooses models on validation rows and no client holds any: set partition.validation "
            "to the share of its rows that a client holds back, such as 0.1"
        )


def check_seen(label_counts: np.ndarray, dataset: Dataset) -> None:
    """A class that is tested must be held by a client: no head could ever learn it."""
    tested = np.bincount(dataset.test_labels, minlength=dataset.classes)
    unseen = np.flatnonzero((label_counts.sum(0) == 0) & (tested > 0))
    if len(unseen):
        raise FedkeelError(
            f"class {dataset.class_names[unseen[0]]!r} has {tested[unseen[0]]} test rows but no training rows at any "
            f"client ({len(unseen)} such classes): change the partition or data.limit, or leave it out of the data"
        )
