"""Heads that are computed: against scikit-learn and numpy on the pooled rows, whoever held them and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as PooledRidge

import fedkeel as fk
from federations import CLASSES, DIM, clients, private
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import Down, Up, size
from fedkeel.core.method import Method, State, Task
from fedkeel.core.rng import generator
from fedkeel.data.ownership import Ownership
from fedkeel.engines.base import Exchange, choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.engines.store import Store
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.closed_form import ClosedForm
from fedkeel.methods.heads.ncm import NCM
from fedkeel.methods.heads.oll import OLL
from fedkeel.methods.heads.ridge import Ridge, held_out
from fedkeel.methods.heads.ridge_rf import RidgeRF, drawn, mapped
from fedkeel.methods.heads.ridge_sums import GRID, row_sums, solve
from fedkeel.metrics.accuracy import TestSets
from fedkeel.rows.features import Features

ENGINES = pytest.mark.parametrize("engine", [LocalEngine, WireEngine])


def play(method: Method, who: Sites, engine: type = LocalEngine) -> tuple[list[State], list[Exchange]]:
    """The state after each round, and all exchanges."""
    state, worker = method.start(Task(who.x.dim, who.classes, len(who.names), who.seed)), engine(who)
    states, exchanges = [], []
    for round in range(1, method.rounds + 1):
        cohort: list[int] = []
        for phase in method.plan(round):
            cohort = choose(worker.roster, method, phase, round, cohort)
            exchanges.append(worker.exchange(method, state, phase, round, cohort))
            if exchanges[-1].update is not None:
                state = method.merge(state, exchanges[-1].update, phase)
        states.append(state)
    return states, exchanges


def split(who: Sites, owner: np.ndarray, count: int) -> Sites:
    """The same rows at other clients."""
    return Sites([f"k{k}" for k in range(count)], who.x, who.y, Ownership.of_owners(owner, count), 0, who.classes)


def pooled(x: np.ndarray, y: np.ndarray, penalty: float, classes: int = CLASSES) -> PooledRidge:
    """scikit-learn's ridge of all rows at once; the penalty is relative to the mean diagonal of the centred moments."""
    x = x.astype(np.float64)
    alpha = penalty * np.square(x - x.mean(0)).sum() / x.shape[1]
    return PooledRidge(alpha=alpha).fit(x, np.eye(classes)[y])


def close(state: State, ridge: PooledRidge) -> None:
    np.testing.assert_allclose(state.shared["head.weight"], ridge.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state.shared["head.bias"], ridge.intercept_, rtol=1e-5, atol=1e-7)


@ENGINES
@pytest.mark.parametrize("penalty", [0.0, 0.01, 3.0])
def test_ridge_is_that_of_the_pooled_rows(engine: type, penalty: float) -> None:
    who = clients()
    states, _ = play(Ridge(penalty=penalty, normalise=False), who, engine)
    close(states[-1], pooled(who.x.tensor.numpy(), who.y.numpy(), penalty))


@pytest.mark.parametrize("seed", range(20))
def test_cross_validation_is_that_of_the_hat_matrix(seed: int) -> None:
    """GCV of each lambda from its definition: the hat matrix H = 1 1^T / n + X (X^T X + lambda I)^-1 X^T of centred X,
    |(I - H) Y|^2 / trace(I - H)^2. The rows are few and noisy, so that the best lambda often lies inside the grid."""
    draw, n, dim = generator(seed, "noisy rows"), 12, 5
    y = draw.integers(0, CLASSES, n)
    x = (draw.normal(size=(n, dim)) + 1.5 * np.eye(dim)[y] + 5).astype(np.float32)
    X, Y, scores = x - x.mean(0, dtype=np.float64), np.eye(CLASSES)[y], []
    for penalty in GRID:
        inverse = np.linalg.inv(X.T @ X + penalty * np.trace(X.T @ X) / dim * np.eye(dim))
        left = np.eye(n) - 1 / n - X @ inverse @ X.T
        scores.append(np.square(left @ Y).sum() / np.trace(left) ** 2)
    sums = row_sums(torch.from_numpy(x), torch.from_numpy(y), CLASSES)
    torch.testing.assert_close(solve(sums, None), solve(sums, GRID[int(np.argmin(scores))]))


@pytest.mark.parametrize(
    ("method", "rounding"), [(Ridge(), 1e-12), (NCM(), 1e-12), (RidgeRF(features=30, penalty=0.1), 1e-6)]
)
def test_the_model_does_not_depend_on_who_held_what(method: ClosedForm, rounding: float) -> None:
    """One client, label-sorted clients, random clients, a third of them per round. Sums are float64, but random
    features are mapped in float32."""
    who = clients()
    n = len(who.y)
    order = np.argsort(who.y.numpy(), kind="stable").argsort()
    partitions = [np.zeros(n, int), order * 9 // n, generator(0, "owners").integers(0, 40, n)]
    ways = [(split(who, owner, 40), method) for owner in partitions]
    ways += [(other, method.model_copy(update={"rounds": 4, "participation": 0.33})) for other, _ in ways[1:]]
    reference = play(method, who)[0][-1]
    for other, how in ways:
        state = play(how, other)[0][-1]
        for name, value in reference.server.items():
            torch.testing.assert_close(state.server[name], value, rtol=rounding, atol=rounding)
        for name, value in reference.shared.items():
            torch.testing.assert_close(state.shared[name], value, rtol=10 * max(rounding, 1e-7), atol=1e-6)


def test_after_every_round_it_is_the_ridge_of_the_clients_heard_so_far() -> None:
    """A client that comes late adds in; when everybody was heard, further rounds are idle."""
    who, method = clients(), Ridge(penalty=0.1, normalise=False, rounds=5, participation=0.34)
    states, exchanges = play(method, who)
    heard: list[int] = []
    for round, (state, exchange) in enumerate(zip(states, exchanges, strict=True), 1):
        heard += choose(LocalEngine(who).roster, method, method.plan(round)[0], round, [])
        assert exchange.accepted == (2 if round <= 3 else 0)
        rows = np.concatenate([who.owned.of(client) for client in heard])
        close(state, pooled(who.x.tensor[rows].numpy(), who.y[rows].numpy(), 0.1))
    assert sorted(heard) == [0, 1, 3, 4, 5, 6], "everybody with rows, once"


def test_what_travels() -> None:
    """Up: the triangle, the class sums and counts in float64. Down: nothing but a header."""
    _, (exchange,) = play(Ridge(), clients())
    shapes = {"sum.squares": (DIM * (DIM + 1) // 2,), "sum.x": (CLASSES, DIM), "sum.rows": (CLASSES,)}
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    run = LocalEngine(clients()).roster.run
    assert exchange.bytes_up == 6 * size(Up(run, 1, "sums", "site-0", 23.0, sums))
    assert exchange.bytes_down == 6 * size(Down(run, 1, "sums", {}))
    _, (exchange,) = play(RidgeRF(features=50), clients())
    seed = {"seed": torch.tensor([0])}
    assert exchange.bytes_down == 6 * size(Down(run, 1, "sums", seed)), "the seed, not Omega"


def test_equal_lengths_scale_each_class_s_logit() -> None:
    who = clients()
    plain, equal = (play(Ridge(penalty=0.1, normalise=flag), who)[0][-1] for flag in (False, True))
    weight, bias = (plain.shared[name].numpy() for name in ("head.weight", "head.bias"))
    lengths = np.linalg.norm(weight, axis=1)
    expected = (who.x.tensor.numpy() @ weight.T + bias) / lengths * lengths.mean()
    np.testing.assert_allclose(Ridge().predict(equal, {}, who.x.tensor), expected, atol=1e-5)
    now = equal.shared["head.weight"].norm(dim=1)
    np.testing.assert_allclose(now, lengths.mean(), rtol=1e-5)


def test_singular_statistics_need_a_penalty() -> None:
    who = clients()
    who.x.tensor[:, 5] = who.x.tensor[:, 4]
    with pytest.raises(
        FedkeelError, match=r"^ridge: .* singular with penalty 0 \(rank 5 of 6\): set method.penalty > 0$"
    ):
        play(Ridge(penalty=0.0), who)
    assert play(Ridge(), who)[0][-1].shared["head.weight"].isfinite().all()
    with pytest.raises(FedkeelError, match=r"method.penalty is -1"):
        fk.experiment(method={"name": "ridge", "penalty": -1})


@pytest.mark.parametrize("rows", [1, 8])
def test_rows_without_spread_give_the_shares_of_the_classes(rows: int) -> None:
    """Weights are zero whatever rounding says, and nothing is NaN."""
    y = torch.arange(rows) % 2
    weight, bias = solve(row_sums(torch.full((rows, 3), 0.1), y, 4), None)
    assert weight.abs().max() == 0
    assert bias.tolist() == ([1, 0, 0, 0] if rows == 1 else [0.5, 0.5, 0, 0])


@pytest.mark.parametrize("method", [Ridge(), NCM(), RidgeRF(features=30)], ids=lambda method: method.name)
def test_a_class_that_nobody_has_seen_is_never_chosen(method: ClosedForm) -> None:
    who = clients()
    unseen = Sites(who.names, who.x, who.y, who.owned, who.seed, CLASSES + 1)
    state = play(method, unseen)[0][-1]
    anywhere = torch.from_numpy(generator(0, "anywhere").normal(size=(500, DIM)).astype(np.float32)) * 5
    for rows in (who.x.tensor, anywhere):
        assert (method.predict(state, {}, rows).argmax(1) < CLASSES).all()


def test_random_features_approximate_the_gaussian_kernel() -> None:
    """Rahimi and Recht: the inner product is exp(-gamma^2 |x - x'|^2 / 2) up to 1 / sqrt(D)."""
    x = torch.from_numpy(generator(0, "points").normal(size=(8, 3)).astype(np.float32))
    phi = mapped(x, *drawn(7, 3, 40_000, 0.6))
    kernel = torch.exp(-0.36 * torch.cdist(x, x).square() / 2)
    torch.testing.assert_close(phi @ phi.T, kernel, rtol=0, atol=0.03)
    omega = drawn(7, 3, 50, 0.6)[0]
    torch.testing.assert_close(omega[:3] @ omega[:3].T, torch.diag(omega[:3].square().sum(1)), rtol=0, atol=1e-6)
    assert not torch.equal(omega, drawn(8, 3, 50, 0.6)[0])


def test_ridge_rf_is_the_ridge_of_the_mapped_rows() -> None:
    who, method = clients(), RidgeRF(features=25, penalty=0.1, normalise=False)
    state = play(method, who)[0][-1]
    omega, offset = drawn(who.seed, DIM, 25, 0.4)
    phi = np.sqrt(2 / 25) * np.cos(who.x.tensor.numpy() @ omega.numpy().T + offset.numpy())
    ridge = pooled(phi, who.y.numpy(), 0.1)
    np.testing.assert_allclose(method.predict(state, {}, who.x.tensor), ridge.predict(phi), atol=1e-4)


def test_ridge_rf_solves_what_no_line_can() -> None:
    """Exclusive or: the four quadrants."""
    x = generator(0, "quadrants").uniform(-1, 1, size=(400, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    owned = Ownership.of_owners(np.arange(400) // 100, 4)
    who = Sites(list("abcd"), Features(torch.from_numpy(x)), torch.from_numpy(y), owned, 0, 2)
    linear, curved = Ridge(), RidgeRF(features=200, gamma=2.0)
    found = [m.predict(play(m, who)[0][-1], {}, who.x.tensor) for m in (linear, curved)]
    hits = [(logits.argmax(1) == who.y).float().mean() for logits in found]
    assert hits[0] < 0.7
    assert hits[1] > 0.95


@ENGINES
def test_ncm_is_the_nearest_class_mean(engine: type) -> None:
    who = clients()
    x, y = who.x.tensor.double().numpy(), who.y.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    cosines = x @ means.T / np.linalg.norm(means, axis=1) / np.linalg.norm(x, axis=1)[:, None]
    state = play(NCM(), who, engine)[0][-1]
    ours = NCM().predict(state, {}, torch.nn.functional.normalize(who.x.tensor))
    np.testing.assert_allclose(ours, cosines, atol=1e-6)


def test_oll_is_ridge_for_all_and_its_own_classes_for_each() -> None:
    who = clients()
    order = np.argsort(who.y.numpy(), kind="stable").argsort()
    few = split(who, order * 7 // len(order), 8)  # sorted by class: one or two classes each; client 7 has no rows
    method = OLL(rounds=3, participation=0.5)
    states, exchanges = play(method, few)
    for name, value in play(Ridge(), replace(few, store=Store()))[0][-1].shared.items():
        torch.testing.assert_close(states[-1].shared[name], value)
    assert exchanges[-1].bytes_down / 7 > 4 * CLASSES * DIM, "the last head goes down to everybody"
    assert sorted(private(few)) == list(range(7))
    whole = method.predict(states[-1], {}, who.x.tensor)
    for client in range(7):
        held = few.counts[client] > 0
        own = method.predict(states[-1], private(few)[client], who.x.tensor)
        assert own.isfinite().all()
        assert torch.equal(own[:, held], whole[:, held])
        assert held[own.argmax(1)].all(), "never a class the client does not hold"
        assert method.scores(own)[:, ~held].sum() == 0


def test_personal_accuracy() -> None:
    """Client k always answers class k. Labels 0 0 1 1 1. Own rows: client 0 has rows 0 and 2 (1 of 2 right), 1 has
    none, 2 has row 4 (wrong). By class mix: client 0 is right on class 0 only, so with 3 rows of class 0 and 1 of
    class 1 it gets 3/4; client 1 with all rows in class 1 gets 1; client 2 without training rows has no number."""
    x, y = torch.zeros(5, 1), torch.tensor([0, 0, 1, 1, 1])
    owned = Ownership.of_lists([np.array([0, 2]), np.array([], dtype=int), np.array([4])])
    counts = np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]])

    def of_client(client: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda rows: torch.eye(3)[client].repeat(len(rows), 1)

    own, mix = (TestSets(Features(x), y, who, counts) for who in (owned, None))
    assert [own.on_own(of_client(k), k) for k in range(3)] == [0.5, None, 0.0]
    assert [mix.on_own(of_client(k), k) for k in range(3)] == [0.75, 1.0, None]
    assert own.on_all(of_client(1)) == [0.5, None, 1.0]
    assert mix.on_all(of_client(1)) == [0.25, 1.0, None]


@pytest.mark.parametrize("test", [0.0, 0.25], ids=["class mix", "own test rows"])
def test_a_run_of_oll_on_one_class_per_client(test: float, tmp_path: Path) -> None:
    """With one class each, the personal model can give no wrong answer: personal accuracy is 1 for every client."""
    settings = {"data": {"source": "digits"}, "partition": {"kind": "shard-1", "clients": 10, "test": test}}
    result = fk.run(out=tmp_path / "run", method={"name": "oll"}, **settings)
    assert result.record.end["personal"] == [1.0] * 10
    assert result.summary["personal_mean"] == 1.0
    assert result.accuracy < 1
    assert "100.00" in result.table()
    page = (result.folder / "report.html").read_text()
    assert "Personal, %" in page
    assert "own models" in page


def test_a_run_without_personal_models_says_nothing_of_them(tmp_path: Path) -> None:
    """And its model, features not centred, is used without the rest of the run: the bias comes first in the file."""
    settings = {"data": {"source": "digits", "features": "l2"}, "partition": {"kind": "iid", "clients": 5}}
    for method in ("ridge", "ridge-rf"):
        more = {"features": 60} if method == "ridge-rf" else {}
        result = fk.run(out=tmp_path / method, method={"name": method, **more}, **settings)
        assert "personal_mean" not in result.summary
        assert "Personal" not in result.table()
        assert "Personal, %" not in (result.folder / "report.html").read_text()
        rows = generator(0, "rows").uniform(0, 1, size=(5, 64)).astype(np.float32)
        names, scores = result.model.predict(rows)
        assert len(names) == 5
        assert (scores > 0.1).all()


@pytest.mark.parametrize("participation", [1.0, 0.34])
def test_a_penalty_chosen_on_held_out_rows(participation: float) -> None:
    """Fitted by scikit-learn on the rows that are not held out and scored on the others; the winner gets all rows.

    With a third of the clients per round, grid and counts of each round are of the clients heard by then."""
    who, method = clients(), Ridge(choice="held-out", normalise=False, rounds=3, participation=participation)
    states, _ = play(method, who)
    x, y = who.x.tensor.numpy(), who.y.numpy()
    out = held_out(who.x.tensor).numpy()
    assert 0.1 < out.mean() < 0.3
    if participation == 1.0:
        fits = [pooled(x[~out], y[~out], penalty) for penalty in GRID]
        right = np.array([(fit.predict(x[out]).argmax(1) == y[out]).sum() for fit in fits])
        np.testing.assert_allclose(states[-1].server["sum.right"], right)
        close(states[-1], pooled(x, y, GRID[int(right.argmax())]))
    assert int(states[-1].server["sum.rows"].sum()) == len(y)


def test_held_out_rows_are_the_same_whoever_holds_them() -> None:
    x = clients().x.tensor
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(held_out(x)[order], held_out(x[order]))
