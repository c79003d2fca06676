"""Ditto: FedAvg beside training that is held near it; not held at all, it is training alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from backbones import gradient_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.tree import learnt, take
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.store import Store
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.networks.ditto import Ditto

HOW = {"rounds": 3, "batch": 50, "epochs": 1, "lr": 0.01, "weight_decay": 0.0}
SIZES = (6, 9, 5)


def test_without_the_pull_a_client_s_model_is_that_of_a_client_alone() -> None:
    """Rows make a single batch, whose order does not matter."""
    method, alone = Ditto(lam=0.0, **HOW), FedAvg(tune="network", **HOW)
    who, task = reading_images(clients(SIZES), CLASSES)
    state = played(method, LocalEngine(who), method.start(task), rounds=3)
    others = replace(who, store=Store())
    for client in range(3):
        own = alone.start(task).shared
        for round in (1, 2, 3):
            phase = alone.plan(round)[0]
            update = LocalEngine(others).exchange(alone, type(state)(own), phase, round, [client]).update
            assert update is not None
            own = {name: value + update.mean[name] for name, value in own.items()}
        same(take("own.", private(who)[client]), own)


def test_the_shared_model_is_that_of_fedavg() -> None:
    method, plain = Ditto(lam=3.0, **{**HOW, "batch": 4}), FedAvg(tune="network", **{**HOW, "batch": 4})
    who, task = reading_images(clients(SIZES), CLASSES)
    ours = played(method, LocalEngine(who), method.start(task), rounds=2).shared
    theirs = played(plain, LocalEngine(who), plain.start(task), rounds=2).shared
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def test_the_second_step_is_pulled_towards_the_model_that_came_down() -> None:
    """v2 = v1 - 0.2 (grad F(v1) + 0.5 (v1 - w1)), where v1 = w0 - 0.2 grad F(w0); statistics are not pulled."""
    method = Ditto(lam=0.5, optimizer="sgd", rounds=2, lr=0.2, batch=50)
    who, task = reading_images(clients(SIZES), CLASSES)
    start = method.start(task)
    w1 = played(method, LocalEngine(who), start).shared
    x, y = pictures_of(who, 1)
    v = {name: value.clone() for name, value in start.shared.items()}
    v = plain_step(v, gradient_by_hand(v, x, y, moves=True), 0.2)
    same(take("own.", private(who)[1]), v)
    grads = gradient_by_hand(v, x, y, moves=True)
    pulled = {name: grad + 0.5 * (v[name] - w1[name]) for name, grad in grads.items()}
    who.store.forget_after(-1)
    played(method, LocalEngine(who), start, rounds=2)
    same(take("own.", private(who)[1]), plain_step(v, pulled, 0.2))
    assert max((v[name] - w1[name]).abs().max() for name in learnt(v)) > 1e-2, "the pull is not nothing"
