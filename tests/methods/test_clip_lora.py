"""CLIPLoRA and FedSA-LoRA on a small sentence encoder: what is trained, what leaves, and whose model is what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from duals import paired
from federations import clients, private
from fedkeel.core.method import METHODS, State, Task
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree, take
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.dual.clip_lora import ClipLora
from fedkeel.methods.dual.fedpurel import FedPuReL
from fedkeel.methods.dual.fedsa_clip_lora import FedSAClipLora

SETTINGS: dict[str, Any] = {"rounds": 2, "text_tokens": 8, "blocks": (1,), "rank": 2, "lr": 0.05, "batch": 1000}
SHARED = {"peft.A.1.attention.self.query", "peft.A.1.attention.self.key", "peft.A.1.attention.self.value"}


def federation(method: Any) -> tuple[Sites, Task, State]:
    who, task = paired(clients(), method)
    return who, task, method.start(task)


def moved(state: State, by: float = 0.1) -> State:
    """With B away from zero, so that A has a gradient too."""
    draw = generator(0, "moved")
    shifts = {name: by * draw.normal(size=tuple(value.shape)) for name, value in state.shared.items()}
    return State({name: value + torch.from_numpy(shifts[name]).float() for name, value in state.shared.items()})


def gradient(method: Any, factors: Tree, x: Any, y: torch.Tensor) -> Tree:
    """Of the mean cross-entropy, straight from PyTorch."""
    leaves = {name: value.clone().requires_grad_() for name, value in factors.items()}
    found = torch.autograd.grad(cross_entropy(method.module.logits(leaves, x), y), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def test_one_step_of_clip_lora_by_hand() -> None:
    """One batch of one client: SGD from rest moves by -lr (gradient + weight decay), and that is what is averaged."""
    method = ClipLora(**SETTINGS)
    who, _, state = federation(method)
    state, phase = moved(state), method.plan(1)[0]
    exchange = LocalEngine(who).exchange(method, state, phase, 1, [0])
    assert exchange.update is not None
    rows = who.rows(0)
    factors = take("peft.", state.shared)
    for name, grad in gradient(method, factors, who.x[rows], who.y[rows]).items():
        expected = -method.lr * (grad + method.weight_decay * factors[name])
        torch.testing.assert_close(exchange.update.mean[f"peft.{name}"], expected, rtol=1e-4, atol=1e-7)
        assert grad.abs().max() > 1e-4


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
def test_fedsa_sends_a_and_keeps_b(engine: Any) -> None:
    method = FedSAClipLora(**SETTINGS)
    who, _, state = federation(method)
    phase = method.plan(1)[0]
    exchange = engine(who).exchange(method, state, phase, 1, [0, 1])
    assert exchange.update is not None
    assert set(exchange.update.mean) == SHARED
    rows = who.rows(0)
    factors = take("peft.", state.shared)
    for name, grad in gradient(method, factors, who.x[rows], who.y[rows]).items():
        if name.startswith("B."):
            expected = -method.lr * grad
            torch.testing.assert_close(private(who)[0][f"own.{name}"], expected, rtol=1e-4, atol=1e-7)
            assert grad.abs().max() > 1e-4
    assert set(private(who)[0]) == {name.replace("peft.A", "own.B") for name in SHARED}
    assert not torch.equal(*(torch.cat([v.flatten() for v in private(who)[k].values()]) for k in (0, 1)))


def test_fedsa_s_global_model_is_zero_shot_and_a_client_s_is_not() -> None:
    method = FedSAClipLora(**SETTINGS)
    who, _, state = federation(method)
    engine = LocalEngine(who)
    for round in (1, 2):
        for phase in method.plan(round):
            exchange = engine.exchange(method, state, phase, round, [0, 1])
            if exchange.update is not None:
                state = method.merge(state, exchange.update, phase)
    x: Any = who.x
    assert torch.equal(method.predict(state, {}, x), x.zero_shot)
    factors, own = take("peft.", state.shared), take("own.", private(who)[0])
    torch.testing.assert_close(method.module.logits(factors, x), x.zero_shot, rtol=1e-4, atol=1e-4)
    mine = method.predict(state, private(who)[0], x)
    torch.testing.assert_close(mine, method.module.logits({**factors, **own}, x))
    assert (mine - x.zero_shot).abs().max() > 1e-3


def test_fedsa_trains_b_alone_in_the_end() -> None:
    method = FedSAClipLora(**SETTINGS, personal_epochs=3)
    last = method.plan(2)[-1]
    assert (last.trains, last.sends, last.epochs, last.cohort) == (("own.B.",), (), 3, "all")
    assert [phase.name for phase in FedSAClipLora(**SETTINGS, schedule="interleaved").plan(2)] == ["share A"]
    who, _, state = federation(method)
    exchange = WireEngine(who).exchange(method, moved(state), last, 2, [0])
    assert exchange.update is None
    assert exchange.bytes_up == 0
    assert set(private(who)[0]) == {name.replace("peft.A", "own.B") for name in SHARED}


def test_fedpurel_without_alignment_is_clip_lora() -> None:
    """The same bits, as both train the same module with the same batches."""
    plain, ours = ClipLora(**SETTINGS), FedPuReL(**SETTINGS, peft="lora", alignment="none")
    results = []
    for method in (plain, ours):
        who, _, state = federation(method)
        exchange = LocalEngine(who).exchange(method, state, method.plan(1)[0], 1, [0, 1, 3])
        assert exchange.update is not None
        results.append(exchange.update.mean)
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_both_are_found_by_name() -> None:
    assert METHODS["clip-lora"] is ClipLora
    assert METHODS["fedsa-clip-lora"] is FedSAClipLora
