"""FedNoRo, FedCorr and FedLTF: losses, corrections and weights against numpy, noisy clients found in a federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import log_softmax, softmax

from federations import CLASSES, DIM, clients, private
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Batch, Method, Phase, State, Task, Update, Visit
from fedkeel.core.roster import Enrolment
from fedkeel.core.tree import Tree
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads import fedcorr, fednoro
from fedkeel.methods.heads.base import BIAS, WEIGHT
from fedkeel.methods.heads.fedcorr import FedCorr
from fedkeel.methods.heads.fedltf import FedLTF
from fedkeel.methods.heads.fednoro import FedNoRo
from fedkeel.methods.heads.noise import high_group, intrinsic_dimension

NOISY_ONES = (1, 4, 6)
BATCH = 5


def noisy_federation() -> tuple[Sites, np.ndarray]:
    """Nine clients of 120 rows and one of two; 60 % of the labels of three clients are wrong. (clients, true labels)"""
    who = clients(sizes=(120,) * 9 + (2,))
    labels, draw = who.y.clone(), np.random.default_rng(1)
    for client in NOISY_ONES:
        wrong = who.rows(client)[:72]
        labels[wrong] = (labels[wrong] + torch.from_numpy(draw.integers(1, CLASSES, 72))) % CLASSES
    return replace(who, y=labels), who.y.numpy()


def play(method: Method, engine_of: type, who: Sites) -> State:
    engine, state = engine_of(who), method.start(Task(DIM, CLASSES, len(who.names), 0))
    for round in range(1, method.rounds + 1):
        cohort: list[int] = []
        for phase in method.plan(round):
            cohort = choose(engine.roster, method, phase, round, cohort)
            update = engine.exchange(method, state, phase, round, cohort).update
            if update is not None:
                state = method.merge(state, update, phase)
    return state


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def batch_of(*front: int) -> Batch:
    labels = torch.from_numpy(np.random.default_rng(7).integers(0, CLASSES - 1, (*front, BATCH)))
    return Batch(drawn(*front, BATCH, DIM, seed=8), labels, torch.full((*front, BATCH), 1 / BATCH), torch.empty(0))


def kl(p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    return np.where(p > 0, p * (np.log(np.maximum(p, 1e-300)) - np.where(p > 0, log_q, 0)), 0).sum(-1)


def check_residual(method: Any, logits: torch.Tensor, batch: Batch, visit: Visit) -> None:
    """The residual is the slope of the rows: central differences in float64, entry by entry."""
    residual = method.residual(logits, batch, visit)
    for index in np.ndindex(tuple(logits.shape)):
        step = torch.zeros_like(logits, dtype=torch.float64)
        step[index] = 1e-5
        up, down = (method.rows(logits.double() + sign * step, batch, visit).sum() for sign in (1, -1))
        assert float(residual[index]) == pytest.approx(float(up - down) / 2e-5, abs=2e-5)


# ---- what clients are told apart by


def lid_by_hand(outputs: np.ndarray, k: int) -> float:
    """-(1/k sum_i log(r_i / r_k))^-1 with the k nearest others, row by row."""
    found = []
    for row in outputs:
        r = np.sort(np.linalg.norm(outputs - row, axis=1))[1 : k + 1]
        found.append(-1 / np.mean(np.log(r / r[-1])))
    return float(np.mean(found))


@pytest.mark.parametrize(("rows", "k"), [(60, 20), (1500, 20), (7, 6), (3, 2)])
def test_lid(rows: int, k: int) -> None:
    """Against the formula; 1500 rows are more than are compared at once, 7 and 3 rows have fewer than 20 neighbours."""
    outputs = drawn(rows, CLASSES).softmax(-1)
    assert float(intrinsic_dimension(outputs)) == pytest.approx(lid_by_hand(outputs.double().numpy(), k), rel=1e-5)


def test_lid_of_points_in_a_plane_is_about_two() -> None:
    """The estimator is made for this; with 20 of 2000 uniform points it is within a fifth."""
    flat = torch.from_numpy(np.random.default_rng(0).random((2000, 2))) @ torch.ones(2, 5).double().cumsum(1).tril()
    assert float(intrinsic_dimension(flat)) == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize("outputs", [torch.ones(1, 4), drawn(2, 4), torch.ones(30, 4)], ids=["one", "two", "alike"])
def test_lid_is_0_where_there_is_nothing_to_tell(outputs: torch.Tensor) -> None:
    assert float(intrinsic_dimension(outputs)) == 0


def test_the_high_group() -> None:
    low, high = np.random.default_rng(0).normal(1, 0.1, 12), np.random.default_rng(1).normal(3, 0.1, 4)
    values = torch.from_numpy(np.concatenate([low, high]))
    assert high_group(values).tolist() == [False] * 12 + [True] * 4
    assert high_group(torch.stack([values, values / 2], 1), votes=9).tolist() == [False] * 12 + [True] * 4
    one_group = torch.tensor([0.0, *[1e-5] * 9])  # too near for two components: all in the heavy one
    for nothing in (torch.empty(0), torch.ones(1), torch.ones(6), torch.zeros(5, 3), one_group):
        assert not high_group(nothing).any()
    assert high_group(torch.tensor([1.0, 2.0])).tolist() == [False, True]


# ---- FedNoRo


def noro_visit(round: int, noisy: torch.Tensor, counts: torch.Tensor) -> Visit:
    down = {WEIGHT: drawn(CLASSES, DIM, seed=3)}
    return Visit(down, {}, Phase("robust"), round, counts, {fednoro.NOISY: noisy})


@pytest.mark.parametrize("bias", [False, True])
def test_fednoro_s_loss(bias: bool) -> None:
    """LA-CE on the client's prior; for noisy clients mixed with KL(softmax(t / 0.8) || LA student). The last class is
    missing: its adjusted probability is 0, and it takes no part in the KL."""
    method, batch, logits = FedNoRo(rounds=100), batch_of(2), drawn(2, BATCH, CLASSES, seed=5)
    counts = torch.tensor([[3.0, 1.0, 4.0, 0.0], [2.0, 2.0, 1.0, 0.0]])
    visit = noro_visit(60, torch.tensor([0.0, 1.0]), counts)
    if bias:
        visit.down[BIAS] = drawn(CLASSES, seed=6)
    for client, w in enumerate((0.0, 0.8)):
        prior = counts[client].numpy()[:3] / counts[client].numpy().sum()
        log_p = log_softmax(logits[client].numpy()[:, :3] + np.log(prior), axis=1)
        ce = -log_p[np.arange(BATCH), batch.y[client].numpy()]
        t = batch.x[client].numpy() @ visit.down[WEIGHT].numpy().T + (visit.down[BIAS].numpy() if bias else 0)
        expected = (1 - w) * ce + w * kl(softmax(t / 0.8, axis=1)[:, :3], log_p)
        assert_allclose(method.rows(logits, batch, visit)[client], expected, rtol=1e-4)
        alone = replace(
            visit, counts=counts[client], per_client={fednoro.NOISY: visit.per_client[fednoro.NOISY][client]}
        )
        one = Batch(batch.x[client], batch.y[client], batch.weight[client], batch.u)
        assert_allclose(method.rows(logits[client], one, alone), expected, rtol=1e-4)
        check_residual(method, logits[client], one, alone)
    stacked = method.residual(logits, batch, visit)
    assert torch.isfinite(stacked).all()
    assert_allclose(stacked[1], method.residual(logits[1], one, alone), atol=1e-6)


def test_fednoro_s_ramp() -> None:
    """Of 100 rounds, 10 warm up; w = 0.8 exp(-5 (1 - s)^2), s = 0 in round 11 and 1 from round 50 on."""
    method, counts = FedNoRo(rounds=100), torch.ones(CLASSES)
    for round, s in ((3, 0), (11, 0), (20, 9 / 39), (50, 1), (99, 1)):
        w = method.teacher_weight(noro_visit(round, torch.tensor(1.0), counts))
        assert float(w) == pytest.approx(0.8 * np.exp(-5 * (1 - s) ** 2), rel=1e-6)
    assert float(method.teacher_weight(noro_visit(60, torch.tensor(0.0), counts))) == 0
    few = [float(FedNoRo(rounds=3).teacher_weight(noro_visit(r, torch.tensor(1.0), counts))) for r in (2, 3)]
    assert few == pytest.approx([0.8 * np.exp(-5), 0.8])


def test_fednoro_s_class_losses() -> None:
    """Logits (2, 0), (0, 2) and (0, 0). The loss of the label with 2 next to 0 is log(1 + e^-2), of 0 next to 2
    log(1 + e^2). Class 0 has rows 1 and 2, class 1 has row 3; class 2 is missing, with a logit too low to count."""
    x = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 0.0, 1.0]])
    head = {WEIGHT: torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -40.0]])}
    visit = Visit(head, {}, Phase("losses"), counts=torch.tensor([2.0, 1.0, 0.0]))
    sends, kept = FedNoRo().measure(x, torch.tensor([0, 0, 1]), visit)
    expected = [(np.log1p(np.exp(-2)) + np.log1p(np.exp(2))) / 2, np.log(2), -1]
    assert_allclose(sends[fednoro.LOSSES], expected, rtol=1e-6)
    assert not kept


def test_fednoro_s_losses_are_filled_and_scaled() -> None:
    """Column by column: missing becomes the lowest, then (v - min) / (max - min); alike or held by nobody gives 0."""
    losses = torch.tensor([[1.0, -1.0, 2.0, -1.0], [3.0, 4.0, 2.0, -1.0], [2.0, 6.0, -1.0, -1.0]])
    expected = [[0, 0, 0, 0], [1, 0, 0, 0], [0.5, 1, 0, 0]]
    assert_allclose(fednoro.scaled(losses), expected)


def test_distance_aware_weights() -> None:
    """Clean heads at (0, 0) and (10, 0), noisy ones at (3, 4) and (10, 2): d = 0, 0, 5, 2 and D = 0, 0, 1, 0.4.
    With rows 10, 20, 30, 40: weights 10, 20, 30 e^-1, 40 e^-0.4, normalised."""
    heads = {WEIGHT: torch.tensor([[[0.0]], [[10.0]], [[3.0]], [[10.0]]]), BIAS: torch.tensor([[0.0], [0], [4], [2]])}
    rows, noisy = torch.tensor([10.0, 20, 30, 40]), torch.tensor([False, False, True, True])
    raw = np.array([10, 20, 30 * np.exp(-1), 40 * np.exp(-0.4)])
    assert_allclose(fednoro.distance_aware(heads, rows, noisy), raw / raw.sum(), rtol=1e-6)
    for nothing in (~noisy & noisy, noisy | ~noisy):
        assert_allclose(fednoro.distance_aware(heads, rows, nothing), rows / 100)
    state = State(
        {WEIGHT: torch.ones(1, 1), BIAS: torch.ones(1)}, per_client={fednoro.NOISY: torch.tensor([1.0, 0, 0, 9, 1])}
    )
    update = Update({}, heads, torch.tensor([1, 2, 0, 4]), rows.double(), 5)
    merged = FedNoRo().merge(state, update, FedNoRo().plan(50)[0])
    assert float(merged.shared[WEIGHT]) == pytest.approx(1 + (raw * [0, 10, 3, 10]).sum() / raw.sum(), rel=1e-6)
    assert float(merged.shared[BIAS]) == pytest.approx(1 + (raw * [0, 0, 4, 2]).sum() / raw.sum(), rel=1e-6)


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
def test_fednoro_finds_the_noisy_clients(engine: type) -> None:
    who, _ = noisy_federation()
    state = play(FedNoRo(rounds=3, batch=20), engine, who)
    assert tuple(state.per_client[fednoro.NOISY].nonzero().flatten().tolist()) == NOISY_ONES
    assert not private(who)


def test_fednoro_refuses_a_split_that_teaches_nothing() -> None:
    """log pi of the only class is 0 and all others are -inf: the loss is 0, whatever the logits."""
    method, alone = FedNoRo(), torch.tensor([0.0, 3.0, 0.0, 0.0])
    batch = replace(batch_of(), y=torch.ones(BATCH, dtype=torch.long))
    assert not method.residual(drawn(BATCH, CLASSES), batch, noro_visit(1, torch.tensor(0.0), alone)).any()
    with pytest.raises(FedkeelError, match="one class only"):
        method.check(Enrolment.of_counts("abc", np.array([[0, 3, 0], [0, 0, 0], [5, 0, 0]]), 0, np.zeros(3)))
    method.check(Enrolment.of_counts("ab", np.array([[0, 3, 0], [1, 5, 0]]), 0, np.zeros(3)))


# ---- FedCorr


def told(noisy: Any, level: Any) -> Tree:
    return {fedcorr.NOISY: torch.as_tensor(noisy), fedcorr.LEVEL: torch.as_tensor(level)}


def test_fedcorr_s_proximal_term() -> None:
    """d / dw of beta mu ||w - w_G|| by differences: the norm, not its square, over weight and bias together."""
    method, down = FedCorr(beta=5.0), {WEIGHT: drawn(2, 3, seed=1), BIAS: drawn(2, seed=2)}
    params = {WEIGHT: drawn(2, 3, seed=3), BIAS: drawn(2, seed=4)}
    visit = Visit(down, {}, method.plan(1)[0], per_client=told(1.0, 0.3))
    zero = {name: torch.zeros_like(value) for name, value in params.items()}
    got = method.adjust(zero, params, batch_of(), visit)
    flat, centre = (np.concatenate([tree[name].double().numpy().ravel() for name in params]) for tree in (params, down))

    def term(w: np.ndarray) -> float:
        return float(5.0 * 0.3 * np.sqrt(((w - centre) ** 2).sum()))

    slopes = [(term(flat + step) - term(flat - step)) / 2e-6 for step in 1e-6 * np.eye(len(flat))]
    assert_allclose(np.concatenate([got[name].numpy().ravel() for name in params]), slopes, rtol=1e-4)
    assert all(not value.any() for value in method.adjust(zero, down, batch_of(), visit).values()), "no slope at w_G"
    later = replace(visit, phase=method.plan(50)[0])
    assert method.adjust(zero, params, batch_of(), later) is zero, "stage 1 only"


def corrected_by_hand(x: np.ndarray, y: np.ndarray, judge: np.ndarray, above: float, theta: float) -> np.ndarray:
    labels = y.copy()
    for row, logits in enumerate(x @ judge.T):
        p = softmax(logits)
        if p.max() > theta and -np.log(p[y[row]]) > above:
            labels[row] = p.argmax()
    return labels


def test_fedcorr_s_corrected_labels() -> None:
    """A row is relabelled if its loss under the judging head is above the threshold and the head is sure; in a stack
    every client has its own head and threshold, and clients that are not noisy keep their labels."""
    method, batch, judges = FedCorr(confidence=0.6), batch_of(3), drawn(3, CLASSES, DIM, seed=11)
    above = torch.tensor([1.0, 3.0, -1.0])
    mine = {fedcorr.JUDGE + WEIGHT: judges, fedcorr.ABOVE: above}
    visit = Visit({}, mine, Phase("usual"), per_client=told([1.0, 1.0, 0.0], [0.5, 0.5, 0.0]))
    got = method.labels(batch, visit)
    changed = 0
    for client in range(2):
        x, y, judge = batch.x[client].numpy(), batch.y[client].numpy(), judges[client].numpy()
        expected = corrected_by_hand(x, y, judge, float(above[client]), 0.6)
        assert got[client].tolist() == expected.tolist()
        alone = Visit({}, {name: value[client] for name, value in mine.items()}, visit.phase, per_client=told(1.0, 0.5))
        one = Batch(batch.x[client], batch.y[client], batch.weight[client], batch.u)
        assert method.labels(one, alone).tolist() == expected.tolist()
        logits = drawn(BATCH, CLASSES, seed=12)
        ce = -log_softmax(logits.numpy(), axis=1)[np.arange(BATCH), expected]
        assert_allclose(method.rows(logits, one, alone), ce, rtol=1e-5)
        changed += int((expected != y).sum())
    assert changed >= 2
    assert got[2].tolist() == batch.y[2].tolist()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_fedcorr_relabels_the_rows_with_the_highest_losses(share: float) -> None:
    """As many as pi mu_k n_k, whole rows only. The head is fitted to the true labels: wrong ones have high losses."""
    who, truth = noisy_federation()
    method, rows = FedCorr(relabel=share, confidence=0.0), who.rows(1)
    features = who.x.tensor
    x, y = features[rows], who.y[rows]
    head = torch.linalg.lstsq(features, torch.nn.functional.one_hot(torch.from_numpy(truth)).float()).solution.T * 4
    mine = {fedcorr.OWN + WEIGHT: head, fedcorr.JUDGE + WEIGHT: torch.zeros_like(head), fedcorr.ABOVE: torch.zeros(())}
    visit = Visit({WEIGHT: head}, mine, method.plan(1)[2], per_client=told(1.0, 0.0))
    sends, kept = method.measure(x, y, visit)
    level = float(sends[fedcorr.MU])
    assert level == pytest.approx(0.6, abs=0.1), "72 of 120 labels are wrong"
    losses = -log_softmax((x @ head.T).numpy(), axis=1)[np.arange(120), y.numpy()]
    count = int(level * share * 120)
    assert set(np.flatnonzero(losses > float(kept[fedcorr.ABOVE]))) == set(np.argsort(-losses)[:count])
    assert not kept[fedcorr.OWN + WEIGHT].any(), "the client's own head was needed until here only"
    sends, kept = method.measure(x, y, replace(visit, per_client=told(0.0, 0.0)))
    assert float(sends[fedcorr.MU]) == 0
    assert float(kept[fedcorr.ABOVE]) > losses.max()
    sends, kept = method.measure(x, y, replace(visit, phase=FedCorr(rounds=4).plan(3)[1]))
    assert not sends
    assert float(kept[fedcorr.ABOVE]) < losses.min(), "after stage 2 every row may be relabelled"


def test_fedcorr_adds_up_the_lids_and_splits_the_clients() -> None:
    """2 + 1 of client 4 stands out only in the sum; client 2 has too few rows for a LID and stays clean."""
    method = FedCorr()
    state, phase = method.start(Task(DIM, CLASSES, 5, 0)), method.plan(1)[1]
    for lids in ([1.0, 1.1, 0.0, 1.05, 2.0], [1.0, 1.2, 0.0, 1.1, 3.0]):
        update = Update({}, {fedcorr.LID: torch.tensor(lids)}, torch.arange(5), torch.ones(5), 1)
        state = method.merge(state, update, phase)
    assert_allclose(state.server[fedcorr.LEDGER], [2, 2.3, 0, 2.15, 5], rtol=1e-6)
    assert state.per_client[fedcorr.NOISY].tolist() == [0, 0, 0, 0, 1]


def test_fedcorr_fine_tunes_on_the_clean_clients() -> None:
    """Clients 0, 2 and 3 of levels 0, 0.1 and 0.4 move by 1, 4 and 100; with rows 1, 2, 3 and kappa 0.1 the mean is
    (1 + 2 * 4) / 3 = 3. If only client 3 takes part there is nobody clean, and it counts."""
    method, tune = FedCorr(rounds=10), FedCorr(rounds=10).plan(2)[0]
    state = replace(State({WEIGHT: torch.zeros(1, 1)}), per_client=told([0.0, 0, 1, 1], [0.0, 0.9, 0.1, 0.4]))
    each = {WEIGHT: torch.tensor([[[1.0]], [[4.0]], [[100.0]]])}
    merged = method.merge(state, Update({}, each, torch.tensor([0, 2, 3]), torch.tensor([1.0, 2, 3]).double(), 2), tune)
    assert float(merged.shared[WEIGHT]) == pytest.approx(3)
    last = Update({}, {WEIGHT: each[WEIGHT][2:]}, torch.tensor([3]), torch.tensor([3.0]).double(), 2)
    assert float(method.merge(state, last, tune).shared[WEIGHT]) == pytest.approx(100)


def test_fedcorr_finds_the_noisy_clients_and_repairs_their_labels() -> None:
    who, truth = noisy_federation()
    method = FedCorr(rounds=20, batch=20)
    state = play(method, LocalEngine, who)
    assert tuple(state.per_client[fedcorr.NOISY].nonzero().flatten().tolist()) == NOISY_ONES
    assert_allclose(state.per_client[fedcorr.LEVEL][list(NOISY_ONES)], 0.6, atol=0.15)
    for client in NOISY_ONES:
        rows = who.rows(client)
        batch = Batch(who.x.tensor[rows], who.y[rows], torch.full((120,), 1 / 120), torch.empty(0))
        labels = method.labels(
            batch, Visit({}, private(who)[client], Phase("usual"), per_client=told(1.0, 0.6))
        ).numpy()
        assert (who.y[rows].numpy() == truth[rows]).mean() == pytest.approx(0.4)
        assert (labels == truth[rows]).mean() > 0.85


@pytest.mark.parametrize("bias", [False, True])
def test_fedcorr_s_engines_agree_where_the_proximal_term_and_the_corrections_act(bias: bool) -> None:
    """The contract test has one iteration, where mu is still 0. Plain SGD with steps that are small next to the
    distance from w_G: near it the direction of (w - w_G) is rounding."""
    method = FedCorr(rounds=8, iterations=0.4, batch=30, optimizer="sgd", lr=0.3, beta=0.1, bias=bias)
    (fast, _), (slow, _) = noisy_federation(), noisy_federation()
    ours, reference = play(method, LocalEngine, fast), play(method, WireEngine, slow)
    for name, value in reference.shared.items():
        assert_allclose(ours.shared[name], value, atol=1e-5 * float(value.abs().max()))
    assert reference.per_client[fedcorr.LEVEL].any()
    for name, value in reference.per_client.items():
        assert_allclose(ours.per_client[name], value)


# ---- FedLTF


def ltf_visit(method: FedLTF, round: int) -> Visit:
    down = {WEIGHT: drawn(CLASSES, DIM, seed=1), "teacher." + WEIGHT: drawn(CLASSES, DIM, seed=2)}
    return Visit(down, {}, method.plan(round)[0], round)


@pytest.mark.parametrize(("temperature", "kl_s"), [(4.0, 1.0), (2.0, 0.5), (1.0, 4.0)])
def test_fedltf_s_loss(temperature: float, kl_s: float) -> None:
    """CE exp(-v) + v + kl_s T^2 KL(softmax(t / T) || softmax(z / T)), v = KL(student || teacher): T divides logits."""
    method, batch, logits = FedLTF(temperature=temperature, kl_s=kl_s), batch_of(2), drawn(2, BATCH, CLASSES, seed=5)
    visit = ltf_visit(method, 50)
    z, t = logits.double().numpy(), (batch.x @ visit.down["teacher." + WEIGHT].T).double().numpy()
    ce = -np.take_along_axis(log_softmax(z, axis=-1), batch.y.numpy()[..., None], -1)[..., 0]
    v = kl(softmax(z, axis=-1), log_softmax(t, axis=-1))
    distilled = kl(softmax(t / temperature, axis=-1), log_softmax(z / temperature, axis=-1))
    expected = ce * np.exp(-v) + v + kl_s * temperature**2 * distilled
    assert_allclose(method.rows(logits, batch, visit), expected, rtol=1e-4)
    assert_allclose(method.rows(logits, batch, ltf_visit(method, 1)), ce, rtol=1e-4)
    one = Batch(batch.x[1], batch.y[1], batch.weight[1], batch.u)
    assert_allclose(method.rows(logits[1], one, visit), expected[1], rtol=1e-4)


def test_the_released_fedltf_is_temperature_1_with_four_times_the_weight() -> None:
    """Probabilities divided by 4 and the sum times 16: 16 sum (q / 4) (log(q / 4) - log(p / 4)) = 4 KL(q || p)."""
    method, batch, logits = FedLTF(temperature=1, kl_s=4), batch_of(), drawn(BATCH, CLASSES, seed=5)
    without = FedLTF(temperature=1, kl_s=0)
    visit = ltf_visit(method, 50)
    p, q = (value.double().softmax(-1) for value in (logits, batch.x @ visit.down["teacher." + WEIGHT].T))
    released = 16 * (q / 4 * ((q / 4).log() - (p / 4).log())).sum(-1)
    assert_allclose(method.rows(logits, batch, visit) - without.rows(logits, batch, visit), released, rtol=1e-4)


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
def test_fedltf_s_teacher_is_the_last_probe(engine: type) -> None:
    """Of ten rounds the first three are a probe; the teacher is its head and does not move later."""
    who, _ = noisy_federation()
    short = play(FedLTF(rounds=3, probe=0.99, batch=40), engine, who)
    state = play(FedLTF(rounds=10, batch=40), engine, who)
    assert_allclose(state.server["teacher." + WEIGHT], short.shared[WEIGHT], rtol=1e-6)
    assert (state.shared[WEIGHT] - short.shared[WEIGHT]).abs().max() > 1e-3


# ---- stages


@pytest.mark.parametrize(
    ("method", "rounds", "stages"),
    [
        (FedNoRo, 50, {"warm-up": 5, "robust": 45}),
        (FedNoRo, 3, {"warm-up": 1, "robust": 2}),
        (FedNoRo, 1, {"warm-up": 1}),
        (FedCorr, 50, {"pre-process": 5, "fine-tune": 25, "usual": 20}),
        (FedCorr, 3, {"pre-process": 1, "fine-tune": 1, "usual": 1}),
        (FedCorr, 2, {"pre-process": 1, "usual": 1}),
        (FedCorr, 1, {"pre-process": 1}),
        (FedLTF, 50, {"probe": 15, "teach": 35}),
        (FedLTF, 3, {"probe": 1, "teach": 2}),
        (FedLTF, 1, {"probe": 1}),
    ],
)
def test_stages(method: type[Method], rounds: int, stages: dict[str, int]) -> None:
    made = method(rounds=rounds)
    plans = [[phase.name for phase in made.plan(round)] for round in range(1, rounds + 1)]
    assert [plan[0] for plan in plans] == [name for name, count in stages.items() for _ in range(count)]
    asked = [name for plan in plans for name in plan[1:]]
    if method is FedCorr:
        once = ["relabel"] if "fine-tune" in stages else []
        assert asked == ["dimension", "correct"] * stages["pre-process"] + once
    else:
        assert asked == (["losses"] if method is FedNoRo else [])
