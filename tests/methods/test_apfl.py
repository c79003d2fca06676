"""APFL against its three steps, each taken by itself with gradients of the network written down again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backbones import gradient_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.tree import Tree, learnt
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.networks.apfl import APFL, mixture, own

LR = 0.3
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "batch": 50, "epochs": 2, "rounds": 2}


def mixed(v: Tree, w: Tree, alpha: float) -> Tree:
    """vbar, with the statistics of v."""
    return {name: alpha * v[name] + (1 - alpha) * w[name] if name in learnt(w) else v[name] for name in w}


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
@pytest.mark.parametrize("adaptive", [True, False])
def test_two_rounds_of_algorithm_1(engine: type, adaptive: bool) -> None:
    """Two full-batch steps a round; v goes on in the second round and w starts at the mean of both clients."""
    method = APFL(alpha=0.4, adaptive=adaptive, **SGD)
    who, task = reading_images(clients((6, 9)), CLASSES)
    state = played(method, engine(who), method.start(task), rounds=2)
    shared = method.start(task).shared
    v, alpha = [{name: value.clone() for name, value in shared.items()} for _ in range(2)], [0.4, 0.4]
    for _ in range(2):
        trained = []
        for client in range(2):
            x, y = pictures_of(who, client)
            w = {name: value.clone() for name, value in shared.items()}
            for _ in range(2):
                vbar = mixed(v[client], w, alpha[client])
                at_vbar = gradient_by_hand(vbar, x, y, moves=True)
                slope = sum(float(((v[client][name] - w[name]) * at_vbar[name]).sum()) for name in at_vbar)
                w = plain_step(w, gradient_by_hand(w, x, y, moves=True), LR)
                moved = plain_step(v[client], at_vbar, LR * alpha[client])
                v[client] = {name: moved[name] if name in at_vbar else vbar[name] for name in moved}
                alpha[client] -= LR * slope if adaptive else 0
            trained.append(w)
        shared = {name: (6 * trained[0][name] + 9 * trained[1][name]) / 15 for name in shared}
    same(state.shared, shared)
    for client in range(2):
        mine = private(who)[client]
        same({name: mine[own(name)] for name in shared}, v[client])
        assert float(mine["alpha"]) == pytest.approx(alpha[client], abs=1e-5)
        assert (abs(alpha[client] - 0.4) > 1e-3) == adaptive
        same(mixture(state.shared, mine), mixed(v[client], shared, alpha[client]))
    ours, theirs = method.predict(state, private(who)[1], who.x), method.predict(state, {}, who.x)
    assert (ours - theirs).abs().max() > 1e-3


def test_what_is_shared_is_fedavg() -> None:
    how = {"rounds": 2, "batch": 4, "epochs": 1, "lr": 0.01, "weight_decay": 0.0}
    method, plain = APFL(**how), FedAvg(tune="network", **how)
    who, task = reading_images(clients((6, 9, 5)), CLASSES)
    ours = played(method, LocalEngine(who), method.start(task), rounds=2).shared
    theirs = played(plain, LocalEngine(who), plain.start(task), rounds=2).shared
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def test_alpha_stays_between_0_and_1() -> None:
    """Steps that are far too long: outside, nothing pulls it further, and a visit ends inside."""
    for start in (0.0, 1.0):
        method = APFL(alpha=start, **{**SGD, "lr": 3.0, "rounds": 3})
        who, task = reading_images(clients((6, 9)), CLASSES)
        played(method, LocalEngine(who), method.start(task), rounds=3)
        assert all(0 <= float(mine["alpha"]) <= 1 for mine in private(who).values())
    w, v = {"head.weight": torch.tensor([1.0])}, {own("head.weight"): torch.tensor([3.0])}
    for alpha, mixed in ((-0.5, 1.0), (0.25, 1.5), (1.5, 3.0)):
        assert mixture(w, {**v, "alpha": torch.tensor([alpha])})["head.weight"].item() == mixed
