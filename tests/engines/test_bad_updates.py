"""Every method against every bad update: refused by client, array and reason, and no trace of it in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from contract.methods import VARIANTS, federation_of
from fedkeel.core.message import Up, decode, encode
from fedkeel.core.method import Method, Phase, State
from fedkeel.core.roster import Roster
from fedkeel.core.tree import Tensor, Tree, digest
from fedkeel.engines.base import Exchange
from fedkeel.engines.server import Server
from fedkeel.engines.wire import WireEngine

NAN = float("nan")
Spoil = Callable[[Tree], tuple[Tree, str]]
"""From what a client sends to what comes in its place, and what must be said of it."""


def first(arrays: Tree, fits: Callable[[Tensor], bool]) -> str:
    return next(name for name, array in arrays.items() if fits(array))


def with_value(value: float) -> Spoil:
    def spoilt(arrays: Tree) -> tuple[Tree, str]:
        name = first(arrays, lambda array: array.is_floating_point() and array.numel() > 0)
        array = arrays[name].clone()
        array.view(-1)[0] = value
        return {**arrays, name: array}, f"{name} holds {'NaN' if value != value else 'Inf'}"

    return spoilt


def other_shape(arrays: Tree) -> tuple[Tree, str]:
    name = next(iter(arrays))
    return {**arrays, name: torch.stack([arrays[name]] * 2)}, f"{name} has shape (2,"


def broadcast(arrays: Tree) -> tuple[Tree, str]:
    name = first(arrays, lambda array: array.shape != (1,))
    return {**arrays, name: arrays[name].reshape(-1)[:1].clone()}, f"{name} has shape (1,), expected"


def other_dtype(arrays: Tree) -> tuple[Tree, str]:
    name = next(iter(arrays))
    other = torch.float64 if arrays[name].dtype == torch.float32 else torch.float32
    return {**arrays, name: arrays[name].to(other)}, f"{name} has dtype {str(other)[6:]}, expected"


def missing(arrays: Tree) -> tuple[Tree, str]:
    name = next(iter(arrays))
    return {key: array for key, array in arrays.items() if key != name}, f"{name} is missing"


def extra(arrays: Tree) -> tuple[Tree, str]:
    return {**arrays, "z.extra": torch.ones(1)}, "z.extra was not asked for"


def long(arrays: Tree) -> tuple[Tree, str]:
    """Of the length that a billion has in each of the numbers."""
    return {
        name: torch.full_like(array, 1e9) if array.is_floating_point() else array for name, array in arrays.items()
    }, "the update's norm is"


SPOILT: dict[str, Spoil] = {
    "NaN": with_value(NAN),
    "Inf": with_value(float("inf")),
    "wrong shape": other_shape,
    "(1,) array": broadcast,
    "wrong dtype": other_dtype,
    "missing": missing,
    "extra": extra,
    "norm 1e9": long,
}
WEIGHTS = {"n = 0": 0.0, "n < 0": -3.0, "n = 1e12": 1e12, "NaN weight": NAN}


def bad_ones(sound: Up) -> Iterator[tuple[str, Up, str]]:
    for fault, spoil in SPOILT.items():
        arrays, reason = spoil(sound.arrays)
        yield fault, replace(sound, arrays=arrays), reason
    for fault, weight in WEIGHTS.items():
        yield fault, replace(sound, weight=weight), f"weight is {weight:g}, but the client enrolled with"


@dataclass(frozen=True)
class Recorded:
    """An exchange that went well, whose replies can be given to a server again."""

    roster: Roster
    method: Method
    state: State
    phase: Phase
    cohort: Sequence[int]
    replies: Mapping[int, bytes]

    def again(self, changed: Mapping[int, bytes], cohort: Sequence[int]) -> tuple[Exchange, str]:
        """What comes of it with some replies in the place of others, and the digest of the model after it."""
        accepted = torch.full((len(self.roster.names),), -1).numpy()
        server = Server(self.roster, accepted, self.method, self.state, self.phase, 1)
        for client in cohort:
            server.receive(client, {**self.replies, **changed}[client])
        exchange = server.outcome(cohort)
        assert exchange.update is not None
        merged = self.method.merge(self.state, exchange.update, self.phase)
        return exchange, digest({**merged.shared, **merged.server, **merged.per_client})


def recorded(method: Method) -> Iterator[Recorded]:
    """The exchanges of a first round from which something is sent."""
    who, task = federation_of(method)
    replies: dict[int, bytes] = {}

    def keep(client: str, reply: bytes) -> bytes:
        replies[list(who.names).index(client)] = reply
        return reply

    engine, state = WireEngine(who, transport=keep), method.start(task)
    for phase in method.plan(1):
        replies.clear()
        cohort = engine.roster.able
        exchange = engine.exchange(method, state, phase, 1, cohort)
        if phase.sends:
            yield Recorded(engine.roster, method, state, phase, cohort, dict(replies))
        if exchange.update is not None:
            state = method.merge(state, exchange.update, phase)


@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_bad_update_is_named_and_leaves_no_trace(method: Method) -> None:
    for one in recorded(method):
        bad = one.cohort[1]
        sound, name = decode(one.replies[bad]), one.roster.names[bad]
        assert isinstance(sound, Up)
        _, without = one.again({}, [client for client in one.cohort if client != bad])
        for fault, update, reason in bad_ones(sound):
            exchange, model = one.again({bad: encode(update)}, one.cohort)
            refused = [(refusal.client, reason in refusal.reason) for refusal in exchange.refused]
            assert refused == [(name, True)], (fault, one.phase.name, exchange.refused)
            assert model == without, (fault, one.phase.name)
