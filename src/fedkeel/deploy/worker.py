"""What a site does with a letter from its server: verify it, do what the contract allows, and reply with an ``Up``.

A letter is obeyed if the server's key signed it, it names this contract and this site, and it is newer than all before.
Which method it is about is never in the letter: it is the one of the contract. What goes wrong is told in the site's
own log; the server hears that it did, and nothing that could hold a value of a row.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from fedkeel.core.errors import BadMessage, FedkeelError
from fedkeel.core.message import Down, Up, decode, encode
from fedkeel.core.method import AnyMethod, Phase, settings
from fedkeel.core.pulse import heard
from fedkeel.core.sealed import Unsound, read_number, write_number
from fedkeel.core.tree import Tensor, digest
from fedkeel.core.watch import SILENT, Progress, Watch
from fedkeel.deploy.contract import Contract
from fedkeel.deploy.settings import SiteSettings
from fedkeel.engines.base import visited
from fedkeel.engines.flower import enrolment
from fedkeel.engines.flower.engine import PREPARED_MEAN
from fedkeel.engines.flower.envelope import Head, unwrap, wrap
from fedkeel.engines.flower.keys import public_text, read_private, read_public
from fedkeel.engines.site import BACK, Site, reply
from fedkeel.engines.sites import Sites
from fedkeel.engines.store import Store
from fedkeel.methods.heads.centre import Centre
from fedkeel.metrics.calibration import Reliable, Temperature
from fedkeel.metrics.tally import Tally
from fedkeel.models.prepare import prepare
from fedkeel.reporting.tables import format_bytes, format_seconds
from fedkeel.rows.features import Features
from fedkeel.runs.federation import Federation
from fedkeel.runs.opening import preparation

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PRIVATE, SEEN = "private.sqlite", "seen"


@dataclass(frozen=True)
class Letter:
    """A request that was verified."""

    head: Head
    down: Down


class Worker:
    """One site at work."""

    def __init__(
        self,
        site: SiteSettings,
        federation: Federation,
        finished: Callable[[Worker, Down], None] = lambda worker, down: None,
        watch: Watch = SILENT,
    ) -> None:
        """``finished`` is told when the server sends the finished model, ``watch`` of everything that leaves."""
        self.site, self.federation, self._finished, self._watch = site, federation, finished, watch
        self.terms: Contract = site.terms
        self.key = own_key(site)
        self.store = Store(site.kept / PRIVATE, self.terms.run)
        self._seen = self._last_seen()
        torch.set_num_threads(self.terms.threads or os.cpu_count() or 1)

    # ---- letters

    def opened(self, data: bytes) -> Letter:
        """A letter that is to be obeyed; a BadMessage says why another one is not."""
        letter = self.reopened(data)
        if letter.head.number <= self._seen:
            raise BadMessage(
                f"it is request {letter.head.number}, and {self._seen} was here before: somebody sends it once more"
            )
        return letter

    def reopened(self, data: bytes) -> Letter:
        """One that lay in the inbox, and was seen before."""
        head, body = unwrap(data, read_public(self.terms.server, "the contract's server"), "the contract's server")
        if head.contract != self.terms.sha256:
            raise BadMessage(f"it is about another contract, {head.contract[:16]}...")
        if head.site != self.site.name:
            raise BadMessage(f"it is for {head.site!r}, this is {self.site.name!r}")
        down = decode(body)
        if not isinstance(down, Down) or (down.run, down.round) != (self.terms.run, head.round):
            raise BadMessage("it holds another request than it says")
        return Letter(head, down)

    def remember(self, letter: Letter) -> None:
        """A letter is not obeyed a second time; one that lay in the inbox may have been remembered before."""
        if letter.head.number > self._seen:
            write_number(self.site.kept / SEEN, letter.head.number)
            self._seen = letter.head.number

    def _last_seen(self) -> int:
        path = self.site.kept / SEEN
        try:
            found = read_number(path)
        except Unsound as why:
            raise FedkeelError(
                f"{path} is damaged ({why}): put it back from a copy, or delete it; then a request that somebody has "
                "recorded could be obeyed once more, until the next one comes"
            ) from None
        return -1 if found is None else found

    def answer(self, letter: Letter) -> bytes:
        """The reply, signed; what the site keeps is on disk by then."""
        head, began = letter.head, monotonic()
        with heard(Progress(self._rows_to_read(head), self._watch.share).add):
            reply = wrap(head, self._body(letter), self.key)
        what = f"{head.ask}, round {head.round}" if head.round else head.ask
        took = format_seconds(monotonic() - began)
        self._watch.notice(f"site {self.site.name}: {what}: {format_bytes(len(reply))} in reply, after {took}")
        return reply

    def _body(self, letter: Letter) -> bytes:
        head, down = letter.head, letter.down
        if head.ask == "enrol":
            return enrolment.told(self.raw.enrol(), self.terms.run)
        if head.ask == "finish":
            self._finished(self, down)
            rows = float(self.federation.manifest.train.sizes[0])
            return encode(Up(down.run, down.round, "finish", self.site.name, rows, {}))
        mean = down.arrays.get(PREPARED_MEAN)
        arrays = {name: value for name, value in down.arrays.items() if name != PREPARED_MEAN}
        up = reply(*self._phase(head), replace(down, arrays=arrays), self.rows(mean), self.store)
        self.store.commit()
        return encode(up)

    def _phase(self, head: Head) -> tuple[AnyMethod, Phase]:
        method = self.method_for(head.ask)
        plan = method.plan(head.round)
        if head.index >= len(plan):
            raise BadMessage(f"phase {head.index} of round {head.round} is none of {method.name}")
        return method, plan[head.index]

    def _rows_to_read(self, head: Head) -> int:
        """How many rows a network reads in training, and how many times back: what the pulse adds up to."""
        if head.ask in ("enrol", "finish"):
            return 0
        (_, phase), size = self._phase(head), self.raw.owned.sizes
        return (1 + BACK) * phase.epochs * int(visited(size, phase)[0])

    def method_for(self, ask: str) -> AnyMethod:
        """All that a site can be asked for."""
        of = settings(self.terms.trains)
        if ask == "train":
            return self.terms.trains
        if ask == "centre":
            return Centre()
        if ask == "tally":
            return Tally(of=of, classes=len(self.terms.classes))
        if ask == "temperature":
            return Temperature(of=of)
        if ask == "reliability":
            return Reliable(of=of)
        raise BadMessage(f"nobody may ask for {ask!r}")

    # ---- rows

    @cached_property
    def raw(self) -> Sites:
        return self.federation.sites(self.terms.seed, self.store)

    def rows(self, mean: Tensor | None) -> Site[Any]:
        """The rows as a head sees them once the federation's mean is known; without one, as they were encoded."""
        mark = "" if mean is None else digest({"mean": mean})
        if self._made is None or self._made[0] != mark:
            self._made = mark, self._prepared(mean).site(0)
        return self._made[1]

    _made: tuple[str, Site[Any]] | None = None

    def _prepared(self, mean: Tensor | None) -> Sites:
        how = preparation(self.terms.trains, self.site.experiment.data)
        if self.raw.x.tensor is None or how == "raw" or (how == "centred" and mean is None):
            return self.raw
        x, test = Features(prepare(self.raw.x.tensor.clone(), how, mean)), self.raw.test
        if test is not None and test.x.tensor is not None:
            test = test._replace(x=Features(prepare(test.x.tensor.clone(), how, mean)))
        return replace(self.raw, x=x, test=test)

    def close(self) -> None:
        self.store.close()


def own_key(site: SiteSettings) -> EllipticCurvePrivateKey:
    """The site's key, which must be the one that the contract has under its name."""
    key = read_private(site.path(site.key))
    agreed = " ".join(site.terms.sites[site.name].split()[:2])
    if public_text(key.public_key()) != agreed:
        raise FedkeelError(
            f"{site.path(site.key)} is not the key that the contract has for {site.name}: use the right one, or agree "
            "on a contract with this one"
        )
    return key


def harmless(error: BaseException) -> str:
    """What a server may know of an error at a site."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the site's disk is full"
    if isinstance(error, MemoryError):
        return "the site has too little memory"
    if isinstance(error, BadMessage):
        return f"the site refuses the request: {error}"
    return f"the site could not do it ({type(error).__name__}), its own log says why"


def kept_folder(site: SiteSettings) -> Path:
    folder = site.kept
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder
