"""A site's own rows, as the contract reads them: a federation of one client. Nothing here is ever sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedkeel.core.errors import FedkeelError, shortened
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.dataset import Dataset
from fedkeel.data.duplicates import without_copies
from fedkeel.data.loading import load, read
from fedkeel.data.manifest import Manifest, carve
from fedkeel.data.ownership import Ownership
from fedkeel.data.splits.base import Pool
from fedkeel.deploy.contract import Contract
from fedkeel.deploy.settings import SiteSettings
from fedkeel.runs.federation import Federation, assemble
from fedkeel.runs.opening import Opened, open_rows
from fedkeel.runs.provenance import Provenance


def own_rows(settings: SiteSettings, watch: Watch = SILENT) -> Federation:
    """The site's rows, read, checked against the contract, and encoded into the site's own cache."""
    if settings.share:
        return _share_of_one_source(settings, watch)
    dataset = with_classes(read(settings.experiment.data, watch.notice), settings.terms, settings.name)
    return opened(settings, dataset, watch)


def with_classes(dataset: Dataset, terms: Contract, site: str) -> Dataset:
    """The dataset with the classes of the contract, whichever of them the site has."""
    place = {name: number for number, name in enumerate(terms.classes)}
    strange = [name for name in dataset.class_names if name not in place]
    if strange:
        raise FedkeelError(
            f"site {site}: {dataset.name} has the class {shortened(strange[0])!r}, which is none of the "
            f"{len(place)} of the contract ({len(strange)} such classes): rename it, leave its rows out, or agree on a "
            "contract that has it"
        )
    if dataset.kind != terms.encoder.rows:
        raise FedkeelError(
            f"site {site}: {dataset.name} holds {dataset.kind}, the contract is for {terms.encoder.rows}"
        )
    number = np.array([place[name] for name in dataset.class_names], dtype=np.int64)
    return replace(
        dataset,
        class_names=terms.classes,
        train_labels=number[dataset.train_labels],
        test_labels=number[dataset.test_labels],
        superclasses=None,
    )


def opened(settings: SiteSettings, dataset: Dataset, watch: Watch) -> Federation:
    """The rows of one site: its test rows are those that its source has, or else a share of its own."""
    exp, terms = settings.experiment, settings.terms
    if not len(dataset.train_labels):
        raise FedkeelError(f"site {settings.name}: {dataset.name} has no training rows: give it some")
    everything = Ownership.of_lists([np.arange(len(dataset.train_labels))])
    brings = bool(len(dataset.test_labels))
    split = exp.partition.model_copy(update={"test": 0.0}) if brings else exp.partition
    pool = Pool(split.kind, exp.run.seed, dataset, dataset.train_labels, None, None, None)
    train, validation, test = carve(everything, dataset.train_labels, split, (settings.name,), pool)
    manifest = Manifest(
        names=(settings.name,),
        train=train,
        validation=validation,
        test=Ownership.of_lists([np.arange(len(dataset.test_labels))]) if brings else test,
        test_rows="test" if brings else "train",
        settings={"kind": "site", "test": terms.test, "validation": terms.validation, "seed": exp.run.seed},
        data=dataset.fingerprint,
    )
    manifest, duplicates = without_copies(dataset, manifest, False, watch.notice)
    rows = open_rows(exp.data, dataset, terms.trains, watch)
    must_be_agreed(rows, settings)
    provenance = Provenance.of(exp, dataset, (rows.encoder, rows.weights, rows.transform))
    return Federation(dataset, manifest, rows, dataset.train_labels.astype(np.int64), duplicates, provenance)


def must_be_agreed(rows: Opened, member: SiteSettings) -> None:
    """The encoder is the one of the contract, to the hash of its weights."""
    agreed = member.terms.encoder
    install = f"install the encoder that was agreed on, {agreed.name}, or say in site.encoder where it is"
    for what, got, expected, remedy in (
        ("the encoder's weights have the sha256", rows.weights, agreed.weights, install),
        ("the encoder reads rows as", rows.transform, agreed.transform, install),
        ("the features' dimension is", rows.train.dim, agreed.dim, "give rows that were encoded as agreed on"),
    ):
        if got != expected:
            raise FedkeelError(
                f"site {member.name}: {what} {shortened(str(got))!r}, in the contract it is "
                f"{shortened(str(expected))!r}: {remedy}"
            )


def _share_of_one_source(settings: SiteSettings, watch: Watch) -> Federation:
    """Of a trial: the source is split as in a simulation, and this site takes the rows that are its own."""
    exp = settings.experiment
    whole = assemble(exp, load(exp.data, notice=watch.notice), watch)
    must_be_agreed(whole.rows, settings)
    split = whole.manifest
    try:
        client = split.names.index(settings.name)
    except ValueError:
        raise FedkeelError(
            f"site {settings.name} is none of the clients among which {exp.data.source} is split "
            f"({', '.join(split.names[:5])} ...): mend [share] or the name"
        ) from None

    def own(part: Ownership) -> Ownership:
        return Ownership.of_lists([part.of(client)]) if part.clients else part

    mine = replace(
        split, names=(settings.name,), train=own(split.train), validation=own(split.validation), test=own(split.test)
    )
    return replace(whole, manifest=mine)
