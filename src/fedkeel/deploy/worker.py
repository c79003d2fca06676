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
from typing import TYPE_CHECKING

import torch

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import BadMessage, FedkeelError
from fedkeel.core.message import Down, Up, decode, encode
from fedkeel.core.method import AnyMethod, settings
from fedkeel.core.tree import Tensor, digest
from fedkeel.deploy.contract import Contract
from fedkeel.deploy.settings import SiteSettings
from fedkeel.engines.flower import enrolment
from fedkeel.engines.flower.engine import PREPARED_MEAN
from fedkeel.engines.flower.envelope import Head, unwrap, wrap
from fedkeel.engines.flower.keys import public_text, read_private, read_public
from fedkeel.engines.site import reply
from fedkeel.engines.sites import Sites
from fedkeel.engines.store import Store
from fedkeel.methods.heads.centre import Centre
from fedkeel.metrics.calibration import Reliable, Temperature
from fedkeel.metrics.tally import Tally
from fedkeel.models.prepare import prepare
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
    ) -> None:
        """``finished`` is told when the server sends the finished model."""
        self.site, self.federation, self._finished = site, federation, finished
        self.terms: Contract = site.terms
        self.key = own_key(site)
        self.store = Store(site.kept / PRIVATE, self.terms.run)
        torch.set_num_threads(self.terms.threads or os.cpu_count() or 1)

    # ---- letters

    def opened(self, data: bytes) -> Letter:
        """A letter that is to be obeyed; a BadMessage says why another one is not."""
        letter, seen = self.reopened(data), self._seen()
        if letter.head.number <= seen:
            raise BadMessage(
                f"it is request {letter.head.number}, and {seen} was here before: somebody sends it once more"
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
        write_atomically(self.site.kept / SEEN, str(letter.head.number).encode())

    def _seen(self) -> int:
        try:
            return int((self.site.kept / SEEN).read_bytes())
        except FileNotFoundError:
            return -1
        except ValueError:
            raise FedkeelError(
                f"{self.site.kept / SEEN} is damaged: without it a request that is sent once more would not be "
                "noticed; write the number of the last one into it, as the server's log has it"
            ) from None

    def answer(self, letter: Letter) -> bytes:
        """The reply, signed; what the site keeps is on disk by then."""
        return wrap(letter.head, self._body(letter), self.key)

    def _body(self, letter: Letter) -> bytes:
        head, down = letter.head, letter.down
        if head.ask == "enrol":
            return enrolment.told(self.sites(None).enrol(), self.terms.run)
        if head.ask == "finish":
            self._finished(self, down)
            rows = float(self.federation.manifest.train.sizes[0])
            return encode(Up(down.run, down.round, "finish", self.site.name, rows, {}))
        method = self.method_for(head.ask)
        plan = method.plan(head.round)
        if head.index >= len(plan):
            raise BadMessage(f"phase {head.index} of round {head.round} is none of {method.name}")
        mean = down.arrays.get(PREPARED_MEAN)
        arrays = {name: value for name, value in down.arrays.items() if name != PREPARED_MEAN}
        site = self.sites(mean).site(0)
        up = reply(method, plan[head.index], replace(down, arrays=arrays), site, self.store)
        self.store.commit()
        return encode(up)

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

    def sites(self, mean: Tensor | None) -> Sites:
        """The rows as a head sees them once the federation's mean is known; without one, as they were encoded."""
        how = preparation(self.terms.trains, self.site.experiment.data)
        if self.raw.x.tensor is None or how == "raw" or (how == "centred" and mean is None):
            return self.raw
        mark = "" if mean is None else digest({"mean": mean})
        if self._prepared is None or self._prepared[0] != mark:
            self._prepared = mark, self._prepare(mean)
        return self._prepared[1]

    _prepared: tuple[str, Sites] | None = None

    def _prepare(self, mean: Tensor | None) -> Sites:
        how = preparation(self.terms.trains, self.site.experiment.data)
        assert self.raw.x.tensor is not None
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
