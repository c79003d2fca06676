"""FedAWA: its objective by numpy, its steps by finite differences and Adam written down again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from test_optimizing_baselines import FULL_BATCH, LR, ROWS, TWO, gradient
from test_steps import two_clients

from federations import TASK, clients, played
from fedkeel.core.method import State, Update
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.fedawa import LOGITS, FedAWA

DRAW = np.random.default_rng(0)
BEFORE, MOVES = DRAW.normal(size=(2, 3)), DRAW.normal(size=(4, 2, 3))
N = np.array([10.0, 20.0, 30.0, 15.0])


def weights(a: np.ndarray, n: np.ndarray) -> np.ndarray:
    return n * np.exp(a) / (n * np.exp(a)).sum()


def objective(a: np.ndarray, n: np.ndarray, moves: np.ndarray, before: np.ndarray) -> float:
    """sum_k lambda_k (|tau_k - tau| + 1 - cos(theta_k, theta)), client by client; 0 has no direction."""
    lam, theta = weights(a, n), before.ravel()
    tau = sum(share * move.ravel() for share, move in zip(lam, moves, strict=True))
    total = 0.0
    for share, move in zip(lam, moves, strict=True):
        mine = theta + move.ravel()
        length = np.sqrt((mine**2).sum() * (theta**2).sum())
        cosine = (mine * theta).sum() / length if length > 1e-12 else 0.0
        total += share * (np.sqrt(((move.ravel() - tau) ** 2).sum()) + 1 - cosine)
    return float(total)


def adam(a: np.ndarray, steps: int, lr: float, *of: np.ndarray) -> np.ndarray:
    """Adam with the slopes of central differences."""
    m, v = np.zeros_like(a), np.zeros_like(a)
    for t in range(1, steps + 1):
        g = np.array([(objective(a + e, *of) - objective(a - e, *of)) / 2e-6 for e in 1e-6 * np.eye(len(a))])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        a = a - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return a


def merged(method: FedAWA, a: list[float], moves: np.ndarray, who: list[int]) -> State:
    state = State({"head.weight": torch.from_numpy(BEFORE).float()}, {LOGITS: torch.tensor(a, dtype=torch.float64)})
    each = {"head.weight": torch.from_numpy(moves).float()}
    return method.merge(
        state, Update({}, each, torch.tensor(who), torch.from_numpy(N[: len(who)]), 1), method.plan(1)[0]
    )


def test_the_server_learns_its_weights() -> None:
    """Of clients 4, 0, 2 and 3; client 1 took no part and keeps its own."""
    start = [0.1, 0.7, 0.0, -0.2, 0.3]
    after = merged(FedAWA(server_steps=4, server_lr=0.05), start, MOVES, [4, 0, 2, 3])
    a = adam(np.array([0.3, 0.1, 0.0, -0.2]), 4, 0.05, N, MOVES, BEFORE)
    assert_allclose(after.server[LOGITS], [a[1], 0.7, a[2], a[3], a[0]], rtol=1e-5, atol=1e-6)
    assert_allclose(after.shared["head.weight"], BEFORE + np.tensordot(weights(a, N), MOVES, 1), rtol=1e-5, atol=1e-6)
    assert np.abs(a - [0.3, 0.1, 0.0, -0.2]).min() > 0.05


def test_statistics_of_batch_norms_have_no_say_and_the_same_weights() -> None:
    """They are no part of theta: however far they move, the same is learnt, and they move by it."""
    name, moved = "stats.norm.running_mean", torch.tensor([[100.0], [-300.0], [0.0], [7.0]])
    state = State(
        {"head.weight": torch.from_numpy(BEFORE).float(), name: torch.ones(1)},
        {LOGITS: torch.zeros(4, dtype=torch.float64)},
    )
    each = {"head.weight": torch.from_numpy(MOVES).float(), name: moved}
    method = FedAWA(server_steps=4, server_lr=0.05)
    after = method.merge(state, Update({}, each, torch.arange(4), torch.from_numpy(N), 1), method.plan(1)[0])
    plain = merged(method, [0.0] * 4, MOVES, [0, 1, 2, 3])
    assert torch.equal(after.server[LOGITS], plain.server[LOGITS])
    lam = weights(after.server[LOGITS].numpy(), N)
    assert_allclose(after.shared[name], 1 + lam @ moved.numpy(), rtol=1e-5)


def test_a_client_that_goes_elsewhere_counts_less_from_round_to_round() -> None:
    moves = np.stack([np.ones((2, 3)), np.ones((2, 3)) + 0.1 * MOVES[0], -3 * np.ones((2, 3))])
    a = [0.0, 0.0, 0.0]
    for _ in range(3):
        a = merged(FedAWA(), a, moves, [0, 1, 2]).server[LOGITS].tolist()
    assert a[2] < -0.1 < 0.1 < min(a[:2])


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
def test_two_rounds(engine: type) -> None:
    """One step of each client a round, averaged by what was learnt so far; a head of zeros has no direction."""
    method = FedAWA(epochs=1, server_steps=3, server_lr=0.2, **FULL_BATCH)
    W, a, n = np.zeros((3, 2)), np.zeros(2), np.array([1.0, 2.0])
    for _ in range(2):
        moves = np.stack([-LR * gradient(W, rows, "softmax") for rows in ROWS])
        a = adam(a, 3, 0.2, n, moves, W)
        W = W + np.tensordot(weights(a, n), moves, 1)
    state = played(method, engine(two_clients()), method.start(TWO), rounds=2)
    assert_allclose(state.server[LOGITS], a, rtol=1e-4, atol=1e-5)
    assert_allclose(state.shared["head.weight"], W, rtol=1e-4, atol=1e-5)


def test_without_steps_it_is_fedavg() -> None:
    pair = FedAWA(server_steps=0, batch=8, bias=True), FedAvg(batch=8, bias=True)
    ours, theirs = (played(one, LocalEngine(clients()), one.start(TASK), 3).shared for one in pair)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
