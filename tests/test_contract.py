"""Every method on every engine: same result, same batches, resumable after every phase, nothing private on the wire."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch

from contract.methods import VARIANTS, clients_of, close, play, played, start_of
from federations import PersonalBias, clients, private_of
from fedkeel.core.errors import FedkeelError, MethodFailed
from fedkeel.core.message import decode
from fedkeel.core.method import METHODS, Method, State, Visit
from fedkeel.core.optim import SGD, AdamW
from fedkeel.core.tree import Tree, digest
from fedkeel.engines import local
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.store import Store
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.heads.base import BIAS, WEIGHT
from fedkeel.methods.heads.scaffold import Scaffold
from fedkeel.runs.checkpoint import Checkpoint, Checkpoints
from fedkeel.runs.events import Log
from fedkeel.runs.loop import Loop
from fedkeel.runs.simulate import ENGINES

every_method = pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS.keys())


@every_method
def test_engines_agree(method: Method) -> None:
    """Two ways to the same numbers, which have in common what the method says and the rows that are visited.

    Both keep what clients keep, and check what leaves them, in the same way. Otherwise, of methods that read
    - features, local trains stacks of clients at once, linear heads in closed form and the rest by ``torch.func``, with
      fedkeel's fused optimizers, and adds up tensors; wire trains one client after the other, by autograd and
      PyTorch's optimizers, and every message goes through bytes;
    - inputs of a network or items of a dual encoder, which cannot be stacked, both train client by client with the
      gradients that the method gives, local with fedkeel's own optimizers, wire with PyTorch's and through bytes.
    In phases without training both call ``measure``, wire through bytes.
    """
    fast, reference = played(method, LocalEngine), played(method, WireEngine)
    assert any(value.abs().max() > 1e-3 for value in fast.state.shared.values()), "nothing was learnt"
    close(fast.state.down, reference.state.down, "")
    assert fast.private.keys() == reference.private.keys()
    for client, mine in reference.private.items():
        close(fast.private[client], mine, f"client {client} ")


@every_method
def test_engines_count_the_same_bytes(method: Method) -> None:
    fast, reference = played(method, LocalEngine).traffic, played(method, WireEngine).traffic
    assert fast == reference
    assert all(bool(bytes_up) == bool(phase.sends and accepted) for phase, bytes_up, _, accepted in fast)
    assert all(bool(bytes_down) == bool(accepted) for _, _, bytes_down, accepted in fast)


@every_method
def test_engines_visit_the_same_rows(method: Method) -> None:
    fast, reference = played(method, LocalEngine).visits, played(method, WireEngine).visits
    assert bool(reference) == any(phase.epochs for phase in method.plan(1))
    assert sorted(fast) == sorted(reference)


BY_ROWS = {method.reads: method for method in reversed(VARIANTS.values())}
"""One method for each kind of rows."""


@pytest.mark.parametrize("reads", BY_ROWS)
def test_engines_step_with_different_optimizers(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one engine cannot work without its optimizers, the other does."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such optimizer")

    def work(engine: type[Simulated]) -> None:
        method = BY_ROWS[reads]
        engine(clients_of(method)).exchange(method, start_of(method), method.plan(1)[0], 1, [0, 1])

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Optimizer, "__init__", broken)
        work(LocalEngine)
        with pytest.raises(MethodFailed, match="no such optimizer"):
            work(WireEngine)
    for optim in (SGD, AdamW):
        monkeypatch.setattr(optim, "step", broken)
        monkeypatch.setattr(optim, "step_plain", broken)
    work(WireEngine)
    with pytest.raises(MethodFailed, match="no such optimizer"):
        work(LocalEngine)


def test_heads_in_closed_form_need_no_autograd_on_the_fast_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no autograd")

    method = VARIANTS["fedavg"]
    monkeypatch.setattr(torch.autograd, "grad", broken)
    play(method, LocalEngine(clients_of(method)))
    with pytest.raises(MethodFailed, match="no autograd"):
        play(method, WireEngine(clients_of(method)))


@every_method
@pytest.mark.parametrize("engine", ["local", "wire"])
def test_resume_after_every_phase_is_bit_identical(method: Method, engine: str, tmp_path: Path) -> None:
    """A run that is killed after a phase leaves the folder as it is at that moment: from there it goes on."""
    killed: list[Path] = []
    whole = digest(journaled(method, engine, tmp_path / "whole", killed).down)
    assert len(killed) == sum(len(method.plan(round)) for round in range(1, method.rounds + 1))
    for folder in killed:
        assert digest(journaled(method, engine, folder).down) == whole, folder.name


def journaled(method: Method, engine: str, folder: Path, killed: list[Path] | None = None) -> State:
    """Run or continue in a folder, of which a copy is kept as it is after every phase, if asked for."""
    folder.mkdir(exist_ok=True)
    with Checkpoints(folder, "experiment", every=0) as checkpoints, Log(folder / "events.jsonl") as log:
        runner = ENGINES[engine](replace(clients_of(method), store=Store(checkpoints.private, "run")))
        save = checkpoints.save

        def copied(point: Checkpoint) -> None:
            save(point)
            if killed is not None:
                killed.append(folder.with_name(f"after {point.round}-{point.index}"))
                copytree(folder, killed[-1])

        checkpoints.save = copied  # type: ignore[assignment]
        try:
            state = Loop(method, runner, log, checkpoints).rounds(start_of(method))
            private = private_of(runner)
        finally:
            runner.sites.store.close()
        kept = {f"{client}.{name}": value for client, mine in private.items() for name, value in mine.items()}
        return State({**state.shared, **kept}, state.server)


@every_method
def test_nothing_private_reaches_the_wire(method: Method) -> None:
    """Rows, labels and private arrays carry marks; the marks are looked for in all that leaves a client.

    Of private arrays every number among the numbers sent, and any two neighbours in the bytes, wherever they stand. The
    four bytes of a single number are not looked for in the bytes: across two others they turn up by chance.
    """
    who, sent = clients_of(method), []
    mark = np.float32(1.2345678e-3)
    if who.x.tensor is not None:
        who.x.tensor[:, 0] = float(mark)  # a feature that every row has

    def listen(client: str, reply: bytes) -> bytes:
        sent.append(reply)
        return reply

    engine, state, cohort = WireEngine(who, transport=listen), start_of(method), [0, 1, 3]
    once_held: list[tuple[int, Tree]] = []
    for round in (1, 2):
        for phase in method.plan(round):
            before = len(sent)
            exchange = engine.exchange(method, state, phase, round, cohort)
            assert len(sent) - before == (len(cohort) if phase.sends else 0)
            if exchange.update is not None:
                state = method.merge(state, exchange.update, phase)
            if isinstance(method, DualTuned):  # others may send how a private array moved, which at first is the array
                once_held += [(client, dict(private_of(engine).get(client, {}))) for client in cohort]
    everything = b"".join(sent)
    numbers = {
        number for reply in sent for array in decode(reply).arrays.values() for number in array.flatten().tolist()
    }
    assert everything, "the method sends something"
    assert mark.tobytes() not in everything
    for client in cohort:
        rows = who.owned.of(client)
        assert who.y[torch.from_numpy(rows)].numpy().tobytes() not in everything
    for client, held in once_held or [(client, private_of(engine).get(client, {})) for client in cohort]:
        for name, mine in held.items():
            assert name.encode() not in everything
            flat = mine.flatten().numpy()
            for number in flat.tolist():
                assert number == 0 or number not in numbers, f"{name} of client {client} leaked"
            for pair in pairwise(flat):
                assert not all(pair) or np.array(pair).tobytes() not in everything, f"{name} of client {client} leaked"


class Leaky(PersonalBias):
    """Hands its private bias out."""

    under: str

    def end(self, params: Tree, steps: torch.Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().end(params, steps, visit)
        return {**sends, self.under: mine[BIAS]}, mine


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
@pytest.mark.parametrize(
    ("under", "sends"),
    [(BIAS, (WEIGHT,)), ("extra", (WEIGHT,)), (BIAS, ()), (BIAS, ("head.",))],
    ids=["its own name", "another name", "a phase that sends nothing", "a prefix that would pass"],
)
def test_a_method_that_leaks_is_stopped_before_any_bytes(engine: type, under: str, sends: tuple[str, ...]) -> None:
    method, who, sent = Leaky(rounds=1, under=under), clients(), []
    listening = {"transport": lambda _, reply: sent.append(reply) or reply} if engine is WireEngine else {}
    worker = engine(who, **listening)
    phase = replace(method.plan(1)[0], sends=sends)
    with pytest.raises(FedkeelError, match=f"must not send {under}"):
        worker.exchange(method, start_of(method), phase, 1, [0, 1, 3])
    assert not sent
    assert not private_of(worker)


def test_a_refused_client_keeps_its_old_private_state() -> None:
    """Trap 2: private state becomes real only when the server has accepted the update it belongs to."""
    method, who = Scaffold(rounds=1, lr=0.05), clients()

    def spoil(client: str, reply: bytes) -> bytes:
        return reply[:-4] + np.float32(np.nan).tobytes() if client == "site-1" else reply

    state, phase = start_of(method), method.plan(1)[0]
    engine = WireEngine(who, transport=spoil)
    exchange = engine.exchange(method, state, phase, 1, [0, 1, 3])
    assert [refusal.client for refusal in exchange.refused] == ["site-1"]
    assert sorted(private_of(engine)) == [0, 3]


@pytest.mark.parametrize("cache", [1, 2_000, 10**9])
def test_the_size_of_a_stack_does_not_change_the_numbers(cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play(VARIANTS["ova-lp"], LocalEngine(clients())).shared
    monkeypatch.setattr(local, "CACHE_BYTES", cache)
    close(play(VARIANTS["ova-lp"], LocalEngine(clients())).shared, whole, "")


def test_the_order_of_the_cohort_does_not_change_the_reference() -> None:
    method, who = VARIANTS["fedavg"], clients()
    state, phase = start_of(method), method.plan(1)[0]
    orders = [0, 1, 3, 5], [5, 3, 1, 0]
    one, other = (WireEngine(who).exchange(method, state, phase, 1, order).update for order in orders)
    assert one is not None
    assert other is not None
    close(one.mean, other.mean, "")


def test_cohorts() -> None:
    who, method = LocalEngine(clients()).roster, METHODS["fedavg"](participation=0.5)
    phase = method.plan(1)[0]
    first, second = (choose(who, method, phase, round, []) for round in (1, 2))
    assert len(first) == 3, "half of the six clients with rows"
    assert 2 not in first + second, "a client without rows never takes part"
    assert first == choose(who, method, phase, 1, [])
    assert choose(who, method, replace(phase, cohort="all"), 1, []) == [0, 1, 3, 4, 5, 6]
    assert choose(who, method, replace(phase, cohort="same"), 1, first) == first
