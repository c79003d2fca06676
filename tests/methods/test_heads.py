"""FedRS, FedOVA and FedABC, which treat absent classes each in their way, and symmetric cross-entropy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_steps import ENGINES, one_round, two_clients

from federations import TASK, clients, played
from fedkeel.core.method import Batch, Method, State, Task, Visit
from fedkeel.core.rng import generator
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.methods.heads.fedabc import FedABC
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.fedova import FedOVA
from fedkeel.methods.heads.fedrs import FedRS
from fedkeel.methods.heads.symmetric_ce import SymmetricCE

TWO = Task(dim=2, classes=3, clients=2, seed=0)
ONE_STEP = {"optimizer": "sgd", "lr": 0.6, "epochs": 1, "batch": 10, "weight_decay": 0.0}
HEADS = {
    "fedrs": FedRS(alpha=0.3),
    "fedova": FedOVA(),
    "fedabc": FedABC(ratio=0.7, gamma=1.5),
    "symmetric-ce": SymmetricCE(alpha=0.4, beta=0.8),
}


def pure() -> Sites:
    """The clients of test_steps: a owns (1, 0) of class 0, b (0, 2) and (3, 1) of class 1. Nobody holds class 2."""
    return replace(two_clients(), classes=3)


def mixed() -> Sites:
    """The same rows, with (3, 1) of class 0."""
    return replace(pure(), y=torch.tensor([0, 1, 0]))


@ENGINES
def test_fedrs(engine: type) -> None:
    """As FedAvg's step in test_steps, with the rows of absent classes moved half as far: at zero psi = 1/3 whatever s,
    and the gradient is s_c (1/3 - 1[y = c]) x. lr 0.6, one full-batch step:
    a (class 0):  W = [(.4, 0), (-.1, 0), (-.1, 0)]
    b (class 1):  W = [(-.15, -.15), (.6, .6), (-.15, -.15)]
    (W_a + 2 W_b) / 3 = [(.1/3, -.1), (1.1/3, .4), (-.4/3, -.1)].
    """
    method = FedRS(alpha=0.5, **ONE_STEP)
    state = played(method, engine(pure()), method.start(TWO))
    expected = torch.tensor([[0.1 / 3, -0.1], [1.1 / 3, 0.4], [-0.4 / 3, -0.1]])
    torch.testing.assert_close(state.shared["head.weight"], expected)


@ENGINES
def test_fedova(engine: type) -> None:
    """q = 1/2 at zero, so a row moves its class by +0.3 x and the other classes of the client by -0.3 x (lr 0.6).
    a: w_0 = .3 (1, 0).  b, mean of two rows: w_0 = .15 [(3, 1) - (0, 2)] = (.45, -.15), w_1 = (-.45, .15).
    Class 0 has two owners with 1 and 2 rows: ((.3, 0) + 2 (.45, -.15)) / 3 = (.4, -.1). Class 1 has one owner, so it is
    not diluted: (-.45, .15). Class 2 has none: 0. The share of rows whose clients hold each class: (1, 2/3, 0).
    """
    method = FedOVA(bias=True, **ONE_STEP)
    state = played(method, engine(mixed()), method.start(TWO))
    torch.testing.assert_close(state.shared["head.weight"], torch.tensor([[0.4, -0.1], [-0.45, 0.15], [0.0, 0.0]]))
    torch.testing.assert_close(state.shared["head.bias"], torch.tensor([0.3 / 3, 0.0, 0.0]))
    torch.testing.assert_close(state.server["owned"], torch.tensor([1.0, 2 / 3, 0.0]))


@ENGINES
def test_fedova_leaves_a_row_without_owners_alone(engine: type) -> None:
    """Weight decay would shrink it on every client."""
    method = FedOVA(weight_decay=0.5)
    start = State({"head.weight": torch.ones(3, 2)}, method.start(TWO).server)
    rows = played(method, engine(mixed()), start).shared["head.weight"]
    assert torch.equal(rows[2], torch.ones(2))
    assert not torch.isclose(rows[:2], torch.ones(2, 2)).any()


@ENGINES
def test_fedabc(engine: type) -> None:
    """p = 1/2 at zero and d/dz of -(1 - p)^2 log p is (1/4)(log(1/2) - 1/2) = -s. Every client has as many negatives
    as positives of the classes it holds, or none, so all are kept: a: w_0 = .6 s (1, 0);
    b: w_0 = .3 s [(3, 1) - (0, 2)] = s (.9, -.3), w_1 = s (-.9, .3).
    By rows: w_0 = s ((.6, 0) + (1.8, -.6)) / 3 = s (.8, -.2), w_1 = s (-.6, .2).
    """
    s = (np.log(2) + 0.5) / 4
    method = FedABC(**ONE_STEP)
    state = played(method, engine(mixed()), method.start(TWO))
    expected = s * np.array([[0.8, -0.2], [-0.6, 0.2], [0.0, 0.0]])
    np.testing.assert_allclose(state.shared["head.weight"].numpy(), expected, rtol=1e-5)


def test_fedabc_keeps_as_many_negatives_as_asked() -> None:
    """10, 30 and no rows of three classes, ratio 1: a row of class 1 is a negative of class 0 with probability 10/30,
    one of class 0 is always one of class 1, nothing is kept of class 2. The 100 numbers u are evenly spaced."""
    u, visit = torch.arange(100) / 100, Visit({}, {}, FedABC().plan(1)[0], counts=torch.tensor([10.0, 30.0, 0.0]))
    kept = {}
    for label in (0, 1):
        positive = torch.eye(3)[label].expand(100, 3)
        kept[label] = FedABC().keep(positive, Batch(u, u, u, u), visit).mean(0)
    torch.testing.assert_close(kept[0], torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(kept[1], torch.tensor([0.34, 1.0, 0.0]))


@ENGINES
def test_symmetric_ce(engine: type) -> None:
    """At zero p_y = 1/3: FedAvg's step of test_steps times alpha + 4 beta / 3 = 0.1 + 4/3."""
    ours = one_round(SymmetricCE(**ONE_STEP), engine).shared["head.weight"]
    plain = torch.tensor([[-0.2 / 3, -0.2], [1 / 3, 0.4], [-0.8 / 3, -0.2]])
    torch.testing.assert_close(ours, (0.1 + 4 / 3) * plain)


def stacked() -> tuple[torch.Tensor, Batch, Visit]:
    """Logits, rows and counts of two clients with five rows and four classes; neither holds class 3."""
    draw = generator(0, "stacked heads")
    z, u = torch.from_numpy(2 * draw.normal(size=(2, 5, 4))), torch.from_numpy(draw.random((2, 5)))
    y = torch.tensor([[0, 1, 1, 2, 0], [2, 2, 2, 1, 2]])
    counts = torch.stack([torch.bincount(labels, minlength=4) for labels in y]).double()
    visit = Visit({}, {}, FedAvg().plan(1)[0], counts=counts)
    return z, Batch(torch.empty(2, 5, 0), y, torch.full((2, 5), 0.2), u), visit


@pytest.mark.parametrize("method", HEADS.values(), ids=HEADS.keys())
def test_the_residual_is_the_gradient_of_the_rows(method: LinearProbe) -> None:
    """On a stack of clients, against automatic differentiation and against one client at a time."""
    z, batch, visit = stacked()
    ours = method.residual(z.clone(), batch, visit)
    torch.testing.assert_close(ours, LinearProbe.residual(method, z, batch, visit))
    for client in (0, 1):
        alone = Batch(batch.x[client], batch.y[client], batch.weight[client], batch.u[client])
        one = replace(visit, counts=visit.counts[client])
        torch.testing.assert_close(method.residual(z[client].clone(), alone, one), ours[client])
        torch.testing.assert_close(method.rows(z[client], alone, one), method.rows(z, batch, visit)[client])


def test_the_losses_as_the_papers_write_them() -> None:
    z, batch, visit = stacked()
    logits, y, u = z[0].numpy(), batch.y[0].numpy(), batch.u[0].numpy()
    held, hot = np.array([1.0, 1.0, 1.0, 0.0]), np.eye(4)[y]
    got = {name: method.rows(z, batch, visit)[0].numpy() for name, method in HEADS.items()}

    scale = np.where(held > 0, 1, 0.3)
    psi = np.exp(scale * logits) / np.exp(scale * logits).sum(1, keepdims=True)
    np.testing.assert_allclose(got["fedrs"], -np.log(psi[np.arange(5), y]))

    q = 1 / (1 + np.exp(-logits))
    entries = -hot * np.log(q) - (1 - hot) * np.log(1 - q)
    np.testing.assert_allclose(got["fedova"], (entries * held).sum(1))

    right = np.where(hot > 0, q, 1 - q)
    counts = np.array([2, 2, 1, 0])
    keep = np.where(hot > 0, 1, u[:, None] < 0.7 * counts / (5 - counts))
    assert 0 < keep.mean() < 1
    np.testing.assert_allclose(got["fedabc"], (keep * -((1 - right) ** 1.5) * np.log(right)).sum(1))

    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    cross, reverse = -(hot * np.log(p)).sum(1), -(p * np.where(hot > 0, 0, -4)).sum(1)
    np.testing.assert_allclose(got["symmetric-ce"], 0.4 * cross + 0.8 * reverse)


EQUAL = {
    "fedrs with alpha 1": FedRS(alpha=1, batch=8),
    "symmetric-ce without the reverse": SymmetricCE(alpha=1, beta=0, batch=8),
}


@pytest.mark.parametrize("method", EQUAL.values(), ids=EQUAL.keys())
def test_what_is_left_is_fedavg(method: Method) -> None:
    pair = method, FedAvg(batch=8)
    ours, theirs = (played(one, LocalEngine(clients()), one.start(TASK), 3).shared for one in pair)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
