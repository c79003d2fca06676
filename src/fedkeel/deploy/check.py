"""``fedkeel site check``: everything that could stop a site, looked at before anything is sent. One line each."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import Up, size
from fedkeel.core.method import State, Task
from fedkeel.core.tree import select
from fedkeel.core.watch import Watch
from fedkeel.deploy.reader import reader_of
from fedkeel.deploy.rows import own_rows
from fedkeel.deploy.settings import SiteSettings, read_site
from fedkeel.deploy.worker import own_key
from fedkeel.engines.flower.contact import must_be_installed
from fedkeel.models.prepare import Preparation
from fedkeel.reporting.tables import format_bytes
from fedkeel.runs.federation import Federation
from fedkeel.runs.opening import preparation

LEAST_DISK = 2**30
CLOCK = 30.0
"""Seconds by which clocks may differ; Flower refuses signatures that are further off."""


@dataclass(frozen=True)
class Finding:
    fine: bool
    what: str

    def __str__(self) -> str:
        return f"{'ok ' if self.fine else 'NO '} {self.what}"


def findings(path: Path, insecure: bool, watch: Watch) -> Iterator[Finding]:
    """All findings, the fine ones too; what cannot be looked at without one that failed is left out."""
    try:
        must_be_installed()
        yield Finding(True, "flwr is installed, in the version that is known")
    except FedkeelError as error:
        yield Finding(False, str(error))
    try:
        site = read_site(path)
    except FedkeelError as error:
        yield Finding(False, str(error))
        return
    terms = site.terms
    yield Finding(True, f"contract {terms.sha256}, {len(terms.sites)} sites, as agreed on")
    yield from _tried(lambda: own_key(site), lambda key: f"the key is the one that the contract has for {site.name}")
    if not insecure:
        yield from _tried(
            site.authority, lambda found: f"the CA's certificate is good until {found.not_valid_after_utc:%Y-%m-%d}"
        )
    yield from _rows(site, watch)
    yield from _disk(site)
    yield from _clock(site)


def _tried(look: Callable[[], Any], told: Callable[[Any], str]) -> Iterator[Finding]:
    try:
        yield Finding(True, told(look()))
    except FedkeelError as error:
        yield Finding(False, str(error))
    except OSError as error:
        yield Finding(False, f"{error.filename or ''}: {(error.strerror or str(error)).lower()}")


def _rows(site: SiteSettings, watch: Watch) -> Iterator[Finding]:
    try:
        federation = own_rows(site, watch)
    except FedkeelError as error:
        yield Finding(False, str(error))
        return
    except OSError as error:
        yield Finding(False, f"{error.filename or 'the data'}: {(error.strerror or str(error)).lower()}")
        return
    split, terms = federation.manifest, site.terms
    parts = [len(part.rows) for part in (split.train, split.validation, split.test)]
    yield Finding(parts[0] > 0, "data read: {:,} rows to train on, {:,} held back, {:,} to test on".format(*parts))
    counts = federation.label_counts()[0]
    has = int((counts > 0).sum())
    yield Finding(True, f"classes agree with the contract: {has} of its {len(counts)} are here")
    yield Finding(True, f"encoder {terms.encoder.name}, weights {terms.encoder.weights[:16] or 'none'}, as agreed on")
    if terms.trains.reads != "inputs":
        yield Finding(True, f"features are in the cache of this site, {site.path(site.cache)}")
    yield Finding(True, leaves(site, federation, watch))


def leaves(site: SiteSettings, federation: Federation, watch: Watch) -> str:
    """What the site would send, as far as it is known before the first round."""
    terms, method = site.terms, site.terms.trains
    how: Preparation = preparation(method, site.experiment.data)
    sizes = terms.encoder.dim, len(terms.classes), len(terms.sites)
    rows = int(federation.manifest.train.sizes[0])
    state: State = method.start(Task(*sizes, terms.seed, rows, reader_of(site, watch), len(terms.sites)))
    names, total = dict[str, None](), 0
    for phase in method.plan(1):
        update = select(state.down, phase.sends) if phase.sends else {}
        names |= dict.fromkeys(update)
        total += size(Up(terms.run, 1, phase.name, site.name, 1.0, update)) if phase.sends else 0
    mean = "once the mean of its features, " if how == "centred" else ""
    shown = ", ".join(names) if len(names) < 6 else f"{', '.join(list(names)[:4])} and {len(names) - 4} more"
    return (
        f"what would leave: once how many rows of each class it has, {mean}in round 1 {format_bytes(total)} ({shown}), "
        "after each round counts of right answers by class; never a row, a label or a private parameter"
    )


def _disk(site: SiteSettings) -> Iterator[Finding]:
    for folder in {site.kept, site.path(site.cache)}:
        there = folder
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        yield Finding(free >= LEAST_DISK, f"{format_bytes(free)} free for {folder}, expected at least 1 GB")


def _clock(site: SiteSettings) -> Iterator[Finding]:
    """By what the SuperLink's machine says in its answer to nothing in particular, if it is there."""
    host, _, port = site.superlink.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 3.0):
            pass
    except (OSError, ValueError):
        yield Finding(True, f"nobody answers at {site.superlink} yet, so the clock could not be compared")
        return
    then = None
    with suppress(Exception):
        then = _date_of(site)
    if then is None:
        yield Finding(True, f"{site.superlink} answers; it does not say what time it is there")
        return
    apart = abs((datetime.now(UTC) - then).total_seconds())
    yield Finding(
        apart <= CLOCK, f"{site.superlink} answers, and its clock is {apart:.0f} s from this one's, at most 30"
    )


def _date_of(site: SiteSettings) -> datetime:
    import ssl

    import httpx

    context = ssl.create_default_context(cafile=str(site.path(site.ca)))
    answer = httpx.get(f"https://{site.superlink}/", verify=context, timeout=5.0)
    return parsedate_to_datetime(answer.headers["date"])
