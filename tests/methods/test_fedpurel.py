"""FedPuReL against steps computed by hand: the projection, a purified step, the residual, what it is without them.

The adapter is tuned here, as its gradients need no network; every kind goes through the contract tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from torch import Tensor

import fedkeel as fk
from federations import private
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import decode
from fedkeel.core.method import METHODS, Batch, State, Task, Visit
from fedkeel.core.tree import Tree, digest, put, take
from fedkeel.data.ownership import Ownership
from fedkeel.engines.base import schedule
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.dual.alignment import divergence
from fedkeel.methods.dual.base import OWN, PEFT
from fedkeel.methods.dual.fedclip import FedCLIP
from fedkeel.methods.dual.fedpurel import FedPuReL, conflict, purified, task_and_alignment
from fedkeel.methods.dual.peft.module import MODULES, module
from fedkeel.metrics.towers import client_drift
from fedkeel.models.dual import Dual
from fedkeel.rows.items import Items, items
from fedkeel.runs.simulate import ENGINES

CLASSES, DIM, ROWS = 4, 6, 48


def world(seed: int = 0) -> tuple[Items, Tensor]:
    rng = np.random.default_rng(seed)
    unit = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(CLASSES, DIM))).float(), dim=1)
    dual = Dual("none", ("ant", "bee", "cat", "dog"), 10.0, unit, None, None)  # type: ignore[arg-type]
    labels = torch.from_numpy(rng.integers(CLASSES, size=ROWS))
    return items(dual, unit[labels].numpy() + 0.6 * rng.normal(size=(ROWS, DIM)).astype(np.float32)), labels


def clients(seed: int = 0) -> Sites:
    x, y = world()
    owned = Ownership.of_owners(np.arange(ROWS) % 3, 3)
    anything: Any = x
    return Sites(("a", "b", "c"), anything, y, owned, seed, CLASSES)


def method(**given: Any) -> FedPuReL:
    usual = {"peft": "adapter", "rounds": 2, "participation": 1.0, "batch": 8, "lr": 0.5, "personal_epochs": 2}
    return FedPuReL(**{**usual, **given})


def begun(of: FedPuReL | FedCLIP, seed: int = 0) -> State:
    x, _ = world()
    return of.start(Task(DIM, CLASSES, 3, seed, reader=x.dual))


def batch_of(rows: int = 8) -> Batch:
    x, y = world()
    anything: Any = x[:rows]
    return Batch(anything, y[:rows], torch.full((rows,), 1 / rows), torch.empty(0))


def trainable(tree: Tree) -> Tree:
    return {name: value.clone().requires_grad_() for name, value in tree.items()}


# ---- the projection


@given(st.integers(0, 10_000), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_the_projection_is_the_point_of_a_half_space_nearest_to_the_task(seed: int, tensors: int) -> None:
    """An independent reading: g minimises |g - g_task| over all g with <g, g_align> >= 0, solved by least squares.

    If g_task is in the half-space it is the answer; else the answer lies on its border, the null space of g_align^T.
    """
    rng = np.random.default_rng(seed)
    task = {f"t{k}": torch.from_numpy(rng.normal(size=(3, 2))) for k in range(tensors)}
    align = {name: torch.from_numpy(rng.normal(size=(3, 2))) for name in task}

    def nearest(g: np.ndarray, a: np.ndarray) -> np.ndarray:
        if g @ a >= 0:
            return g
        border = np.linalg.svd(a[None])[2][1:].T  # a basis of what is orthogonal to a
        solved: np.ndarray = border @ np.linalg.lstsq(border, g, rcond=None)[0]
        return solved

    by_tensor = purified(task, align, "tensor")
    for name in task:
        wanted = nearest(task[name].numpy().ravel(), align[name].numpy().ravel())
        assert by_tensor[name].numpy().ravel() == pytest.approx(wanted, abs=1e-10)
    whole = purified(task, align, "all")
    g, a, found = (np.concatenate([t.numpy().ravel() for t in tree.values()]) for tree in (task, align, whole))
    assert found == pytest.approx(nearest(g, a), abs=1e-10)


def test_a_zero_alignment_leaves_the_task_as_it_is() -> None:
    """LoRA's A at the start: its alignment gradient is exactly zero, and 0 / 0 must not reach the step."""
    task = {"A": torch.ones(2, 3), "B": torch.tensor([1.0, -1.0])}
    align = {"A": torch.zeros(2, 3), "B": torch.tensor([0.0, 2.0])}
    found = purified(task, align, "tensor")
    assert torch.equal(found["A"], task["A"])
    assert torch.equal(found["B"], torch.tensor([1.0, 0.0]))
    nothing = {name: torch.zeros_like(value) for name, value in align.items()}
    assert all(torch.equal(value, task[name]) for name, value in purified(task, nothing, "all").items())
    assert conflict([torch.ones(1)], [torch.ones(1)]) == 0, "no conflict, no change"


# ---- the gradients


@pytest.mark.parametrize("kind", ["tkl", "kl"])
def test_both_gradients_are_those_of_their_losses(kind: Literal["tkl", "kl"]) -> None:
    """Central differences of the mean cross-entropy; autograd of the divergence at frozen temperatures."""
    of, batch = method(), batch_of()
    x: Any = batch.x
    state = begun(of)
    params = {name: value.double() for name, value in state.shared.items()}
    x = items(x.dual, x.features)
    x = Items(
        Dual("none", x.dual.class_names, 10.0, x.dual.zero_shot.double(), None, None),  # type: ignore[arg-type]
        {"features": (x.features.double(), torch.arange(len(x)))},
    )
    batch = Batch(x, batch.y, batch.weight.double(), batch.u)  # type: ignore[arg-type]
    task, align = task_and_alignment(of, trainable(params), batch, kind)

    def cross_entropy(at: Tree) -> float:
        logits = of.module.logits(take(PEFT, at), x).numpy()
        return float(-log_softmax(logits, axis=1)[np.arange(len(batch.y)), batch.y.numpy()].mean())

    rng = np.random.default_rng(0)
    for name, value in params.items():
        towards = torch.from_numpy(rng.normal(size=value.shape))
        up, down = ({**params, name: value + sign * 1e-6 * towards} for sign in (1, -1))
        assert float((task[name] * towards).sum()) == pytest.approx(
            (cross_entropy(up) - cross_entropy(down)) / 2e-6, abs=1e-7
        )

    leaves = trainable(params)
    f = of.module.logits(take(PEFT, leaves), x)
    from fedkeel.methods.dual.alignment import temperatures

    tau_z, tau_f = temperatures(x.zero_shot, f.detach()) if kind == "tkl" else (torch.ones(8), torch.ones(8))
    p, log_q = (x.zero_shot / tau_z[:, None]).softmax(1), (f / tau_f[:, None]).log_softmax(1)
    loss = (p * (p.log() - log_q)).sum(1).mean()
    assert float(loss.detach()) == pytest.approx(float(divergence(x.zero_shot, f.detach(), kind).mean()), rel=1e-9)
    for name, wanted in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
        assert align[name].numpy() == pytest.approx(wanted.numpy(), abs=1e-12)


def test_a_purified_step_by_hand() -> None:
    """One client, one batch, plain SGD: w <- w - lr g with g projected; the update is that difference."""
    of = method(rounds=1, batch=ROWS, momentum=0.0, weight_decay=0.0)
    x, y = world()
    everything = Sites(("a",), x, y, Ownership.of_owners(np.zeros(ROWS, dtype=np.int64), 1), 0, CLASSES)  # type: ignore[arg-type]
    state = begun(of)
    exchange = ENGINES["wire"](everything).exchange(of, state, of.plan(1)[0], 1, [0])
    whole: Any = Batch(x, y, torch.full((ROWS,), 1 / ROWS), torch.empty(0))  # type: ignore[arg-type]
    task, align = task_and_alignment(of, trainable(state.shared), whole, "tkl")
    assert any((task[name] * align[name]).sum() < 0 for name in task), "nothing to purify would prove nothing"
    assert exchange.update is not None
    for name in task:
        g, a = task[name].double().numpy().ravel(), align[name].double().numpy().ravel()
        wanted = -of.lr * (g - min(0.0, g @ a) / (a @ a) * a)
        assert exchange.update.mean[name].numpy().ravel() == pytest.approx(wanted, abs=1e-6)


# ---- what it equals


@pytest.mark.parametrize("engine", ["local", "wire"])
def test_without_alignment_phase_one_is_plain_averaging_bit_for_bit(engine: str) -> None:
    plain = FedCLIP(rounds=2, participation=1.0, batch=8, lr=0.5, personal_epochs=2)
    states = []
    for of in (method(alignment="none"), plain):
        state, people = begun(of), clients()
        for round in (1, 2):
            exchange = ENGINES[engine](people).exchange(of, state, of.plan(round)[0], round, [0, 1, 2])
            assert exchange.update is not None
            state = of.merge(state, exchange.update, of.plan(round)[0])
        states.append(state)
    assert digest(states[0].shared) == digest(states[1].shared) != digest(begun(plain).shared)


def test_purification_changes_the_model() -> None:
    found = set()
    for alignment in ("none", "kl", "tkl"):
        of = method(alignment=alignment)
        exchange = ENGINES["local"](clients()).exchange(of, begun(of), of.plan(1)[0], 1, [0, 1, 2])
        assert exchange.update is not None
        found.add(digest(exchange.update.mean))
    assert len(found) == 3


# ---- client drift


@pytest.mark.parametrize("of", [method(), method(alignment="none"), method(peft="adapter", project="all"), FedCLIP()])
def test_client_drift_is_how_far_the_clients_moves_are_apart(of: FedPuReL | FedCLIP) -> None:
    """With one plain step on all rows a client moves along what it would step along: sqrt(mean |m_k - m|^2) / |m|."""
    plain = of.model_copy(update={"batch": ROWS, "momentum": 0.0, "weight_decay": 0.0, "participation": 1.0})
    people, state = clients(), begun(plain)
    phase = replace(plain.plan(1)[0], each=(PEFT,))
    update = ENGINES["local"](people).exchange(plain, state, phase, 1, [0, 1, 2]).update
    assert update is not None
    moves = np.array([np.concatenate([move[k].ravel() for move in update.each.values()]) for k in range(3)])
    apart = np.sqrt(((moves - moves.mean(0)) ** 2).sum(1).mean()) / np.linalg.norm(moves.mean(0))
    found = client_drift(plain, people, state, 0, lambda _: {})
    assert found == pytest.approx(apart, rel=1e-4)
    assert found > 0.01


def test_where_nobody_steps_there_is_no_client_drift() -> None:
    still = METHODS["zero-shot"](rounds=1)
    assert (
        client_drift(still, clients(), still.start(Task(DIM, CLASSES, 3, 0, reader=world()[0].dual)), 0, lambda _: {})
        is None
    )


# ---- the residual


def residual_visit(of: FedPuReL) -> Visit:
    state = begun(of)
    moved = {name: value + 0.1 for name, value in state.shared.items()}
    return Visit(moved, put(OWN, take(PEFT, moved)), of.plan(of.rounds)[-1], of.rounds)


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_the_residual_loss_is_equation_twelve(lam: float) -> None:
    of, batch = method(lam=lam), batch_of()
    visit = residual_visit(of)
    x: Any = of.once(batch.x, visit)
    own = {name: value * 0.7 for name, value in visit.mine.items()}
    found = of.loss(own, Batch(x, batch.y, batch.weight, batch.u), visit)
    l_g = of.module.logits(take(PEFT, visit.down), x).double().numpy()
    l_p = of.module.logits(take(OWN, own), x).double().numpy()
    true = np.arange(8), batch.y.numpy()
    wanted = -(1 - lam) * log_softmax(l_g + l_p, axis=1)[true].mean() - lam * log_softmax(l_p, axis=1)[true].mean()
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_the_shared_module_is_frozen_and_nothing_leaves_in_phase_two() -> None:
    of, people = method(), clients()
    state = begun(of)
    residual = of.plan(of.rounds)[-1]
    assert (residual.name, residual.sends, residual.cohort) == ("residual", (), "all")
    exchange = ENGINES["local"](people).exchange(of, state, residual, of.rounds, [0, 1, 2])
    assert (exchange.update, exchange.bytes_up) == (None, 0)
    assert len({digest(private(people)[k]) for k in range(3)}) == 3
    assert set(private(people)[0]) == set(put(OWN, take(PEFT, state.shared)))


def test_a_client_adds_both_branches_and_everybody_else_sees_the_global_one() -> None:
    of = method()
    visit = residual_visit(of)
    x, _ = world()
    l_g, l_p, both = of.branches(visit.down, visit.mine, x)
    assert torch.equal(both, l_g + l_p)
    assert torch.equal(of.predict(State(visit.down), visit.mine, x), both)
    assert torch.equal(of.predict(State(visit.down), {}, x), l_g)


def test_a_personal_module_starts_as_the_shared_one_is_then() -> None:
    of = method()
    visit = residual_visit(of)
    fresh = of.begin(Visit(visit.down, {}, visit.phase, visit.round, torch.ones(CLASSES)))
    assert {name: value.tolist() for name, value in fresh.items()} == {n: v.tolist() for n, v in visit.mine.items()}
    kept = of.begin(
        Visit(visit.down, put(OWN, take(PEFT, begun(of).shared)), visit.phase, visit.round, torch.ones(CLASSES))
    )
    assert digest(kept) != digest(fresh), "a client that has one goes on with it"


def test_schedules() -> None:
    """Sequential: phase 2 once, after the last round, for everybody; interleaved: in every round, for its cohort."""
    sequential, interleaved = method(rounds=3), method(rounds=3, schedule="interleaved")
    assert [[p.name for p in sequential.plan(t)] for t in (1, 2, 3)] == [["purify"], ["purify"], ["purify", "residual"]]
    assert [[p.name for p in interleaved.plan(t)] for t in (1, 2)] == [["purify", "residual"]] * 2
    assert sequential.plan(3)[1].epochs == 2
    assert interleaved.plan(2)[1].cohort == "same"
    assert interleaved.plan(2)[1].epochs == 1
    assert [sequential.plan(t)[0].cohort for t in (1, 2)] == ["all", "sample"]


def test_no_optimizer_state_travels() -> None:
    """Momentum starts anew at every visit: a client's update does not depend on who was visited before it."""
    of = method(momentum=0.9)
    state, phase = begun(of), of.plan(1)[0]
    updates = []
    for cohort in ([0, 2], [1, 2], [2]):
        sent: Tree = {}

        def seen(client: str, reply: bytes, sent: Tree = sent) -> bytes:
            if client == "c":
                sent.update(decode(reply).arrays)
            return reply

        WireEngine(clients(), transport=seen).exchange(of, state, phase, 1, cohort)
        assert sent
        updates.append(digest(sent))
    assert len(set(updates)) == 1
    assert len(list(schedule(0, "c", ROWS // 3, 1, phase))) > 1, "one step would have no momentum to carry"


def test_it_has_the_settings_of_every_kind_and_tunes_the_one_that_is_named() -> None:
    for name, kind in MODULES.items():
        assert kind.model_fields.keys() <= FedPuReL.model_fields.keys()
        assert type(method(peft=name).module) is kind
    assert method(peft="lora", rank=3, blocks=(1,)).module == MODULES["lora"](rank=3, blocks=(1,))
    with pytest.raises(FedkeelError, match=r"method\.peft is 'mask': expected adapter, lora, prompt") as error:
        fk.experiment(method={"name": "fedpurel", "peft": "mask"})
    assert "\n" not in str(error.value)


def test_a_kind_that_is_entered_later_is_found() -> None:
    class Mask(MODULES["adapter"]):  # type: ignore[misc]
        pass

    module("mask")(Mask)
    try:
        assert type(method(peft="mask").module) is Mask
    finally:
        del MODULES["mask"]
