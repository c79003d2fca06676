"""Every method on every engine: same result, same batches, resumable after every phase, nothing private on the wire."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backbones import reading, reading_images
from duals import paired
from federations import CLASSES, TASK, PersonalBias, clients, private_of
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import decode
from fedkeel.core.method import METHODS, Method, State, Task, Visit
from fedkeel.core.tree import Tree, digest
from fedkeel.engines import base, local, site
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.sites import Sites
from fedkeel.engines.store import Store
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.peft.module import MODULES
from fedkeel.methods.heads.base import BIAS, WEIGHT
from fedkeel.methods.heads.scaffold import Scaffold
from fedkeel.methods.networks.base import Network
from fedkeel.methods.transformer.base import Tuned
from fedkeel.runs.checkpoint import Checkpoints
from fedkeel.runs.events import Log
from fedkeel.runs.loop import Loop
from fedkeel.runs.simulate import ENGINES

ROUNDS = 3


def usual(method: type[Method]) -> dict[str, Any]:
    """Settings under which a method does all that it does, and soon."""
    if issubclass(method, DualTuned):
        return {"rounds": 2, "participation": 0.5, "batch": 8, "personal_epochs": 1, "lr": 0.1}
    if issubclass(method, Tuned):
        return {"rounds": 2, "participation": 0.5, "batch": 8, "epochs": 1}
    if issubclass(method, Network):
        return {"rounds": 2, "participation": 0.5, "batch": 7}  # nobody's rows but the smallest's make a single batch
    return {"rounds": ROUNDS, "participation": 0.7, **({"batch": 8} if "batch" in method.model_fields else {})}


NOTHING_TO_TRAIN = ("zero-shot",)
VARIANTS: dict[str, Method] = {n: cls(**usual(cls)) for n, cls in METHODS.items() if n not in NOTHING_TO_TRAIN}
VARIANTS |= {
    # Few rows make its covariance nearly singular: without a ridge the head is a matter of rounding.
    "pfedfda": METHODS["pfedfda"](**usual(METHODS["pfedfda"]), ridge=0.01),
    "ova-lp one stage": METHODS["ova-lp"](rounds=ROUNDS, stages=1, batch=8),
    "ova-lp with bias": METHODS["ova-lp"](rounds=ROUNDS, bias=True, batch=8),
    "fedavg with bias": METHODS["fedavg"](rounds=ROUNDS, bias=True, batch=8),
    "ova-lp from ridge": METHODS["ova-lp"](rounds=ROUNDS, init="ridge", optimizer="sgd", lr=0.1, batch=8),
    "ova-lp by rows": METHODS["ova-lp"](rounds=ROUNDS, participation=0.7, aggregation="rows", bias=True, batch=8),
    "ova-lp by total": METHODS["ova-lp"](rounds=ROUNDS, participation=0.7, aggregation="total", batch=8),
    "ova-lp samples": METHODS["ova-lp"](rounds=ROUNDS, positive_mode="sample", positives=0.4, batch=8),
    "fedavg sgd with momentum": METHODS["fedavg"](rounds=ROUNDS, optimizer="sgd", lr=0.1, momentum=0.9, batch=8),
    "fedavg, one batch per client": METHODS["fedavg"](rounds=ROUNDS, batch=100, epochs=1),
    "scaffold": Scaffold(rounds=ROUNDS, participation=0.7, bias=True, batch=8, lr=0.05),  # its lr is for unit length
    "personal bias": PersonalBias(rounds=ROUNDS, participation=0.7),
    "ridge-rf": METHODS["ridge-rf"](rounds=ROUNDS, participation=0.7, features=40),
    "ridge, held-out penalty": METHODS["ridge"](rounds=ROUNDS, participation=0.7, choice="held-out"),
    "ridge, given penalty": METHODS["ridge"](rounds=ROUNDS, participation=0.7, penalty=0.1, normalise=False),
}
NETWORK = {"tune": "network", "rounds": 2, "participation": 0.5, "batch": 8, "epochs": 1}
VARIANTS |= {
    f"{name}, network": METHODS[name](**NETWORK, **({"lr": 0.05} if name in ("scaffold", "fednova") else {}))
    for name in ("fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam")
}
DUAL = {name: method for name, method in VARIANTS.items() if isinstance(method, DualTuned)}
VARIANTS |= {f"{name}, balanced": type(method)(**usual(type(method)), balance="grab") for name, method in DUAL.items()}
VARIANTS |= {
    f"fedpurel, {name}": METHODS["fedpurel"](**usual(METHODS["fedpurel"]), **settings)
    for name, settings in {
        **{kind: {"peft": kind, "project": "all"} for kind in MODULES},
        "lora": {"peft": "lora", "blocks": (1,)},
        "interleaved": {"peft": "adapter", "schedule": "interleaved", "balance": "grab"},
        "not purified": {"peft": "adapter", "alignment": "none"},
    }.items()
}
every_method = pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS.keys())


def federation_of(method: Method) -> tuple[Sites, Task]:
    """Of features, of words for methods inside a transformer, of pictures for those that train a whole network.

    Of a few texts for methods of a dual encoder.
    """
    if isinstance(method, DualTuned):
        return paired(clients((10, 3, 0, 4, 1)), method)
    if method.reads == "features":
        return clients(), TASK
    return (reading if isinstance(method, Tuned) else reading_images)(clients(), CLASSES)


def clients_of(method: Method) -> Sites:
    return federation_of(method)[0]


def start_of(method: Method) -> State:
    return method.start(federation_of(method)[1])


def play(method: Method, engine: Simulated) -> State:
    """All rounds without checkpoints or log."""
    state = start_of(method)
    for round in range(1, method.rounds + 1):
        cohort: list[int] = []
        for phase in method.plan(round):
            cohort = choose(engine.roster, method, phase, round, cohort)
            exchange = engine.exchange(method, state, phase, round, cohort)
            assert not exchange.refused
            if exchange.update is not None:
                state = method.merge(state, exchange.update, phase)
    return state


def close(ours: Tree, reference: Tree, where: str) -> None:
    assert ours.keys() == reference.keys()
    for name, value in reference.items():
        scale = float(value.abs().max()) or 1.0
        assert float((ours[name] - value).abs().max()) <= 1e-5 * scale, f"{where}{name}"


@every_method
def test_engines_agree(method: Method) -> None:
    fast, reference = LocalEngine(clients_of(method)), WireEngine(clients_of(method))
    ours, theirs = play(method, fast), play(method, reference)
    assert any(value.abs().max() > 1e-3 for value in ours.shared.values()), "nothing was learnt"
    close(ours.down, theirs.down, "")
    kept = private_of(fast)
    assert kept.keys() == private_of(reference).keys()
    for client, mine in private_of(reference).items():
        close(kept[client], mine, f"client {client} ")


@every_method
def test_engines_count_the_same_bytes(method: Method) -> None:
    for phase in method.plan(1):
        counts = []
        for engine in (LocalEngine(clients_of(method)), WireEngine(clients_of(method))):
            exchange = engine.exchange(method, start_of(method), phase, 1, [0, 1, 3])
            counts.append((exchange.bytes_up, exchange.bytes_down, exchange.accepted))
        assert counts[0] == counts[1]
        assert bool(counts[0][0]) == bool(phase.sends)


@every_method
def test_engines_visit_the_same_rows(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked, one_by_one = [], []
    now = stacked
    make_stack = local.stacked_schedule

    def spy_stack(who, group, round, phase):  # type: ignore[no-untyped-def]
        index, weight, u, active = make_stack(who, group, round, phase)
        for step, running in enumerate(active.tolist()):
            for column, client in enumerate(group[:running]):
                real = weight[step, column] > 0
                picked, drawn = index[step, column][real].tolist(), u[step, column][real[: u.shape[2]]].tolist()
                stacked.append((round, phase.name, client, step, picked, drawn))
        return index, weight, u, active

    def spy_alone(seed, name, rows, round, phase):  # type: ignore[no-untyped-def]
        client = int(name.removeprefix("site-"))
        owned = who.owned.of(client)
        for step, (picked, u) in enumerate(base.schedule(seed, name, rows, round, phase)):
            now.append((round, phase.name, client, step, owned[picked].tolist(), u.tolist()))
            yield picked, u

    monkeypatch.setattr(local, "stacked_schedule", spy_stack)
    monkeypatch.setattr(site, "schedule", spy_alone)
    who = clients_of(method)
    play(method, LocalEngine(who))
    now = one_by_one
    play(method, WireEngine(clients_of(method)))
    trains = any(phase.epochs for phase in method.plan(1))
    assert bool(one_by_one) == trains
    assert sorted(stacked) == sorted(one_by_one)


@every_method
@pytest.mark.parametrize("engine", ["local", "wire"])
def test_resume_after_every_phase_is_bit_identical(method: Method, engine: str, tmp_path: Path) -> None:
    whole = digest(journaled(method, engine, tmp_path / "whole", stop_after=None).down)
    phases = sum(len(method.plan(round)) for round in range(1, method.rounds + 1))
    for stop in range(1, phases + 1):
        folder = tmp_path / f"stopped-{stop}"
        with pytest.raises(KilledError):
            journaled(method, engine, folder, stop_after=stop)
        assert digest(journaled(method, engine, folder, stop_after=None).down) == whole, f"stopped after phase {stop}"


class KilledError(Exception):
    pass


def journaled(method: Method, engine: str, folder: Path, stop_after: int | None) -> State:
    """Run or continue in a folder; dies right after the given number of phases is on disk."""
    folder.mkdir(exist_ok=True)
    with Checkpoints(folder, "experiment", every=0) as checkpoints, Log(folder / "events.jsonl") as log:
        runner = ENGINES[engine](replace(clients_of(method), store=Store(checkpoints.private, "run")))
        save, count = checkpoints.save, 0

        def counted(point):  # type: ignore[no-untyped-def]
            nonlocal count
            if count == stop_after:  # dead: nothing is written any more
                raise KilledError
            save(point)
            count += 1
            if count == stop_after:
                raise KilledError

        checkpoints.save = counted  # type: ignore[method-assign]
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
    if method.reads == "features":
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
