"""Every bad update is refused by client and reason, and the model is bit-equal to a run without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from federations import TASK, clients
from fedkeel.core.message import Down, Up, decode, encode
from fedkeel.core.method import METHODS, Batch, Phase, Visit
from fedkeel.core.tree import digest
from fedkeel.engines.gate import refused_in_stack
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine

NAN, INF = float("nan"), float("inf")


def spoilt(up: Up, name: str, change) -> Up:  # type: ignore[no-untyped-def]
    arrays = dict(up.arrays)
    arrays[name] = change(arrays[name])
    return replace(up, arrays=arrays)


def with_first(value: float):  # type: ignore[no-untyped-def]
    def change(array: torch.Tensor) -> torch.Tensor:
        array = array.clone()
        array.view(-1)[0] = value
        return array

    return change


FAULTS = {
    "NaN": (lambda up: spoilt(up, "head.weight", with_first(NAN)), "head.weight holds NaN"),
    "Inf": (lambda up: spoilt(up, "head.bias", with_first(-INF)), "head.bias holds Inf"),
    "huge": (lambda up: spoilt(up, "head.weight", with_first(1e9)), "norm is 1e+09"),
    "wrong shape": (lambda up: spoilt(up, "head.weight", lambda a: a.T), "has shape (6, 4), expected (4, 6)"),
    "(1,) array": (lambda up: spoilt(up, "head.bias", lambda a: a[:1]), "has shape (1,), expected (4,)"),
    "wrong dtype": (lambda up: spoilt(up, "head.bias", lambda a: a.double()), "has dtype float64, expected float32"),
    "missing": (lambda up: replace(up, arrays={"head.bias": up.arrays["head.bias"]}), "head.weight is missing"),
    "extra": (lambda up: replace(up, arrays={**up.arrays, "x": torch.ones(1)}), "x was not asked for"),
    "weight 0": (lambda up: replace(up, weight=0.0), "weight is 0.0"),
    "weight < 0": (lambda up: replace(up, weight=-8.0), "weight is -8.0"),
    "weight NaN": (lambda up: replace(up, weight=NAN), "weight is nan"),
    "weight Inf": (lambda up: replace(up, weight=INF), "weight is inf"),
    "absurd weight": (lambda up: replace(up, weight=1e12), "weight is 1e+12, but the client enrolled with 8 rows"),
    "another client": (lambda up: replace(up, client="site-0"), "the reply is for site-0"),
    "another round": (lambda up: replace(up, round=7), "round 7"),
    "another phase": (lambda up: replace(up, phase="stage-9"), "stage-9"),
    "not an update": (lambda up: Down(up.round, up.phase, up.arrays), "not an update"),
}


@pytest.mark.parametrize("method", ["fedavg", "ova-lp"])
@pytest.mark.parametrize(("spoil", "reason"), FAULTS.values(), ids=FAULTS.keys())
def test_a_bad_update_is_named_and_leaves_no_trace(spoil, reason: str, method: str) -> None:  # type: ignore[no-untyped-def]
    how = METHODS[method](batch=8, bias=True)
    state, phase = how.start(TASK), how.plan(1)[0]

    def transport(client: str, reply: bytes) -> bytes:
        return encode(spoil(decode(reply))) if client == "site-1" else reply

    faulty = WireEngine(clients(), transport).exchange(how, state, phase, 1, [0, 1, 3, 6])
    without = WireEngine(clients()).exchange(how, state, phase, 1, [0, 3, 6])
    assert [(refusal.client, reason in refusal.reason) for refusal in faulty.refused] == [("site-1", True)]
    assert faulty.update is not None
    assert without.update is not None
    assert digest(faulty.update.mean) == digest(without.update.mean)


@pytest.mark.parametrize("reply", [b"", b"garbage", b"\x80\x04\x95pickle"])
def test_bytes_that_are_no_message(reply: bytes) -> None:
    how = METHODS["fedavg"](batch=8, bias=True)
    engine = WireEngine(clients(), lambda client, data: reply if client == "site-3" else data)
    exchange = engine.exchange(how, how.start(TASK), how.plan(1)[0], 1, [0, 3])
    assert [refusal.client for refusal in exchange.refused] == ["site-3"]


def test_everybody_refused_changes_nothing() -> None:
    how = METHODS["fedavg"](batch=8, bias=True)
    engine = WireEngine(clients(), lambda client, data: b"")
    exchange = engine.exchange(how, how.start(TASK), how.plan(1)[0], 1, [0, 3])
    assert exchange.update is None
    assert exchange.accepted == 0


class Diverging(METHODS["fedavg"]):  # type: ignore[misc, name-defined]
    """A client whose rows are marked computes an update that is not finite."""

    def residual(self, logits: torch.Tensor, batch: Batch, visit: Visit) -> torch.Tensor:
        bad = (batch.x[..., 0] > 1e6).any(-1)[..., None, None]
        return super().residual(logits, batch, visit) + torch.where(bad, NAN, 0.0)


def test_the_fast_engine_refuses_too_and_leaves_no_trace() -> None:
    """The update of site-1 diverges; the mean is bit-equal to that of a run in which its reply never counted."""
    how, marked = Diverging(batch=8, bias=True), clients()
    marked.x[marked.rows(1)] = 1e7
    state, phase = how.start(TASK), how.plan(1)[0]
    faulty = LocalEngine(marked).exchange(how, state, phase, 1, [0, 1, 3, 6])
    assert [(refusal.client, refusal.reason) for refusal in faulty.refused] == [("site-1", "head.weight holds NaN")]
    assert faulty.accepted == 3
    without = LocalEngine(clients()).exchange(METHODS["fedavg"](batch=8, bias=True), state, phase, 1, [0, 3, 6])
    assert faulty.update is not None
    assert without.update is not None
    assert digest(faulty.update.mean) == digest(without.update.mean)


def test_reasons_in_a_stack() -> None:
    updates = {"a": torch.tensor([[1.0], [NAN], [INF], [3e6], [1e30]]), "b": torch.zeros(5, 2)}
    reasons = refused_in_stack(updates, Phase("train"))
    assert list(reasons) == [1, 2, 3, 4]
    assert reasons[1] == "a holds NaN"
    assert reasons[2] == "a holds Inf"
    assert reasons[3] == "the update's norm is 3e+06, the limit is 1e+06"
