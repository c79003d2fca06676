"""One round of each method against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from federations import CLASSES, DIM, TASK, clients
from fedkeel.core.method import Method, State, Task
from fedkeel.data.ownership import Ownership
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.centre import Centre
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.ova_lp import TAUS, OvaLP
from fedkeel.methods.heads.ridge_sums import GRID, row_sums, solve
from fedkeel.rows.features import Features

ENGINES = pytest.mark.parametrize("engine", [LocalEngine, WireEngine])

X = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], dtype=np.float32)
Y = np.array([0, 1, 1])


def two_clients() -> Sites:
    """Client a owns row 0, client b rows 1 and 2."""
    owned = Ownership.of_lists([np.array([0]), np.array([1, 2])])
    return Sites(["a", "b"], Features(torch.from_numpy(X)), torch.from_numpy(Y), owned, seed=0, classes=3)


def one_round(method: Method, engine: type, classes: int = 3, rows: int = 3) -> State:
    state, phase = method.start(Task(2, classes, 2, 0, rows)), method.plan(1)[0]
    update = engine(two_clients()).exchange(method, state, phase, 1, [0, 1]).update
    return method.merge(state, update, phase)


@ENGINES
def test_fedavg(engine: type) -> None:
    """Heads at zero, so p = 1/3 for every class. With lr 0.6 and one full-batch SGD step a client's head becomes
    W_c = 0.6 * mean over rows of (1[y = c] - 1/3) x.
    a: row (1, 0) of class 0: W = 0.6 * [(2/3) (1, 0), (-1/3) (1, 0), (-1/3) (1, 0)] = [(.4, 0), (-.2, 0), (-.2, 0)]
    b: rows (0, 2), (3, 1) of class 1, mean (1.5, 1.5): W = [(-.3, -.3), (.6, .6), (-.3, -.3)]
    Average with 1 and 2 rows: (W_a + 2 W_b) / 3 = [(-.2/3, -.2), (1/3, .4), (-.8/3, -.2)]; the bias the same way:
    a: (.4, -.2, -.2), b: (-.2, .4, -.2) -> (0, .2, -.2).
    """
    state = one_round(FedAvg(bias=True, optimizer="sgd", lr=0.6, epochs=1, batch=10, weight_decay=0.0), engine)
    expected = torch.tensor([[-0.2 / 3, -0.2], [1 / 3, 0.4], [-0.8 / 3, -0.2]])
    torch.testing.assert_close(state.shared["head.weight"], expected)
    torch.testing.assert_close(state.shared["head.bias"], torch.tensor([0.0, 0.2, -0.2]))


@ENGINES
def test_ova_lp_stage_1_moves_only_the_heads_of_present_classes(engine: type) -> None:
    """q = 1/2 at zero; only the true class counts, with gradient -(1 - 1/2) x. lr 0.6, one full-batch step:
    a: W_0 = 0.3 (1, 0), b: W_1 = 0.3 (1.5, 1.5), all else stays 0. Averaged by 1 and 2 rows:
    W_0 = (.1, 0), W_1 = (.3, .3), W_2 = 0; bias (.1, .2, 0).
    """
    state = one_round(OvaLP(bias=True, optimizer="sgd", lr=0.6, epochs=1, batch=10, weight_decay=0.0), engine)
    expected = torch.tensor([[0.1, 0.0], [0.3, 0.3], [0.0, 0.0]])
    torch.testing.assert_close(state.shared["head.weight"], expected)
    torch.testing.assert_close(state.shared["head.bias"], torch.tensor([0.1, 0.2, 0.0]))


@ENGINES
def test_ova_lp_one_stage(engine: type) -> None:
    """As above, plus every other class pushed down by (0 - 1/2) x: a: W_1 = W_2 = -0.3 (1, 0); b: W_0 = W_2 =
    -0.3 (1.5, 1.5). Averaged: W_0 = ((.3, 0) + 2 (-.45, -.45)) / 3 = (-.2, -.3), W_1 = (.2, .3), W_2 = (-.4, -.3)."""
    state = one_round(OvaLP(stages=1, optimizer="sgd", lr=0.6, epochs=1, batch=10, weight_decay=0.0), engine)
    expected = torch.tensor([[-0.2, -0.3], [0.2, 0.3], [-0.4, -0.3]])
    torch.testing.assert_close(state.shared["head.weight"], expected)
    assert list(state.shared) == ["head.weight"]


@ENGINES
def test_ova_lp_by_evidence(engine: type) -> None:
    """The updates are those of ``one_stage``. Evidence e_c = n_c + (n - n_c) / 2: a has a row of class 0: (1, .5, .5);
    b two rows of class 1: (1, 2, 1). Row by row, W = (e_a W_a + e_b W_b) / (e_a + e_b):
    W_0 = ((.3, 0) + (-.45, -.45)) / 2 = (-.075, -.225), W_1 = (.5 (-.3, 0) + 2 (.45, .45)) / 2.5 = (.3, .36),
    W_2 = (.5 (-.3, 0) + (-.45, -.45)) / 1.5 = (-.4, -.3).
    """
    method = OvaLP(stages=1, aggregation="rows", optimizer="sgd", lr=0.6, epochs=1, batch=10, weight_decay=0.0)
    expected = torch.tensor([[-0.075, -0.225], [0.3, 0.36], [-0.4, -0.3]])
    torch.testing.assert_close(one_round(method, engine).shared["head.weight"], expected)


@ENGINES
def test_ova_lp_by_the_share_of_all_rows(engine: type) -> None:
    """With 12 rows in all and 3 of them heard, the head moves a quarter of the way of ``one_stage``."""
    method = OvaLP(stages=1, aggregation="total", optimizer="sgd", lr=0.6, epochs=1, batch=10, weight_decay=0.0)
    expected = torch.tensor([[-0.2, -0.3], [0.2, 0.3], [-0.4, -0.3]]) / 4
    torch.testing.assert_close(one_round(method, engine, rows=12).shared["head.weight"], expected)


@ENGINES
def test_ova_lp_from_the_ridge_head(engine: type) -> None:
    """W_0 = tau W with W scikit-learn's ridge at the penalty that cross-validation chose, and tau, of the grid, the one
    with the least one-vs-all loss of all rows with the offset -log(C - 1), here worked out with numpy."""
    method, who = OvaLP(init="ridge"), clients()
    state = method.start(TASK)
    for phase in method.plan(1)[:2]:
        update = engine(who).exchange(method, state, phase, 1, [0, 1, 3, 4, 5, 6]).update
        assert update is not None
        state = method.merge(state, update, phase)
    x, y = who.x.tensor.double().numpy(), who.y.numpy()
    total = row_sums(who.x.tensor, who.y, CLASSES)
    weight = solve(total, None)[0].numpy()
    scale = np.trace(np.cov(x.T, bias=True)) * len(x) / DIM
    fits = [Ridge(alpha=penalty * scale).fit(x, np.eye(CLASSES)[y]).coef_ for penalty in GRID]
    assert min(np.abs(fit - weight).max() for fit in fits) < 1e-9
    losses = []
    for tau in TAUS:
        z = tau * x @ weight.T - np.log(CLASSES - 1)
        losses.append(np.mean(np.logaddexp(0, z).sum(1) - z[np.arange(len(y)), y]))
    tau = TAUS[int(np.argmin(losses))]
    assert TAUS[0] < tau < TAUS[-1], "the grid holds the best"
    np.testing.assert_allclose(state.shared["head.weight"], tau * weight, rtol=1e-4, atol=1e-5)


@ENGINES
def test_adamw_s_first_step_is_the_learning_rate(engine: type) -> None:
    """m / sqrt(v) = sign(g) at step 1, so from zero every entry with a gradient moves by exactly lr."""
    state = one_round(OvaLP(lr=0.01, epochs=1, batch=10), engine)
    expected = torch.tensor([[0.01 / 3, 0.0], [0.02 / 3, 0.02 / 3], [0.0, 0.0]])
    torch.testing.assert_close(state.shared["head.weight"], expected, rtol=1e-5, atol=1e-9)


@ENGINES
def test_centre_is_the_mean_of_all_rows(engine: type) -> None:
    """The weighted mean of client means is the mean of the rows: ((1, 0) + (0, 2) + (3, 1)) / 3 = (4/3, 1)."""
    method, clients = Centre(), two_clients()
    state = method.start(Task(2, 0, 2, 0))
    ask, tell = method.plan(0)
    exchange = engine(clients).exchange(method, state, ask, 0, [0, 1])
    state = method.merge(state, exchange.update, ask)
    torch.testing.assert_close(state.shared["mean"], torch.tensor([4 / 3, 1.0]))
    told = engine(clients).exchange(method, state, tell, 0, [0, 1])
    assert told.update is None
    assert told.bytes_up == 0
    assert told.bytes_down > 2 * 8


def test_stages_follow_the_paper() -> None:
    """Round 1 is stage 1, all later rounds are stage 2; with one stage there is no such thing."""
    assert [OvaLP().plan(round)[0].name for round in (1, 2, 50)] == ["stage-1", "stage-2", "stage-2"]
    assert [OvaLP(stages=1).plan(round)[0].name for round in (1, 2)] == ["one-vs-all", "one-vs-all"]
    assert OvaLP(positive_mode="sample", positives=0.2).plan(2)[0].rows == 0.2


def test_the_paper_s_defaults() -> None:
    """OvA-LP Section 4.1: AdamW, lr 0.01, weight decay 1e-4, three epochs, batch 50, 50 rounds, everybody."""
    method = OvaLP()
    assert (method.optimizer, method.lr, method.weight_decay) == ("adamw", 0.01, 1e-4)
    assert (method.epochs, method.batch, method.rounds, method.participation) == (3, 50, 50, 1.0)
