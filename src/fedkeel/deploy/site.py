"""``fedkeel site``: a process that lives long, waits for letters, and works on one after the other.

A letter is on disk before the SuperLink may forget it, and what came of it before it is replied to: so whatever is
killed when, the letter is answered once the process is back, and by the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Protocol

from fedkeel.core.atomic import claim, sync_folder, write_atomically
from fedkeel.core.errors import BadMessage, FedkeelError, memory_ran_out
from fedkeel.core.watch import Watch
from fedkeel.deploy.finished import keep_finished
from fedkeel.deploy.rows import own_rows
from fedkeel.deploy.settings import SiteSettings
from fedkeel.deploy.worker import Worker, harmless, kept_folder
from fedkeel.engines.flower.contact import Unreachable, must_be_installed
from fedkeel.engines.flower.fleet import Delivery, Fleet, Unregistered

INBOX, NODE, LOCK = "inbox", "node", "lock"
POLL, PAUSE, LONGEST_PAUSE = 0.1, 0.5, 5.0
"""Seconds between two looks for a letter at least, and between two attempts to reach a SuperLink."""
REST = 2.0
"""Times as long as a look took is waited before the next: one that takes long is a SuperLink that has much to do."""


class Carrier(Protocol):
    """What brings letters and takes replies."""

    def receive(self) -> Delivery | None: ...
    def confirm(self, delivery: Delivery) -> None: ...
    def reply(self, delivery: Delivery, content: bytes) -> None: ...
    def fail(self, delivery: Delivery, reason: str) -> None: ...


def serve(site: SiteSettings, insecure: bool, watch: Watch) -> None:
    """Work until somebody stops the process."""
    must_be_installed()
    folder = kept_folder(site)
    address = site.address(insecure)
    busy = f"site {site.name} runs already, in another process with {folder}: stop that one first"
    with claim(folder, folder / LOCK, busy):
        desk = Desk(Worker(site, own_rows(site, watch), keep_finished, watch), folder / INBOX, watch.notice)
        rows = desk.worker.federation.manifest.train.sizes[0]
        watch.notice(f"site {site.name}: {rows:,} training rows, contract {site.terms.sha256[:16]}...")
        if insecure:
            watch.notice(f"site {site.name}: --insecure, whoever listens can read what is sent")
        told, pause = "", PAUSE
        while True:
            try:
                with Fleet(address, desk.worker.key, folder / NODE) as fleet:
                    watch.notice(f"site {site.name}: joined {site.superlink}, waiting for requests")
                    told, pause = "", PAUSE
                    attend(desk, fleet)
            except Unreachable as error:
                if str(error) != told:
                    watch.notice(f"site {site.name}: {error}; waiting")
                told, pause = str(error), min(LONGEST_PAUSE, 1.5 * pause)
                sleep(PAUSE if isinstance(error, Unregistered) else pause)  # the server registers keys when it starts


def attend(desk: Desk, fleet: Carrier) -> None:
    while True:
        began = monotonic()
        if not desk.once(fleet):
            sleep(until_next_look(monotonic() - began))


def until_next_look(took: float) -> float:
    return max(POLL, REST * took)


@dataclass
class Desk:
    """Where letters are kept until they are answered."""

    worker: Worker
    inbox: Path
    notice: Callable[[str], None]

    def once(self, carrier: Carrier) -> bool:
        """Answer the letter that is there from before, or the next one; false if there is none."""
        delivery = self._kept()
        if delivery is None:
            delivery = self._received(carrier)
        if delivery is None:
            return False
        self._answer(delivery, carrier)
        self.inbox.unlink(missing_ok=True)
        sync_folder(self.inbox.parent)
        return True

    def _kept(self) -> Delivery | None:
        """The letter that an earlier process did not come to answer, unless nobody waits for it any more."""
        try:
            delivery = Delivery.from_bytes(self.inbox.read_bytes())
        except FileNotFoundError:
            return None
        except BadMessage as bad:
            self.notice(f"{self.inbox}: {bad}; it is left out, and the server goes on without it")
            self.inbox.unlink()
            return None
        if time() > delivery.created + delivery.seconds:
            self.inbox.unlink()
            return None
        return delivery

    def _received(self, carrier: Carrier) -> Delivery | None:
        try:
            delivery = carrier.receive()
        except BadMessage as bad:  # the carrier has answered it
            self.notice(f"refused what came: {bad}")
            return None
        if delivery is None:
            return None
        try:
            letter = self.worker.opened(delivery.content)
        except BadMessage as bad:
            self.notice(f"refused a request: {bad}")
            carrier.confirm(delivery)
            carrier.fail(delivery, harmless(bad))
            return None
        try:
            write_atomically(self.inbox, delivery.to_bytes())
            self.worker.remember(letter)
        except OSError as error:
            self.inbox.unlink(missing_ok=True)
            self.notice(f"{error.filename or self.inbox}: {(error.strerror or str(error)).lower()}")
            carrier.confirm(delivery)
            carrier.fail(delivery, harmless(error))
            return None
        carrier.confirm(delivery)
        return delivery

    def _answer(self, delivery: Delivery, carrier: Carrier) -> None:
        try:
            letter = self.worker.reopened(delivery.content)
            self.worker.remember(letter)  # a process that was killed may not have come to it
            reply = self.worker.answer(letter)
        except Unreachable:
            raise
        except Exception as error:  # a site outlives whatever its rows or a method do
            what = memory_ran_out(error) or f"{type(error).__name__}: {error}"
            self.notice(str(error) if isinstance(error, FedkeelError) else what)
            carrier.fail(delivery, harmless(error))
            return
        carrier.reply(delivery, reply)
