"""FedSAM and FedUV: steps of the small CNN taken again in plain PyTorch, terms by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from backbones import gradient_by_hand, logits_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played
from fedkeel.core.tree import Tree, learnt
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.networks.base import Network
from fedkeel.methods.networks.fedsam import FedSAM
from fedkeel.methods.networks.feduv import FedUV, crowding, missing_variance

LR = 0.3
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "batch": 50}
ENGINES = pytest.mark.parametrize("engine", [LocalEngine, WireEngine])


@ENGINES
def test_fedsam_steps_with_the_gradient_at_the_worst_point(engine: type) -> None:
    """w - eta grad F(w + rho g / |g|), g = grad F(w); statistics follow the pass at w alone."""
    method = FedSAM(rho=0.4, **SGD)
    who, task = reading_images(clients((9,)), CLASSES)
    start, (x, y) = method.start(task), pictures_of(who, 0)
    w = {name: value.clone() for name, value in start.shared.items()}
    g = gradient_by_hand(w, x, y, moves=True)
    length = np.sqrt(sum(float((value.double() ** 2).sum()) for value in g.values()))
    worst = {name: (value + 0.4 / length * g[name] if name in g else value).clone() for name, value in w.items()}
    expected = plain_step(w, gradient_by_hand(worst, x, y, moves=True), LR)
    same(played(method, engine(who), start).shared, expected)
    plain = plain_step(w, g, LR)
    assert max(float((plain[name] - expected[name]).abs().max()) for name in g) > 1e-3, "rho matters"


@pytest.mark.parametrize("method", [FedSAM(rho=0, **SGD), FedUV(variance=0, uniformity=0, **SGD)], ids=lambda m: m.name)
def test_without_their_part_they_are_fedavg(method: Network) -> None:
    plain = FedAvg(tune="network", epochs=1, weight_decay=0.0, **SGD)
    who, task = reading_images(clients((6, 9, 1)), CLASSES)
    ours, theirs = (played(one, LocalEngine(who), one.start(task), rounds=2).shared for one in (method, plain))
    same(ours, theirs)


def features_by_hand(tree: Tree, x: torch.Tensor) -> torch.Tensor:
    """What the head of the small CNN reads, by a head that passes it on."""
    width = tree["body.last.bias"].shape[0]
    through = {"head.weight": torch.eye(width), "head.bias": torch.zeros(width)}
    return logits_by_hand({**{name: value.clone() for name, value in tree.items()}, **through}, x, moves=True)


@ENGINES
def test_feduv(engine: type) -> None:
    """CE + 0.9 mean_c max(0, 1 / sqrt(C) - std(p_c)) + 0.7 mean_{i < j} exp(-|z_i - z_j|^2 / median)."""
    method = FedUV(variance=0.9, uniformity=0.7, **SGD)
    who, task = reading_images(clients((9,)), CLASSES)
    start, (x, y) = method.start(task), pictures_of(who, 0)
    tree = {name: value.clone() for name, value in start.shared.items()}
    leaves = {name: value.requires_grad_() for name, value in learnt(tree).items()}
    z = features_by_hand(tree, x)
    logits = logits_by_hand(tree, x, moves=True)
    p = logits.softmax(1)
    missing = torch.stack([torch.relu(torch.eye(CLASSES).std(0)[c] - p[:, c].std()) for c in range(CLASSES)])
    assert (missing > 0).any()
    pairs = torch.stack([((z[i] - z[j]) ** 2).sum() for i in range(9) for j in range(i + 1, 9)])
    loss = cross_entropy(logits, y) + 0.9 * missing.mean() + 0.7 * (-pairs / pairs.median()).exp().mean()
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    expected = plain_step({name: value.detach() for name, value in tree.items()}, grads, LR)
    same(played(method, engine(who), start).shared, expected)


def test_feduv_s_terms() -> None:
    """0 for one-hot predictions of each class once, 1 / sqrt(C) for constant ones; distances 1, 1, 2 and 0 by hand."""
    assert float(missing_variance(torch.eye(5))) == pytest.approx(0, abs=1e-6)
    assert float(missing_variance(torch.full((7, 4), 0.25))) == pytest.approx(0.5, abs=1e-5)
    assert float(crowding(torch.tensor([[0.0, 0], [1, 0], [0, 1]]))) == pytest.approx((2 * np.exp(-1) + np.exp(-2)) / 3)
    two_of_three = torch.tensor([[1.0, 0, 0], [0, 1, 0]])  # deviations sqrt(1/2), sqrt(1/2), 0: too much is not missed
    assert float(missing_variance(two_of_three)) == pytest.approx(1 / np.sqrt(3) / 3, abs=1e-5)
    mostly = crowding(torch.tensor([[0.0], [0.0], [0.0], [2.0]]))  # squares 0, 0, 0, 4, 4, 4
    assert float(mostly) == pytest.approx((3 + 3 * np.exp(-1)) / 6)
    twice = crowding(torch.tensor([[0.0], [0.0], [2.0]]))  # squares 0, 4, 4: the median of those apart is 4
    assert float(twice) == pytest.approx((1 + 2 * np.exp(-1)) / 3)


def test_feduv_has_no_slope_that_is_no_number() -> None:
    """Rows that are all alike, and a single one."""
    for rows in (torch.zeros(4, 3), torch.ones(2, 3)):
        features = rows.clone().requires_grad_()
        (crowding(features) + missing_variance((features @ torch.eye(3)).softmax(1))).backward()  # type: ignore[no-untyped-call]
        assert features.grad is None or torch.isfinite(features.grad).all()
    who, task = reading_images(clients((1,)), CLASSES)
    shared = played(FedUV(**SGD), LocalEngine(who), FedUV(**SGD).start(task)).shared
    assert all(torch.isfinite(value).all() for value in shared.values())
