"""A client's half: its rows and labels, its work on one request, and its answer. No server is needed to read it.

``work`` is all that a client does in an exchange, the same at a real site and for each client of a simulation. How it
trains is handed in: ``reference`` is autograd and PyTorch's own optimizers, slow and right by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any, Generic

import numpy as np
import torch

from fedkeel.core.errors import BadMessage, FedkeelError, MethodFailed
from fedkeel.core.message import Down, Up, decode, encode
from fedkeel.core.method import PER_CLIENT, AnyMethod, Batch, Method, Phase, Visit, X, exchange_number, outgoing
from fedkeel.core.pulse import beat
from fedkeel.core.rows import Rows
from fedkeel.core.tree import STATS, Tensor, Tree, select
from fedkeel.engines.base import schedule
from fedkeel.engines.store import Store

BACK = 2
"""The way back through a network takes as long as two ways through it."""


@dataclass(frozen=True)
class Site(Generic[X]):
    """What one client has."""

    name: str
    seed: int
    classes: int
    x: Rows[X]
    y: Tensor
    held_back: Mapping[str, tuple[Rows[X], Tensor]] = field(default_factory=dict)
    """Rows and labels that training never sees, "validation" and "test"."""

    @cached_property
    def counts(self) -> Tensor:
        """How many training rows of each class it has."""
        return torch.bincount(self.y, minlength=self.classes).float()

    def rows(self, on: str) -> tuple[Rows[X], Tensor]:
        if on == "train":
            return self.x, self.y
        none = torch.empty(0, dtype=torch.int64)
        return self.held_back.get(on) or (self.x.pick(none), self.y[none])


Train = Callable[["Blame", AnyMethod, Visit, Site[Any]], tuple[Tree, Tree]]
"""From ``begin`` to ``end``: (what the client sends, what it keeps)."""


def answer(method: Method[X], phase: Phase, request: bytes, site: Site[X], store: Store) -> bytes:
    """The bytes of a client's reply to the bytes of a request; what it keeps is in its store before it replies."""
    down = decode(request)
    if not isinstance(down, Down):
        raise BadMessage(f"client {site.name} was asked for {phase.name}, expected a request for it, got an update")
    return encode(reply(method, phase, down, site, store))


def reply(method: Method[X], phase: Phase, down: Down, site: Site[X], store: Store) -> Up:
    """What a client sends in answer to a request; what it keeps is in its store."""
    if down.phase != phase.name:
        raise BadMessage(f"client {site.name} was asked for {phase.name}, expected a request for it, got another one")
    visit = arrive(method, phase, down, site, store)
    sends, kept = work(method, visit, site)
    if kept and not phase.looks:
        store.write(site.name, exchange_number(method, down.round, phase), kept)
    return Up(down.run, down.round, phase.name, site.name, float(len(site.y)), sends)


def arrive(method: Method[X], phase: Phase, down: Down, site: Site[X], store: Store) -> Visit:
    """What the client knows once a request is there."""
    per_client = select(down.arrays, (PER_CLIENT,))
    came = {name: value for name, value in down.arrays.items() if name not in per_client}
    mine = store.read(site.name, down.accepted)
    if mine is None:
        with Blame(method, phase, down.round, site.name) as blame:
            blame.stage = "private"
            mine = method.private(came)
    visible = came if phase.gets is None else select(came, phase.gets)
    return Visit(visible, mine, phase, down.round, site.counts, per_client)


def work(method: Method[X], visit: Visit, site: Site[X], train: Train | None = None) -> tuple[Tree, Tree]:
    """What a client does in a phase: (what it sends, what it keeps)."""
    with Blame(method, visit.phase, visit.round, site.name) as blame:
        if visit.phase.epochs:
            sends, kept = (train or reference)(blame, method, visit, site)
        else:
            blame.stage = "measure"
            rows, labels = site.rows(visit.phase.on)
            sends, kept = method.measure(rows.read(), labels, visit)
    return outgoing(sends, visit), kept


def reference(blame: Blame, method: Method[X], visit: Visit, site: Site[X]) -> tuple[Tree, Tree]:
    """One client's training with PyTorch's optimizers."""

    def optimizer(params: list[Tensor]) -> Callable[[list[Tensor]], None]:
        torch_s = visit.phase.optim.torch(params)

        def step(grads: list[Tensor]) -> None:
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            torch_s.step()

        return step

    return trained(blame, method, visit, site, optimizer)


def own_optimizer(blame: Blame, method: Method[X], visit: Visit, site: Site[X]) -> tuple[Tree, Tree]:
    """The same with fedkeel's optimizers, without PyTorch's bookkeeping."""

    def optimizer(params: list[Tensor]) -> Callable[[list[Tensor]], None]:
        slots, count = visit.phase.optim.slots(params), 0

        def step(grads: list[Tensor]) -> None:
            nonlocal count
            count += 1
            with torch.no_grad():
                visit.phase.optim.step_plain(params, grads, slots, count)

        return step

    return trained(blame, method, visit, site, optimizer)


def trained(
    blame: Blame,
    method: Method[X],
    visit: Visit,
    site: Site[X],
    optimizer: Callable[[list[Tensor]], Callable[[list[Tensor]], None]],
) -> tuple[Tree, Tree]:
    """Every step of a phase on one client."""
    blame.stage = "begin"
    params = {name: value.clone() for name, value in method.begin(visit).items()}
    learnt = [name for name in params if not name.startswith(STATS)]
    step = optimizer([params[name].requires_grad_() for name in learnt])
    blame.stage = "once"
    x = method.once(site.x.following(len(learnt) < len(params)).read(), visit)
    steps = 0
    for picked, u in schedule(site.seed, site.name, len(site.y), visit.round, visit.phase):
        batch = as_batch(x, site.y, picked, u)
        blame.stage = "loss"
        grads = method.gradients(params, batch, visit)
        blame.stage = "adjust"
        grads = method.adjust(grads, {name: params[name].detach() for name in grads}, batch, visit)
        step([grads[name] for name in learnt])
        steps += 1
        beat(0 if torch.is_tensor(x) else BACK * len(picked))
    blame.stage = "end"
    after = {name: value.detach() for name, value in params.items()}
    return method.end(after, torch.tensor(float(steps)), visit)


def as_batch(x: X, y: Tensor, at: np.ndarray, u: np.ndarray) -> Batch[X]:
    index = torch.from_numpy(at)
    return Batch(x[index], y[index], torch.full((len(at),), 1.0 / len(at)), torch.from_numpy(u))


class Blame:
    """Names method, stage, client and round in what goes wrong inside of somebody's method."""

    def __init__(self, method: AnyMethod, phase: Phase, round: int, client: str) -> None:
        self.stage = "begin"
        self._who = method.name, phase.name, round, client

    def __enter__(self) -> Blame:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, FedkeelError | OSError):
            return
        method, phase, round, client = self._who
        last = extract_tb(trace)[-1]
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise MethodFailed(
            f"method {method} failed in {self.stage} of phase {phase!r}, round {round}, client {client}: "
            f"{what.splitlines()[0]} ({Path(last.filename).name}:{last.lineno})"
        ) from error
