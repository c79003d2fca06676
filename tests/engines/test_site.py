"""A client's half: what goes wrong inside of a method is told with method, stage, client, round, file and line."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backbones import reading_images
from federations import CLASSES, TASK, PersonalBias, clients
from fedkeel.core.errors import BadMessage, FedkeelError, MethodFailed
from fedkeel.core.message import NEVER, Down, Up, decode, encode
from fedkeel.core.method import Batch, Phase, Visit
from fedkeel.core.tree import Tree
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.site import answer, work
from fedkeel.engines.store import Store
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.base import BIAS
from fedkeel.methods.heads.fedavg import FedAvg

BOTH = pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
STAGES = ("begin", "loss", "adjust", "end")
GONE: dict[str, Tensor] = {}


class Failing(FedAvg):
    """Asks for a tensor that is not there, in one of its functions."""

    name = "failing"
    stage: str
    rows_of_one: float = 0.0
    """if given, only the client with so many rows fails: it can be told where clients work one by one"""

    def fails(self, stage: str, visit: Visit) -> bool:
        return stage == self.stage and (not self.rows_of_one or float(visit.counts.sum()) == self.rows_of_one)

    def begin(self, visit: Visit) -> Tree:
        if self.fails("begin", visit):
            GONE["not there"].abs()
        return super().begin(visit)

    def once(self, x: Any, visit: Visit) -> Any:
        if self.fails("once", visit):
            GONE["not there"].abs()
        return super().once(x, visit)

    def loss(self, params: Tree, batch: Batch, visit: Visit) -> Tensor:
        if self.fails("loss", visit):
            GONE["not there"].abs()
        return super().loss(params, batch, visit)

    def adjust(self, grads: Tree, params: Tree, batch: Batch, visit: Visit) -> Tree:
        if self.fails("adjust", visit):
            GONE["not there"].abs()
        return super().adjust(grads, params, batch, visit)

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        if self.fails("end", visit):
            GONE["not there"].abs()
        return super().end(params, steps, visit)


class FailingMeasure(FedAvg):
    """Measures instead of training."""

    name = "failing-measure"
    rows_of_one: float = 0.0

    def plan(self, round: int) -> list[Phase]:
        return [Phase("count", sends=("head.",), epochs=0)]

    def measure(self, x: Any, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        if not self.rows_of_one or len(y) == self.rows_of_one:
            GONE["not there"].abs()
        return {name: 0 * value for name, value in visit.down.items()}, {}


def where(function: Any) -> str:
    """File and line at which a function asks for what is not there."""
    lines, first = inspect.getsourcelines(function)
    offset = next(index for index, line in enumerate(lines) if "GONE[" in line)
    return f"({Path(__file__).name}:{first + offset})"


def told(failed: pytest.ExceptionInfo[MethodFailed], *parts: str) -> None:
    line = str(failed.value)
    assert all(part in line for part in parts), line
    assert "\n" not in line
    assert isinstance(failed.value, FedkeelError)
    assert isinstance(failed.value.__cause__, KeyError)


@BOTH
@pytest.mark.parametrize("stage", STAGES)
def test_of_a_head_the_stage_and_the_clients_are_named(stage: str, engine: type) -> None:
    """On the fast engine clients of a stack fail together: the first few are named."""
    method = Failing(batch=8, stage=stage)
    with pytest.raises(MethodFailed) as failed:
        engine(clients()).exchange(method, method.start(TASK), method.plan(3)[0], 3, [1])
    told(failed, "method failing failed in", "phase 'train'", "round 3", "client site-1:", "KeyError: 'not there'")
    told(failed, where(getattr(Failing, stage)))
    told(failed, f"failed in {stage} of")


@pytest.mark.parametrize("stage", ["loss", "end"])
def test_of_a_stack_the_first_clients_are_named(stage: str) -> None:
    """Most steps first; how many there are more is not told."""
    method = Failing(batch=8, stage=stage)
    for cohort, names in (([0, 1, 3, 6], "site-3, site-6, site-0, ..."), ([0, 1, 3], "site-3, site-0, site-1:")):
        with pytest.raises(MethodFailed) as failed:
            LocalEngine(clients()).exchange(method, method.start(TASK), method.plan(1)[0], 1, cohort)
        told(failed, f"client {names}")


@BOTH
@pytest.mark.parametrize("stage", [*STAGES, "once"])
def test_of_a_network_the_one_that_failed_is_named(stage: str, engine: type) -> None:
    """Clients 0 and 1 came first and did not fail."""
    method = Failing(tune="network", batch=8, epochs=1, stage=stage, rows_of_one=50)
    who, task = reading_images(clients(), CLASSES)
    with pytest.raises(MethodFailed) as failed:
        engine(who).exchange(method, method.start(task), method.plan(2)[0], 2, [0, 1, 3])
    told(failed, f"method failing failed in {stage} of phase 'train', round 2, client site-3:", "KeyError: 'not there'")
    told(failed, where(getattr(Failing, stage)))


@BOTH
def test_of_a_measure_the_one_that_failed_is_named(engine: type) -> None:
    method = FailingMeasure(rows_of_one=50)
    with pytest.raises(MethodFailed) as failed:
        engine(clients()).exchange(method, method.start(TASK), method.plan(2)[0], 2, [0, 1, 3])
    told(failed, "method failing-measure failed in measure of phase 'count', round 2, client site-3:")
    told(failed, "KeyError: 'not there'", where(FailingMeasure.measure))


@BOTH
def test_nothing_of_an_exchange_that_failed_is_accepted(engine: type) -> None:
    method, worker = FailingMeasure(rows_of_one=50), engine(clients())
    with pytest.raises(MethodFailed):
        worker.exchange(method, method.start(TASK), method.plan(1)[0], 1, [0, 1, 3])
    assert (worker.accepted == NEVER).all()


class Raising(FedAvg):
    name = "raising"

    def begin(self, visit: Visit) -> Tree:
        raise ERRORS[0]


ERRORS: list[BaseException] = []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first line\nsecond line"), "client site-1: ValueError: first line (test_site.py:"),
        (ValueError(), "client site-1: ValueError (test_site.py:"),
        (ZeroDivisionError("division by zero"), "client site-1: ZeroDivisionError: division by zero (test_site.py:"),
    ],
    ids=["of two lines", "without text", "by Python"],
)
def test_whatever_an_error_says_one_line_is_told(error: Exception, text: str) -> None:
    method = Raising(batch=8)
    ERRORS[:] = [error]
    with pytest.raises(MethodFailed) as failed:
        WireEngine(clients()).exchange(method, method.start(TASK), method.plan(1)[0], 1, [1])
    assert "\n" not in str(failed.value)
    assert text in str(failed.value)


@pytest.mark.parametrize("error", [FedkeelError("as it is"), OSError(28, "No space left"), KeyboardInterrupt()])
def test_what_is_not_the_method_s_fault_is_not_blamed_on_it(error: BaseException) -> None:
    method = Raising(batch=8)
    ERRORS[:] = [error]
    with pytest.raises(type(error)) as raised:
        WireEngine(clients()).exchange(method, method.start(TASK), method.plan(1)[0], 1, [1])
    assert raised.value is error


# ---- requests and answers


def request(phase: str = "share", round: int = 1, accepted: int = NEVER) -> bytes:
    state = PersonalBias().start(TASK)
    return encode(Down("run", round, phase, state.down, accepted))


def test_an_answer_is_what_the_work_gives_and_the_store_holds_what_is_kept() -> None:
    method, site, store = PersonalBias(), clients().site(1), Store()
    share, keep = method.plan(1)
    up = decode(answer(method, share, request(), site, store))
    assert isinstance(up, Up)
    assert (up.run, up.round, up.phase, up.client, up.weight) == ("run", 1, "share", "site-1", 8.0)
    visit = Visit(method.start(TASK).down, method.private(method.start(TASK).down), share, 1, site.counts)
    sends, kept = work(method, visit, site)
    assert all(torch.equal(up.arrays[name], value) for name, value in sends.items())
    assert torch.equal(store.read("site-1", 1000)[BIAS], kept[BIAS])  # type: ignore[index]
    up = decode(answer(method, keep, request("keep", accepted=1000), site, store))
    assert not up.arrays
    assert not torch.equal(store.read("site-1", 1001)[BIAS], kept[BIAS])  # type: ignore[index]


def test_a_client_goes_on_with_the_version_that_the_server_accepted() -> None:
    """Its second update was refused: the third starts from what the first left."""
    method, site, store = PersonalBias(), clients().site(1), Store()
    keep = method.plan(1)[1]
    first, second = (dict(after(method, keep, site, store, at)) for at in ((1, NEVER), (2, 1001)))
    third = after(method, replace(keep), site, store, (3, 1001))
    assert not torch.equal(first[BIAS], second[BIAS])
    fresh = Store()
    fresh.write("site-1", 1001, first)
    assert torch.equal(third[BIAS], after(method, keep, site, fresh, (3, 1001))[BIAS])


def after(method: PersonalBias, phase: Phase, site: Any, store: Store, at: tuple[int, int]) -> Tree:
    """What the client keeps after a round in which this version was the accepted one."""
    round, accepted = at
    answer(method, phase, request("keep", round, accepted), site, store)
    kept = store.read("site-1", round * 1000 + 1)
    assert kept is not None
    return kept


OTHERS = {"another phase": request("keep"), "an update": encode(Up("run", 1, "share", "a", 1.0, {}))}


@pytest.mark.parametrize("what", OTHERS.values(), ids=OTHERS.keys())
def test_another_request_than_the_one_expected_is_refused(what: bytes) -> None:
    method, store = PersonalBias(), Store()
    with pytest.raises(BadMessage, match="client site-1 was asked for share"):
        answer(method, method.plan(1)[0], what, clients().site(1), store)
    assert not store.clients()


def test_who_tests_only_looks() -> None:
    class Looking(FailingMeasure):
        def plan(self, round: int) -> list[Phase]:
            return [replace(phase, on="test", looks=True) for phase in super().plan(round)]

        def measure(self, x: Any, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
            assert len(y) == len(x) == 0, "this client holds no test rows"
            return {name: 0 * value for name, value in visit.down.items()}, {"own": torch.ones(1)}

    method = Looking()
    for engine in (LocalEngine(clients()), WireEngine(clients())):
        exchange = engine.exchange(method, method.start(TASK), method.plan(1)[0], 1, [0, 1])
        assert exchange.accepted == 2
        assert not engine.sites.store.clients()
        assert (engine.accepted == NEVER).all()
