"""Every bad update is refused by client and reason, on every engine: the model is bit-equal to a run without it.

What a client may do wrong by itself is spoilt in its method, so that it is the same on both engines; what only a
message can have wrong is spoilt on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backbones import reading_images
from federations import CLASSES, DIM, TASK, clients
from fedkeel.core.message import NEVER, Down, Up, decode, encode
from fedkeel.core.method import METHODS, Batch, Method, State, Task, Visit
from fedkeel.core.rng import generator
from fedkeel.core.roster import Roster
from fedkeel.core.tree import Tree, digest
from fedkeel.engines.base import Exchange
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.server import Server
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.ridge import Ridge
from fedkeel.rows.features import Features

NAN, INF = float("nan"), float("inf")
BOTH = pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
COHORTS = pytest.mark.parametrize("cohort", [[0, 1, 3, 6], [0, 1, 3, 4, 5, 6]], ids=["few", "many"])
BAD, BAD_ROWS = 1, 8
"""The client that does wrong is told by its rows: nobody else has as many."""

Spoil = Callable[[Tree], Tree]


def with_first(name: str, value: float) -> Spoil:
    def change(arrays: Tree) -> Tree:
        array = arrays[name].clone()
        array.view(-1)[0] = value
        return {**arrays, name: array}

    return change


def changed(name: str, how: Callable[[Tensor], Tensor]) -> Spoil:
    return lambda arrays: {**arrays, name: how(arrays[name])}


def without(name: str) -> Spoil:
    return lambda arrays: {key: value for key, value in arrays.items() if key != name}


def wider(array: Tensor) -> Tensor:
    return torch.cat([array, array], -1)


FAULTS: dict[str, tuple[Spoil, str]] = {
    "NaN": (with_first("head.weight", NAN), "head.weight holds NaN"),
    "Inf": (with_first("head.bias", -INF), "head.bias holds Inf"),
    "huge": (with_first("head.weight", 1e9), "1000 times the cohort's median"),
    "huge beyond squares": (with_first("head.weight", 1e30), "norm overflows"),
    "wrong shape": (changed("head.weight", wider), "head.weight has shape (4, {twice}), expected (4, {dim})"),
    "turned": (changed("head.weight", lambda array: array.mT), "head.weight has shape ({dim}, 4), expected (4, {dim})"),
    "one more axis": (changed("head.bias", lambda array: array[None]), "head.bias has shape (1, 4), expected (4,)"),
    "(1,) array": (changed("head.bias", lambda array: array[:1]), "head.bias has shape (1,), expected (4,)"),
    "no axis": (changed("head.bias", lambda array: array.sum()), "head.bias has shape (), expected (4,)"),
    "wrong dtype": (changed("head.bias", Tensor.double), "head.bias has dtype float64, expected float32"),
    "half a dtype": (changed("head.weight", Tensor.half), "head.weight has dtype float16, expected float32"),
    "missing": (without("head.weight"), "head.weight is missing"),
    "extra": (lambda arrays: {**arrays, "head.x": torch.ones(1)}, "head.x was not asked for"),
    "nothing": (lambda arrays: {}, " is missing"),
}
every_fault = pytest.mark.parametrize("fault", FAULTS)


def refused(exchange: Exchange) -> dict[str, str]:
    return {one.client: one.reason for one in exchange.refused}


def reason_of(fault: str, dim: int) -> str:
    return FAULTS[fault][1].format(dim=dim, twice=2 * dim)


def same_as_without(faulty: Exchange, honest: Exchange, reason: str) -> None:
    """Only the bad client is refused, for that reason, and nothing of it is in the mean."""
    assert [(client, reason in why) for client, why in refused(faulty).items()] == [("site-1", True)], refused(faulty)
    assert not honest.refused
    assert faulty.accepted == honest.accepted
    assert faulty.update is not None
    assert honest.update is not None
    assert faulty.update.clients.tolist() == honest.update.clients.tolist()
    assert digest(faulty.update.mean) == digest(honest.update.mean)


# ---- the method itself does wrong: the same on both engines


class Spoilt(FedAvg):
    """A network whose clients work one by one: one of them sends something else."""

    fault: str

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().end(params, steps, visit)
        return FAULTS[self.fault][0](sends) if visit.counts.sum() == BAD_ROWS else sends, mine


@BOTH
@COHORTS
@every_fault
def test_a_bad_update_is_named_and_leaves_no_trace_whatever_the_engine(
    fault: str, cohort: list[int], engine: type
) -> None:
    settings: dict[str, Any] = {"tune": "network", "batch": 8, "epochs": 1, "lr": 0.01}
    spoilt, honest = Spoilt(**settings, fault=fault), FedAvg(**settings)
    who, task = reading_images(clients(), CLASSES)
    state, phase = honest.start(task), honest.plan(1)[0]
    faulty = engine(who).exchange(spoilt, state, phase, 1, cohort)
    others = engine(who).exchange(honest, state, phase, 1, [client for client in cohort if client != BAD])
    same_as_without(faulty, others, reason_of(fault, task.dim))


class SpoiltStack(FedAvg):
    """Heads in a stack are alike but for their numbers: here everybody sends something else."""

    fault: str

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().end(params, steps, visit)
        return FAULTS[self.fault][0](sends), mine


@BOTH
@pytest.mark.parametrize(
    "fault",
    ["wrong shape", "turned", "one more axis", "(1,) array", "no axis", "wrong dtype", "half a dtype", "missing",
     "extra", "nothing"],
)  # fmt: skip
def test_a_stack_that_does_not_fit_is_refused_client_by_client(fault: str, engine: type) -> None:
    method = SpoiltStack(batch=8, bias=True, fault=fault)
    exchange = engine(clients()).exchange(method, method.start(TASK), method.plan(1)[0], 1, [0, 1, 3])
    assert refused(exchange).keys() == {"site-0", "site-1", "site-3"}
    assert all(reason_of(fault, DIM) in reason for reason in refused(exchange).values())
    assert (exchange.update, exchange.accepted) == (None, 0)


class Diverging(METHODS["fedavg"]):  # type: ignore[misc, name-defined]
    """A client whose rows are marked computes an update that is not finite."""

    def residual(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        bad = (batch.x[..., 0] > 1e6).any(-1)[..., None, None]
        return super().residual(logits, batch, visit) + torch.where(bad, NAN, 0.0)

    def rows(self, logits: Tensor, batch: Batch, visit: Visit) -> Tensor:
        bad = (batch.x[..., 0] > 1e6).any(-1)[..., None]
        return super().rows(logits, batch, visit) * torch.where(bad, NAN, 1.0)


@BOTH
@COHORTS
def test_one_of_a_stack_is_refused_and_leaves_no_trace(cohort: list[int], engine: type) -> None:
    """The update of site-1 diverges; the mean is bit-equal to that of a run in which its reply never counted."""
    how, plain, marked = Diverging(batch=8, bias=True), FedAvg(batch=8, bias=True), clients()
    assert marked.x.tensor is not None
    marked.x.tensor[marked.rows(BAD)] = 1e7
    state, phase = how.start(TASK), how.plan(1)[0]
    faulty = engine(marked).exchange(how, state, phase, 1, cohort)
    honest = engine(clients()).exchange(plain, state, phase, 1, [client for client in cohort if client != BAD])
    same_as_without(faulty, honest, "head.weight holds NaN")


class SpoiltSums(Ridge):
    """Sums over rows instead of a trained head."""

    fault: str

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().measure(x, y, visit)
        return SUMS[self.fault][0](sends) if visit.counts.sum() == BAD_ROWS else sends, mine


SUMS: dict[str, tuple[Spoil, str]] = {
    "NaN": (with_first("sum.squares", NAN), "sum.squares holds NaN"),
    "Inf": (with_first("sum.rows", INF), "sum.rows holds Inf"),
    "huge": (with_first("sum.x", 1e9), "1000 times the cohort's median"),
    "(1,) array": (changed("sum.rows", lambda array: array[:1]), "sum.rows has shape (1,), expected (4,)"),
    "wrong dtype": (changed("sum.x", Tensor.float), "sum.x has dtype float32, expected float64"),
    "missing": (without("sum.rows"), "sum.rows is missing"),
    "extra": (lambda arrays: {**arrays, "sum.more": torch.ones(1)}, "sum.more was not asked for"),
}


@BOTH
@COHORTS
@pytest.mark.parametrize("fault", SUMS)
def test_bad_sums_are_named_and_leave_no_trace(fault: str, cohort: list[int], engine: type) -> None:
    spoilt, honest, who = SpoiltSums(fault=fault), Ridge(), clients()
    state, phase = honest.start(TASK), honest.plan(1)[0]
    faulty = engine(who).exchange(spoilt, state, phase, 1, cohort)
    others = engine(who).exchange(honest, state, phase, 1, [client for client in cohort if client != BAD])
    same_as_without(faulty, others, SUMS[fault][1])


# ---- messages that are not the ones that were due


def with_arrays(spoil: Spoil) -> Callable[[Up], Up]:
    return lambda up: replace(up, arrays=spoil(up.arrays))


ON_THE_WAY: dict[str, tuple[Callable[[Up], Down | Up], str]] = {
    **{name: (with_arrays(spoil), reason.format(dim=DIM, twice=2 * DIM)) for name, (spoil, reason) in FAULTS.items()},
    "extra of another name": (
        lambda up: replace(up, arrays={**up.arrays, "x": torch.ones(1)}),
        "x was not asked for",
    ),
    "weight 0": (lambda up: replace(up, weight=0.0), "weight is 0, but the client enrolled with 8 rows"),
    "weight 0.5": (lambda up: replace(up, weight=0.5), "weight is 0.5, but the client enrolled with 8 rows"),
    "weight 7": (lambda up: replace(up, weight=7.0), "weight is 7, but the client enrolled with 8 rows"),
    "weight < 0": (lambda up: replace(up, weight=-8.0), "weight is -8, but the client enrolled with 8 rows"),
    "weight NaN": (lambda up: replace(up, weight=NAN), "weight is nan, but the client enrolled with 8 rows"),
    "weight Inf": (lambda up: replace(up, weight=INF), "weight is inf, but the client enrolled with 8 rows"),
    "absurd weight": (lambda up: replace(up, weight=1e12), "weight is 1e+12, but the client enrolled with 8 rows"),
    "another client": (lambda up: replace(up, client="site-0"), "the reply is for site-0"),
    "another round": (lambda up: replace(up, round=7), "round 7"),
    "another phase": (lambda up: replace(up, phase="stage-9"), "stage-9"),
    "another run": (lambda up: replace(up, run="yesterday"), "the reply is for another run, 'yesterday'"),
    "not an update": (lambda up: Down(up.run, up.round, up.phase, up.arrays), "not an update"),
}


@pytest.mark.parametrize("method", ["fedavg", "ova-lp"])
@pytest.mark.parametrize(("spoil", "reason"), ON_THE_WAY.values(), ids=ON_THE_WAY.keys())
def test_a_bad_update_is_named_and_leaves_no_trace(spoil, reason: str, method: str) -> None:  # type: ignore[no-untyped-def]
    how = METHODS[method](batch=8, bias=True)
    state, phase = how.start(TASK), how.plan(1)[0]

    def transport(client: str, reply: bytes) -> bytes:
        return encode(spoil(decode(reply))) if client == "site-1" else reply

    faulty = WireEngine(clients(), transport=transport).exchange(how, state, phase, 1, [0, 1, 3, 6])
    without = WireEngine(clients()).exchange(how, state, phase, 1, [0, 3, 6])
    same_as_without(faulty, without, reason)


@pytest.mark.parametrize("reply", [b"", b"garbage", b"\x80\x04\x95pickle"])
def test_bytes_that_are_no_message(reply: bytes) -> None:
    how = METHODS["fedavg"](batch=8, bias=True)
    engine = WireEngine(clients(), transport=lambda client, data: reply if client == "site-3" else data)
    exchange = engine.exchange(how, how.start(TASK), how.plan(1)[0], 1, [0, 3])
    assert list(refused(exchange)) == ["site-3"]


def test_everybody_refused_changes_nothing() -> None:
    how = METHODS["fedavg"](batch=8, bias=True)
    engine = WireEngine(clients(), transport=lambda client, data: b"")
    exchange = engine.exchange(how, how.start(TASK), how.plan(1)[0], 1, [0, 3])
    assert exchange.update is None
    assert exchange.accepted == 0
    assert list(refused(exchange)) == ["site-0", "site-3"]
    assert (engine.accepted == NEVER).all()


# ---- how long an update may be


class Stretched(FedAvg):
    """One client's update is that long for each step that it took, in one number of its head."""

    per_step: float

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().end(params, steps, visit)
        first = torch.zeros_like(sends["head.weight"])
        first[0, 0] = self.per_step
        bad = visit.counts.sum() == BAD_ROWS
        return {**sends, "head.weight": torch.where(bad, first * steps, sends["head.weight"])}, mine


def stretched(engine: type, per_step: float, cohort: list[int]) -> dict[str, str]:
    method = Stretched(batch=8, per_step=per_step)
    exchange = engine(clients()).exchange(method, method.start(TASK), method.plan(1)[0], 1, cohort)
    assert exchange.accepted + len(exchange.refused) == len(cohort)
    return refused(exchange)


@BOTH
@pytest.mark.parametrize("cohort", [[0, 1, 3], [0, 1], [1, 3], [0, 1, 3, 4, 5, 6]], ids=len)
def test_a_step_far_longer_than_those_of_the_cohort_is_refused(cohort: list[int], engine: type) -> None:
    """5e5 is less than what is never right: it is the others who tell that it is."""
    found = stretched(engine, 5e5, cohort)
    assert list(found) == ["site-1"]
    assert found["site-1"].startswith("the update's norm is 5e+05 per step, the limit is ")
    assert found["site-1"].endswith(", 1000 times the cohort's median")


@BOTH
@pytest.mark.parametrize("per_step", [2.0, 20.0])
def test_a_step_that_is_only_longer_passes(per_step: float, engine: type) -> None:
    """AdamW's steps are about 0.05 long here: forty times that waits until the cohort is known, and so does 400."""
    assert not stretched(engine, per_step, [0, 1, 3, 4, 5, 6])


@BOTH
def test_a_single_client_is_judged_by_itself(engine: type) -> None:
    assert stretched(engine, 1e9, [1]) == {
        "site-1": "the update's norm is 1e+09 per step, the limit is 1e+06, more is never right"
    }
    assert not stretched(engine, 5e5, [1]), "nothing says that it is wrong"


@BOTH
def test_a_cohort_that_does_not_move_says_nothing_of_who_does(engine: type) -> None:
    """A median of 0 is no limit."""

    class Still(Stretched):
        def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
            sends, mine = super().end(params, steps, visit)
            bad = visit.counts.sum() == BAD_ROWS
            return {name: torch.where(bad, value, 0 * value) for name, value in sends.items()}, mine

    for per_step, wrong in ((3.0, []), (1e9, ["site-1"])):
        method = Still(batch=8, per_step=per_step)
        exchange = engine(clients()).exchange(method, method.start(TASK), method.plan(1)[0], 1, [0, 1, 3, 4, 5, 6])
        assert list(refused(exchange)) == wrong


def unit(who: Sites) -> Sites:
    assert who.x.tensor is not None
    return replace(who, x=Features(torch.nn.functional.normalize(who.x.tensor)))


@BOTH
@pytest.mark.parametrize("cohort", [[0, 1, 3], [0, 1], [1]], ids=len)
def test_sums_that_rows_of_known_length_cannot_have_are_refused(cohort: list[int], engine: type) -> None:
    """Without others, too: 8 rows of unit length add up to a few."""
    who = unit(clients())
    roster = who.enrol().roster("run", 0, "abcd", longest=1.0)
    for method, wrong in ((SpoiltSums(fault="huge"), ["site-1"]), (Ridge(), [])):
        exchange = engine(who, roster).exchange(method, method.start(TASK), method.plan(1)[0], 1, cohort)
        assert list(refused(exchange)) == wrong
        if wrong:
            assert "1.25e+08 per row" in exchange.refused[0].reason


@BOTH
def test_sums_of_rows_of_any_length_are_judged_by_the_others(engine: type) -> None:
    method = SpoiltSums(fault="huge")
    for cohort, wrong in (([0, 1, 3], ["site-1"]), ([0, 1], ["site-1"]), ([1], [])):
        exchange = engine(clients()).exchange(method, method.start(TASK), method.plan(1)[0], 1, cohort)
        assert list(refused(exchange)) == wrong


SIZES = (1, 5000, 2, 40, 700, 9, 300, 3)
HONEST: dict[str, Method] = {
    "fedavg": METHODS["fedavg"](),
    "fedavg, sgd": METHODS["fedavg"](optimizer="sgd", lr=0.5, momentum=0.9, bias=True),
    "one batch each": METHODS["fedavg"](optimizer="sgd", lr=0.1, batch=10_000),
    "ova-lp": METHODS["ova-lp"](),
    "scaffold": METHODS["scaffold"](lr=0.05),
    "fednova": METHODS["fednova"](lr=0.05),
    "ridge": METHODS["ridge"](),
    "ncm": METHODS["ncm"](),
}


@BOTH
@pytest.mark.parametrize("order", [1, -1], ids=["small first", "large first"])
@pytest.mark.parametrize("method", HONEST.values(), ids=HONEST.keys())
def test_an_honest_cohort_passes_whole_however_different_its_clients_are(
    method: Method, order: int, engine: type
) -> None:
    """From one row to five thousand, from three steps to three hundred."""
    who = clients(tuple(sorted(SIZES)[::order]))
    task = Task(DIM, CLASSES, len(SIZES), 0, sum(SIZES))
    exchange = engine(who).exchange(method, method.start(task), method.plan(1)[0], 1, list(range(len(SIZES))))
    assert not exchange.refused
    assert exchange.accepted == len(SIZES)


@BOTH
def test_updates_that_waited_are_in_the_mean(engine: type) -> None:
    """Those of a suspicious length are added last, with the weight that they have."""
    method, who = Stretched(batch=8, per_step=20.0), clients()
    state, phase, cohort = method.start(TASK), method.plan(1)[0], [0, 1, 3, 4, 5, 6]
    together = engine(who).exchange(method, state, phase, 1, cohort).update
    alone = [engine(who).exchange(method, state, phase, 1, [client]).update for client in cohort]
    assert together is not None
    rows = who.owned.sizes[cohort]
    mean = np.average([one.mean["head.weight"].double().numpy() for one in alone if one], axis=0, weights=rows)
    np.testing.assert_allclose(together.mean["head.weight"], mean, rtol=1e-5, atol=1e-7)


# ---- the server's half alone


def test_reasons_in_a_stack() -> None:
    method = FedAvg(batch=8, epochs=1)
    roster = Roster("run", [f"site-{k}" for k in range(5)], np.full(5, 8), 0, ("a", "b"))
    state = State({"head.a": torch.zeros(1), "head.b": torch.zeros(2)})
    server = Server(roster, np.full(5, NEVER), method, state, method.plan(1)[0], 1)
    a, b = torch.tensor([[1.0], [NAN], [INF], [3e6], [0.0]]), torch.zeros(5, 2)
    b[4] = 1e30  # of which a square is no float32
    server.receive_stack(range(5), {"head.a": a, "head.b": b})
    exchange = server.outcome(range(5))
    assert refused(exchange) == {
        "site-1": "head.a holds NaN",
        "site-2": "head.a holds Inf",
        "site-3": "the update's norm is 3e+06 per step, the limit is 1e+06, more is never right",
        "site-4": "the update's norm overflows",
    }
    assert exchange.update is not None
    assert exchange.update.mean["head.a"].tolist() == [1]


def test_who_never_replies_is_refused() -> None:
    method = FedAvg(batch=8, epochs=1)
    roster = Roster("run", ["a", "b"], np.array([8, 8]), 0, ("a", "b"))
    accepted = np.full(2, NEVER)
    server = Server(roster, accepted, method, State({"head.a": torch.zeros(1)}), method.plan(1)[0], 1)
    server.receive_stack([1], {"head.a": torch.ones(1, 1)})
    assert refused(server.outcome([0, 1])) == {"a": "no reply"}
    assert accepted.tolist() == [NEVER, 1000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_refused_update_leaves_no_trace_among_updates_of_any_length(dtype: torch.dtype) -> None:
    """Lengths that differ a lot, so that some wait: whether the bad one came must not change who is added when."""
    method, different = FedAvg(batch=8, epochs=1), []
    state, phase = State({"head.a": torch.zeros(4, dtype=dtype)}), method.plan(1)[0]
    roster = Roster("run", [f"site-{k}" for k in range(12)], np.full(12, 8), 0, ("a", "b"))
    for seed in range(60):
        draw = generator(seed, "lengths")
        numbers = draw.normal(size=(12, 4)) * np.exp(2 * draw.normal(size=(12, 1)))
        bad = int(draw.integers(12))
        numbers[bad] = 1e9
        found = []
        for cohort in (list(range(12)), [client for client in range(12) if client != bad]):
            server = Server(roster, np.full(12, NEVER), method, state, phase, 1)
            server.receive_stack(cohort, {"head.a": torch.from_numpy(numbers[cohort]).to(dtype)})
            found.append(server.outcome(cohort))
        assert f"site-{bad}" in refused(found[0])
        assert refused(found[0]).keys() - {f"site-{bad}"} == refused(found[1]).keys()
        assert found[0].update is not None
        assert found[1].update is not None
        if digest(found[0].update.mean) != digest(found[1].update.mean):
            different.append(seed)
    assert not different


LONG = "x" * 100_000
LOUD: dict[str, Callable[[Up], Up]] = {
    "client": lambda up: replace(up, client=LONG),
    "phase": lambda up: replace(up, phase=LONG),
    "run": lambda up: replace(up, run=LONG),
    "array": lambda up: replace(up, arrays={**up.arrays, LONG: torch.ones(1)}),
}


@pytest.mark.parametrize("spoil", LOUD.values(), ids=LOUD.keys())
def test_a_reason_is_short_whatever_was_sent(spoil: Callable[[Up], Up]) -> None:
    """It goes on record: who sends a bad message must not fill the log of the server."""
    how = FedAvg(batch=8, bias=True)

    def transport(client: str, reply: bytes) -> bytes:
        up = decode(reply)
        assert isinstance(up, Up)
        return encode(spoil(up)) if client == "site-1" else reply

    exchange = WireEngine(clients(), transport=transport).exchange(how, how.start(TASK), how.plan(1)[0], 1, [0, 1])
    assert list(refused(exchange)) == ["site-1"]
    assert len(exchange.refused[0].reason) < 500
