"""FedProx, SCAFFOLD, FedNova, FedAvgM and FedAdam: heads that differ in how clients or the server step.

The references are loops in numpy on the two clients of test_steps: a owns row 0, b rows 1 and 2. Where every step sees
all rows of a client, the order of rows does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_steps import ENGINES, X, Y, two_clients

from backbones import reading_images
from federations import CLASSES, TASK, clients, played, private, private_of
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Method, State, Task
from fedkeel.core.tree import Tree, learnt, select, take
from fedkeel.engines.base import schedule
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.fednova import FedNova
from fedkeel.methods.heads.fedprox import FedProx
from fedkeel.methods.heads.ova_lp import OvaLP
from fedkeel.methods.heads.scaffold import Scaffold
from fedkeel.methods.heads.server_optimizers import FedAdam, FedAvgM
from fedkeel.runs.config import load

TWO = Task(dim=2, classes=3, clients=2, seed=0)
ROWS = [np.array([0]), np.array([1, 2])]
LR = 0.6
FULL_BATCH = {"optimizer": "sgd", "lr": LR, "batch": 10, "weight_decay": 0.0}


HEADS = pytest.mark.parametrize("head", ["softmax", "one-vs-all"])


def gradient(W: np.ndarray, rows: np.ndarray, head: str) -> np.ndarray:
    """Of the mean loss of some rows: sum over rows of (p - 1[y = c]) x / number of rows, p of all classes together or
    of each by itself."""
    z = np.exp(X[rows] @ W.T)
    p = z / z.sum(1, keepdims=True) if head == "softmax" else z / (1 + z)
    return (p - np.eye(3)[Y[rows]]).T @ X[rows].astype(np.float64) / len(rows)


def after(method: Method, engine: type, rounds: int) -> tuple[Tree, Tree]:
    state = played(method, engine(two_clients()), method.start(TWO), rounds)
    return state.shared, state.server


def same(ours: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-6)


@HEADS
@ENGINES
def test_fedprox(engine: type, head: str) -> None:
    """w <- w - lr (g(w) + mu (w - w^t)): the term is zero in a round's first step and shows from the second on."""
    mu, W = 0.5, np.zeros((3, 2))
    for _ in range(2):
        ends = []
        for rows in ROWS:
            w = W
            for _ in range(3):
                w = w - LR * (gradient(w, rows, head) + mu * (w - W))
            ends.append(w)
        W = (ends[0] + 2 * ends[1]) / 3
    shared, _ = after(FedProx(mu=mu, epochs=3, head=head, **FULL_BATCH), engine, rounds=2)
    same(shared["head.weight"], W)


@HEADS
@ENGINES
def test_scaffold(engine: type, head: str) -> None:
    """Algorithm 1, option II, line by line: two steps per round, both clients, three rounds, eta_g = 0.7."""
    W, c, own, steps, server_lr = np.zeros((3, 2)), np.zeros((3, 2)), [np.zeros((3, 2))] * 2, 2, 0.7
    for _ in range(3):
        dy, dc = [], []
        for client, rows in enumerate(ROWS):
            y = W
            for _ in range(steps):
                y = y - LR * (gradient(y, rows, head) - own[client] + c)
            new = own[client] - c + (W - y) / (steps * LR)
            dy.append(y - W)
            dc.append(new - own[client])
            own[client] = new
        W, c = W + server_lr * (dy[0] + dy[1]) / 2, c + (dc[0] + dc[1]) / 2
    shared, server = after(Scaffold(server_lr=server_lr, epochs=steps, head=head, **FULL_BATCH), engine, rounds=3)
    same(shared["head.weight"], W)
    same(server["c.head.weight"], c)


@HEADS
@ENGINES
def test_scaffold_with_half_of_the_clients(engine: type, head: str) -> None:
    """One step of client b alone: c_b+ = c_b - c + g = g, and c = |S|/N mean(dc) = g / 2, g the gradient at zero."""
    method, who = Scaffold(participation=0.5, epochs=1, head=head, **FULL_BATCH), two_clients()
    state, (phase,) = method.start(TWO), method.plan(1)
    update = engine(who).exchange(method, state, phase, 1, [1]).update
    state = method.merge(state, update, phase)
    g = gradient(np.zeros((3, 2)), ROWS[1], head)
    same(state.shared["head.weight"], -LR * g)
    same(state.server["c.head.weight"], g / 2)
    same(private(who)[1]["c_i.head.weight"], g)


def of_all(engine: Simulated, method: Scaffold, state: State, name: str) -> torch.Tensor:
    """The mean of c_i over all clients that hold rows, visited or not."""
    kept = [engine.mine(method, state, client)[f"c_i.{name}"] for client in engine.roster.able]
    return torch.stack(kept).double().mean(0)


def test_the_mean_of_the_control_variates_is_the_server_s() -> None:
    """With everybody taking part every round c is the mean of all c_i."""
    method, engine = Scaffold(lr=0.05, batch=8, bias=True), LocalEngine(clients())
    state = played(method, engine, method.start(TASK), rounds=4)
    assert len(private_of(engine)) == 6
    for name, c in take("c.", state.server).items():
        assert float(c.abs().max()) > 0.01
        assert float((of_all(engine, method, state, name) - c).abs().max()) <= 1e-6


@pytest.mark.parametrize("network", [False, True], ids=["head", "network"])
@pytest.mark.parametrize("participation", [0.35, 0.5, 0.8])
def test_the_mean_of_the_control_variates_with_lost_replies(participation: float, network: bool) -> None:
    """Also where 0.35 and 0.8 of six clients are two and five, and where the replies of two of them never arrive."""
    usual = {"participation": participation, "lr": 0.05, "batch": 8, "epochs": 1}
    method = Scaffold(**usual, tune="network") if network else Scaffold(**usual, bias=True)
    who, task = reading_images(clients(), CLASSES) if network else (clients(), TASK)
    lost = ("site-3", "site-5")
    engine = WireEngine(who, transport=lambda client, reply: b"" if client in lost else reply)
    state = played(method, engine, method.start(task), rounds=3 if network else 6)
    assert 0 < len(private_of(engine)) <= 4, "two never change their c_i"
    means = {name: of_all(engine, method, state, name) for name in take("c.", state.server)}
    assert means.keys() == learnt(state.shared).keys()
    for name, c in take("c.", state.server).items():
        assert float((means[name] - c).abs().max()) <= 1e-6
    assert max(float(c.abs().max()) for c in means.values()) > 0.01
    (phase,) = method.plan(1)
    assert set(select(state.down, phase.gets)) == set(state.down) - {"clients"}, "how many they are stays on the server"


@HEADS
@ENGINES
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova(engine: type, momentum: float, head: str) -> None:
    """One row per step, two epochs: a takes two steps, b four, in the order of the engines' schedule. |a_i|_1 is
    counted here as a sum: the gradient of step k is in the last tau - k + 1 moves, with weights 1, rho, rho^2, ...
    """
    method = FedNova(momentum=momentum, epochs=2, head=head, **{**FULL_BATCH, "batch": 1})
    who, (phase,) = two_clients(), method.plan(1)
    directions, lengths = [], []
    for client in (0, 1):
        visits = schedule(who.seed, who.names[client], len(ROWS[client]), 1, phase)
        w, v, order = np.zeros((3, 2)), np.zeros((3, 2)), [ROWS[client][places] for places, _ in visits]
        for rows in order:
            v = momentum * v + gradient(w, rows, head)
            w = w - LR * v
        length = sum(momentum**later for last in range(len(order)) for later in range(last + 1))
        directions.append(-w / (LR * length))
        lengths.append(length)
    tau_eff = (lengths[0] + 2 * lengths[1]) / 3
    shared, server = after(method, engine, rounds=1)
    same(shared["head.weight"], -tau_eff * LR * (directions[0] + 2 * directions[1]) / 3)
    same(server["length"], np.array([tau_eff]))


@HEADS
@ENGINES
def test_server_momentum(engine: type, head: str) -> None:
    """Where every client takes one step on all its rows, Delta_t is -lr times the gradient of all rows together."""
    beta, server_lr, W, v = 0.8, 0.5, np.zeros((3, 2)), np.zeros((3, 2))
    for _ in range(3):
        v = beta * v - LR * gradient(W, np.arange(3), head)
        W = W + server_lr * v
    shared, server = after(FedAvgM(beta=beta, server_lr=server_lr, epochs=1, head=head, **FULL_BATCH), engine, rounds=3)
    same(shared["head.weight"], W)
    same(server["v.head.weight"], v)


@HEADS
@ENGINES
def test_server_adam(engine: type, head: str) -> None:
    """Delta_t as above; v starts at tau^2, nothing is corrected for bias."""
    tau, W, m, v = 0.01, np.zeros((3, 2)), np.zeros((3, 2)), np.full((3, 2), 0.01**2)
    for _ in range(3):
        delta = -LR * gradient(W, np.arange(3), head)
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        W = W + 0.2 * m / (np.sqrt(v) + tau)
    shared, server = after(FedAdam(tau=tau, server_lr=0.2, epochs=1, head=head, **FULL_BATCH), engine, rounds=3)
    same(shared["head.weight"], W)
    same(server["m.head.weight"], m)
    same(server["v.head.weight"], v)


EQUAL: dict[str, tuple[Method, Method, tuple[int, ...]]] = {
    "fedprox without a pull": (FedProx(mu=0, batch=8), FedAvg(batch=8), (23, 8, 50)),
    "fedavgm without momentum": (FedAvgM(beta=0, batch=8), FedAvg(batch=8), (23, 8, 50)),
    "one-vs-all heads are those of ova-lp without stages": (
        FedAvg(head="one-vs-all", batch=50),  # one batch: the order of rows is that of a phase's name
        OvaLP(stages=1, batch=50),
        (23, 8, 50),
    ),
    "fednova where all take equally many steps": (
        FedNova(lr=0.1, momentum=0.5, batch=8),
        FedAvg(optimizer="sgd", lr=0.1, momentum=0.5, batch=8),
        (21, 17, 24),
    ),
}


@pytest.mark.parametrize(("method", "plain", "sizes"), EQUAL.values(), ids=EQUAL.keys())
def test_what_is_left_is_another_method(method: Method, plain: Method, sizes: tuple[int, ...]) -> None:
    ours, theirs = (played(one, LocalEngine(clients(sizes)), one.start(TASK), 3).shared for one in (method, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_fednova_undoes_what_many_steps_do_to_fedavg() -> None:
    """With very different numbers of steps the two are far apart."""
    pair = FedNova(lr=0.1, batch=8), FedAvg(optimizer="sgd", lr=0.1, batch=8)
    ours, theirs = (played(one, LocalEngine(clients()), one.start(TASK), 1).shared["head.weight"] for one in pair)
    assert float((ours - theirs).abs().max()) > 0.05


@pytest.mark.parametrize("method", [FedAvgM(), FedAdam()], ids=lambda method: method.name)
def test_the_server_s_moments_stay_there(method: Method) -> None:
    down = []
    for one in (method, FedAvg()):
        down.append(WireEngine(clients()).exchange(one, one.start(TASK), one.plan(1)[0], 1, [0, 1]).bytes_down)
    assert down[0] == down[1]


REFUSED: dict[str, Callable[[], object]] = {
    "fednova.*cannot normalise": lambda: load(None, ["method.name=fednova", "method.optimizer=adamw"]),
    "optimizer.*scaffold.*plain": lambda: load(None, ["method.name=scaffold", "method.optimizer=adamw"]),
    "momentum.*scaffold.*plain": lambda: load(None, ["method.name=scaffold", "method.momentum=0.9"]),
}


@pytest.mark.parametrize(("message", "asked"), REFUSED.items(), ids=REFUSED.keys())
def test_optimizers_that_do_not_fit_are_refused(message: str, asked: Callable[[], object]) -> None:
    with pytest.raises(FedkeelError, match=message) as refusal:
        asked()
    assert "\n" not in str(refusal.value)
