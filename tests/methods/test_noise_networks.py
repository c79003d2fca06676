"""FedLTF, FedNoRo and FedCorr with ``tune = "network"``: steps of the small CNN, taken again in plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backbones import logits_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, private
from fedkeel.core.method import Phase, State, Visit
from fedkeel.core.tree import Tree, learnt, put, select, take
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.site import own_optimizer, work
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads import fedcorr, fednoro
from fedkeel.methods.heads.fedcorr import FedCorr
from fedkeel.methods.heads.fedltf import FedLTF, teacher_of
from fedkeel.methods.heads.fednoro import FedNoRo
from fedkeel.methods.heads.noise import high_group, intrinsic_dimension

LR = 0.2
SGD: dict[str, Any] = {"tune": "network", "optimizer": "sgd", "lr": LR, "batch": 50, "epochs": 1, "weight_decay": 0.0}
ENGINES = pytest.mark.parametrize("engine", [LocalEngine, WireEngine])


def alone(rows: int = 9) -> tuple[Sites, Any, Tensor, Tensor]:
    """One client with its pictures and labels."""
    who, task = reading_images(clients((rows,)), CLASSES)
    return (who, task, *pictures_of(who, 0))


def other(tree: Tree, size: float = 0.3) -> Tree:
    """A model near another one; its statistics stay."""
    draw = torch.Generator().manual_seed(3)
    return {k: v + size * torch.randn(v.shape, generator=draw) if k in learnt(tree) else v for k, v in tree.items()}


def exchanged(engine: type, who: Sites, method: Any, state: State, phase: Phase, round: int) -> Tree:
    """The shared model after one client's visit."""
    update = engine(who).exchange(method, state, phase, round, [0]).update
    assert update is not None
    return {name: value + update.mean.get(name, 0) for name, value in state.shared.items()}


def stepped(tree: Tree, loss: Any) -> Tree:
    """A step of gradient descent with the network in training mode; statistics follow the batch."""
    tree = {name: value.clone() for name, value in tree.items()}
    leaves = {name: value.requires_grad_() for name, value in learnt(tree).items()}
    grads = torch.autograd.grad(loss({**tree, **leaves}), list(leaves.values()))
    plain = {name: value.detach() for name, value in tree.items()}
    return plain_step(plain, dict(zip(leaves, grads, strict=True)), LR)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Of logits, by probabilities."""
    p, q = p.softmax(1), q.softmax(1)
    return (p * (p / q).log()).sum(1)


def ce(logits: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, y, reduction="none")


# ---- FedLTF


@ENGINES
def test_fedltf_probes_the_frozen_network(engine: type) -> None:
    """Only the head goes up, and it takes the step on the features of the network in evaluation mode."""
    method = FedLTF(rounds=10, **SGD)
    who, task, x, y = alone()
    state, (phase,) = method.start(task), method.plan(1)
    shared = exchanged(engine, who, method, state, phase, 1)
    head = stepped(
        select(state.shared, ("head.",)), lambda head: ce(logits_by_hand({**state.shared, **head}, x), y).mean()
    )
    same(shared, {**state.shared, **head})
    update = engine(who).exchange(method, state, phase, 1, [0]).update
    assert set(update.mean) == {"head.weight", "head.bias"}
    same(take("teacher.", method.merge(state, update, phase).server), shared)


@ENGINES
def test_fedltf_teaches_a_whole_student(engine: type) -> None:
    """CE exp(-v) + v + T^2 KL(teacher / T || student / T), v = KL(student || teacher): the student in training mode,
    the teacher in evaluation mode with its own statistics, which stay."""
    method = FedLTF(rounds=10, temperature=2.0, kl_s=0.5, **SGD)
    who, task, x, y = alone()
    start, (phase,) = method.start(task), method.plan(9)
    teacher = other(start.shared)
    state = State(start.shared, put("teacher.", {k: v.clone() for k, v in teacher.items()}))

    def loss(tree: Tree) -> Tensor:
        z, t = logits_by_hand(tree, x, moves=True), logits_by_hand(teacher, x)
        v = kl(z, t)
        return (ce(z, y) * (-v).exp() + v + 0.5 * 4 * kl(t / 2, z / 2)).mean()

    same(exchanged(engine, who, method, state, phase, 9), stepped(start.shared, loss))
    same(take("teacher.", state.server), teacher)
    assert set(teacher_of(start)) == {f"teacher.{name}" for name in start.shared}


# ---- FedNoRo


@ENGINES
def test_fednoro_s_global_network_teaches_noisy_clients(engine: type) -> None:
    """(1 - w) LA-CE + w KL(softmax(t / 0.8) || LA student), t by the network that came down, in evaluation mode."""
    method = FedNoRo(rounds=10, **SGD)
    who, task, x, y = alone(20)
    start, (phase,) = method.start(task), method.plan(8)
    state = replace(start, per_client={fednoro.NOISY: torch.ones(1)})
    counts = torch.bincount(y, minlength=CLASSES).float()
    assert (counts > 0).all(), "classes that are missing are the business of the head's tests"
    t = (logits_by_hand(start.shared, x) / 0.8).detach()

    def loss(tree: Tree) -> Tensor:
        z = logits_by_hand(tree, x, moves=True) + (counts / counts.sum()).log()
        return (0.2 * ce(z, y) + 0.8 * kl(t, z)).mean()

    update = engine(who).exchange(method, state, phase, 8, [0]).update
    shared = {name: value + update.each[name][0] for name, value in start.shared.items()}
    same(shared, stepped(start.shared, loss))


def test_fednoro_s_class_losses_are_those_of_the_network_in_evaluation() -> None:
    method = FedNoRo(rounds=10, **SGD)
    who, task, x, y = alone(20)
    state, (_, losses) = method.start(task), method.plan(1)
    found = LocalEngine(who).exchange(method, state, losses, 1, [0]).update.each[fednoro.LOSSES][0]
    rows = ce(logits_by_hand(state.shared, x), y)
    torch.testing.assert_close(found, torch.stack([rows[y == c].mean() for c in range(CLASSES)]), rtol=1e-4, atol=1e-5)


# ---- FedCorr


def corr(who: Sites, state: State, private: Tree, phase: Phase, level: float = 1.0) -> Visit:
    told = {fedcorr.NOISY: torch.tensor(1.0), fedcorr.LEVEL: torch.tensor(level)}
    return Visit(state.shared, private, phase, 1, who.site(0).counts, told)


@ENGINES
def test_fedcorr_s_proximal_term_spans_the_network(engine: type) -> None:
    """Two steps: the second adds beta mu (w - w_G) / ||w - w_G|| over all that is learnt, statistics left out."""
    method = FedCorr(rounds=10, beta=0.7, **{**SGD, "epochs": 2})
    who, task, x, y = alone()
    start, phase = method.start(task), method.plan(1)[0]
    state = replace(start, per_client={fedcorr.NOISY: torch.zeros(1), fedcorr.LEVEL: torch.full((1,), 0.5)})
    w = stepped(start.shared, lambda tree: ce(logits_by_hand(tree, x, moves=True), y).mean())
    moved = {name: w[name] - start.shared[name] for name in learnt(w)}
    norm = torch.cat([value.flatten() for value in moved.values()]).norm()
    w = stepped(w, lambda tree: ce(logits_by_hand(tree, x, moves=True), y).mean())
    w = {name: value - LR * 0.7 * 0.5 * moved[name] / norm if name in moved else value for name, value in w.items()}
    same(exchanged(engine, who, method, state, phase, 1), w)
    same(take(fedcorr.OWN, private(who)[0]), w)


def test_fedcorr_corrects_labels_with_the_network_that_it_keeps() -> None:
    """Training on rows of which a kept network, in evaluation mode, is sure and whose loss is high: on its labels."""
    method = FedCorr(rounds=10, confidence=0.3, **SGD)
    who, task, x, y = alone(30)
    start, judge = method.start(task), other(method.start(task).shared, 1.0)
    p = logits_by_hand(judge, x).softmax(1)
    losses = -p[torch.arange(30), y].log()
    above = float(losses.median())
    expected = torch.where((p.max(1).values > 0.3) & (losses > above), p.argmax(1), y)
    assert 3 <= int((expected != y).sum()) <= 15
    kept = {**put(fedcorr.OWN, start.shared), **put(fedcorr.JUDGE, judge), fedcorr.ABOVE: torch.tensor(above)}
    visit = corr(who, start, kept, method.plan(10)[0])
    before = {name: value.clone() for name, value in judge.items()}
    sends, _ = work(method, visit, who.site(0), own_optimizer)
    w = stepped(start.shared, lambda tree: ce(logits_by_hand(tree, x, moves=True), expected).mean())
    same({name: start.shared[name] + value for name, value in sends.items()}, w)
    same(judge, before)


def test_fedcorr_s_dimension_and_level_are_those_of_the_own_network() -> None:
    """LID of the own network's probabilities; its losses are split, and the global network ranks the rows."""
    method = FedCorr(rounds=10, **SGD)
    who, task, x, y = alone(40)
    start = method.start(task)
    own = other(start.shared, 1.0)
    kept = {**put(fedcorr.OWN, own), **put(fedcorr.JUDGE, start.shared), fedcorr.ABOVE: torch.zeros(())}
    _, dimension, correct = method.plan(1)
    rows, labels = who.site(0).rows("train")
    sends, _ = method.measure(rows.read(), labels, corr(who, start, kept, dimension))
    by_hand = intrinsic_dimension(logits_by_hand(own, x).softmax(1))
    assert float(sends[fedcorr.LID]) == pytest.approx(float(by_hand), rel=1e-3)
    sends, mine = method.measure(rows.read(), labels, corr(who, start, kept, correct))
    level = float(high_group(ce(logits_by_hand(own, x), y)).float().mean())
    assert 0 < level < 1
    assert float(sends[fedcorr.MU]) == pytest.approx(level)
    losses = np.sort(ce(logits_by_hand(start.shared, x), y).numpy())[::-1]
    assert int((losses > float(mine[fedcorr.ABOVE])).sum()) == int(level * 0.5 * 40)
    same(take(fedcorr.JUDGE, mine), start.shared)
