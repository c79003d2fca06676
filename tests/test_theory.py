"""LP-FT's two-layer linear model: closed forms against gradient steps and autograd, the printed ones against both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.papers import theory_page as page
from fedkeel.papers.theory import (
    CONVERGED,
    NO_PROBING,
    World,
    draw,
    exact,
    fine_tune,
    lpft_not_worse,
    matched,
    printed,
    sample_moment,
)
from test_cli import fedkeel, says

PROBINGS = (NO_PROBING, 1, 7, CONVERGED)
INPUTS = (None, 0.1, 1.0)


def world(seed: int = 0, **changes: Any) -> World:
    return draw(generator(seed, "test"), **{"lam": 0.7, **changes})


def torch_steps(here: World, eta: float, probing: int) -> tuple[np.ndarray, np.ndarray]:
    """V and B by autograd: the loss is written as an expectation over inputs x = L z with L L^T = Sigma_1."""
    root = torch.linalg.cholesky(torch.tensor(here.moment()))
    target = torch.tensor(here.targets[0])
    V, B = (torch.tensor(part, requires_grad=True) for part in (here.start.V, here.start.B))
    for step in range(probing + 1):
        loss = 0.5 * ((B.T @ V - target) @ root).square().sum()
        slope_V, slope_B = torch.autograd.grad(loss, (V, B))
        with torch.no_grad():
            V -= eta * slope_V
            if step == probing:
                B -= eta * slope_B
    return V.detach().numpy(), B.detach().numpy()


# --- the setting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", INPUTS)
def test_losses_are_means_over_inputs(eps: float | None) -> None:
    """The definition, with whole matrices and with a million inputs; the form in the code has neither."""
    here, u = world(eps=eps), generator(1, "u").standard_normal(20)
    gaps = [u - here.B.T @ np.concatenate([here.common, here.lam * own]) for own in np.eye(5)]
    whole = [gap @ here.moment(i) @ gap / 2 for i, gap in enumerate(gaps)]
    np.testing.assert_allclose(here.losses(u), whole, rtol=1e-12)
    assert here.global_loss(u) == pytest.approx(np.mean(whole), rel=1e-12)
    z = generator(2, "z").standard_normal((100_000, 20))
    x = z if eps is None else np.eye(20)[0] + eps * z
    assert here.local_loss(u) == pytest.approx(((x @ gaps[0]) ** 2).mean() / 2, rel=0.03)


def test_a_world_that_the_paper_does_not_allow_is_refused() -> None:
    with pytest.raises(FedkeelError, match="expected orthonormal rows"):
        World(np.ones((2, 3)), np.ones(1), 1.0)
    with pytest.raises(FedkeelError, match="at least one more than V_com is long"):
        World(np.eye(2), np.ones(2), 1.0)
    with pytest.raises(FedkeelError, match="expected 1 <= clients <= k <= d"):
        world(clients=11)
    with pytest.raises(FedkeelError, match="set eps"):
        printed.equation_5(world(), 0.1)


# --- one step, three ways ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", INPUTS)
@pytest.mark.parametrize("probing", PROBINGS)
def test_closed_form_simulation_and_autograd_agree(eps: float | None, probing: int | None) -> None:
    for seed, eta in enumerate((0.01, 0.1, 0.5)):
        here = world(seed, eps=eps)
        model = fine_tune(here, eta, probing)
        np.testing.assert_allclose(exact.end(here, eta, probing), model.u, atol=1e-10)
        assert exact.drift(here, eta, probing) == pytest.approx(here.drift(model), abs=1e-10)
        if probing is not CONVERGED:
            V, B = torch_steps(here, eta, probing)
            np.testing.assert_allclose(model.V, V, atol=1e-10)
            np.testing.assert_allclose(model.B, B, atol=1e-10)
            np.testing.assert_allclose(exact.end(here, eta, probing), B.T @ V, atol=1e-10)


@pytest.mark.parametrize("eps", INPUTS)
def test_probing_to_the_end_is_where_many_steps_lead(eps: float | None) -> None:
    here = world(eps=eps)
    np.testing.assert_allclose(exact.end(here, 0.5, 20_000), exact.end(here, 0.5, CONVERGED), atol=1e-10)
    np.testing.assert_allclose(fine_tune(here, 0.5, CONVERGED).V, [*here.common, here.lam, 0, 0, 0, 0], atol=1e-10)


def test_lemma_4_3() -> None:
    """Row j of B_FT is b*_j + eta lambda (V_0)_j b*_{m+1}: right as printed."""
    here, eta = world(), 0.1
    B = fine_tune(here, eta, NO_PROBING).B
    for j, value in enumerate(here.start.V):
        np.testing.assert_allclose(B[j], here.B[j] + eta * here.lam * value * here.B[5], atol=1e-14)


@pytest.mark.parametrize("probing", PROBINGS)
def test_isotropic_losses_depend_on_the_reach_alone(probing: int | None) -> None:
    """u = u_0 + lambda x b with x = a or A_alpha; the losses of all clients follow."""
    here, eta = world(clients=4), 0.1
    reach = exact.lpft_reach(eta, here.common, here.lam, exact.probed(eta, probing))
    if probing == NO_PROBING:
        assert reach == exact.ft_reach(eta, here.common)
    u = fine_tune(here, eta, probing).u
    np.testing.assert_allclose(u, here.start.u + here.lam * reach * here.B[6], atol=1e-12)
    np.testing.assert_allclose(exact.losses(reach, here.lam, 4), here.losses(u), atol=1e-12)
    assert exact.global_loss(reach, here.lam, 4) == pytest.approx(here.global_loss(u), rel=1e-12)


# --- Theorem 4.4 ------------------------------------------------------------------------------------------------------

WORLDS = st.tuples(st.integers(0, 10_000), st.integers(2, 10), st.integers(1, 8), st.floats(0.01, 1.2))


@settings(max_examples=60, deadline=None)
@given(WORLDS, st.floats(0.01, 10))
def test_ft_is_worse_if_and_only_if_its_step_reaches_the_local_optimum(chosen: Any, lam: float) -> None:
    """The sign of L_G(FT) - L_G(LP-FT) is that of eta (1 + S) - 1; lambda and C do not matter."""
    seed, clients, m, eta = chosen
    here = world(seed, k=m + clients, clients=clients, lam=lam)
    ft, lpft = (here.global_loss(fine_tune(here, eta, probing).u) for probing in (NO_PROBING, CONVERGED))
    room = eta * (1 + here.common @ here.common) - 1
    if abs(room) > 1e-6:
        assert np.sign(ft - lpft) == np.sign(room)
        assert lpft_not_worse(eta, here.common, clients) == (lpft <= ft)


@pytest.mark.parametrize("clients", [2, 5])
def test_the_condition_is_sharp(clients: int) -> None:
    """A learning rate a thousandth below or above 1 / (1 + S) decides."""
    here = world(clients=clients)
    edge = 1 / (1 + here.common @ here.common)
    for eta, not_worse in ((0.999 * edge, False), (1.001 * edge, True)):
        ft, lpft = (here.global_loss(fine_tune(here, eta, probing).u) for probing in (NO_PROBING, CONVERGED))
        assert (lpft <= ft) == lpft_not_worse(eta, here.common, clients) == not_worse
    assert lpft_not_worse(0.1 * edge, here.common, 1), "a single client's own loss is the global one"


@settings(max_examples=60, deadline=None)
@given(WORLDS, st.floats(0.01, 3), st.integers(0, 30))
def test_the_condition_after_some_steps_of_probing(chosen: Any, lam: float, steps: int) -> None:
    seed, clients, m, eta = chosen
    here = world(seed, k=m + clients, clients=clients, lam=lam)
    ft, lpft = (here.global_loss(fine_tune(here, eta, probing).u) for probing in (NO_PROBING, steps))
    if abs(ft - lpft) > 1e-9 * ft:
        assert exact.lpft_not_worse_after(eta, here.common, clients, lam, steps) == (lpft <= ft)


def test_a_counter_example_to_theorem_4_4_in_plain_numbers() -> None:
    """B* = I (3 x 3), V_com = 1, C = 2, lambda = 1, eta = 0.1: the clients want (1, 1, 0) and (1, 0, 1).

    FT: the gap is (0, 1, 0), so V = (1, 0.1, 0), the first row of B becomes (1, 0.1, 0), u = (1, 0.2, 0) and
    L_G = ((0.8^2) + (0.2^2 + 1)) / 4 = 0.42. LP-FT: u = (1, 1, 0), L_G = (0 + 2) / 4 = 0.5. The paper prints 0.25.
    """
    here = World(np.eye(3), np.ones(1), 1.0)
    ft, lpft = fine_tune(here, 0.1, NO_PROBING), fine_tune(here, 0.1, CONVERGED)
    np.testing.assert_allclose(ft.u, [1, 0.2, 0], atol=1e-15)
    np.testing.assert_allclose(lpft.u, [1, 1, 0], atol=1e-15)
    assert here.global_loss(ft.u) == pytest.approx(0.42)
    assert here.global_loss(lpft.u) == pytest.approx(0.5)
    assert not lpft_not_worse(0.1, here.common, 2)
    assert printed.printed_lpft_loss(0.1, here.common, 1.0, 2) == pytest.approx(0.25)
    # The exact condition is eta x 2 >= 1: at eta = 0.5 the two tie.
    assert here.global_loss(fine_tune(here, 0.5, NO_PROBING).u) == pytest.approx(0.5)


@pytest.mark.parametrize("probing", PROBINGS)
def test_the_printed_lpft_loss_misses_a_term_for_every_other_client(probing: int | None) -> None:
    for clients in (1, 2, 5):
        here, eta = world(clients=clients), 0.1
        truth = here.global_loss(fine_tune(here, eta, probing).u)
        given_ = printed.printed_lpft_loss(eta, here.common, here.lam, clients, exact.probed(eta, probing))
        assert truth - given_ == pytest.approx(here.lam**2 * (clients - 1) / (2 * clients), abs=1e-12)
    ft = here.global_loss(fine_tune(here, eta, NO_PROBING).u)
    assert printed.printed_ft_loss(eta, here.common, here.lam, 5) == pytest.approx(ft, rel=1e-12)


def test_moving_a_share_of_one_over_c_is_best_for_all() -> None:
    """Any reach beyond 2 / C, so any full personalisation of more than two clients, raises the global loss."""
    reaches = np.linspace(-1, 2, 3001)
    best = reaches[np.argmin([exact.global_loss(x, 1.0, 5) for x in reaches])]
    assert best == pytest.approx(0.2, abs=1e-3)
    assert exact.global_loss(0, 1.0, 5) == pytest.approx(0.5) == pytest.approx(exact.global_loss(0.4, 1.0, 5))
    assert exact.global_loss(1, 1.0, 5) == pytest.approx(0.8)


def test_corollary_e_1_holds_for_the_client_that_fine_tunes_and_for_no_other() -> None:
    for seed in range(50):
        here, eta = world(seed), (0.05, 0.1, 0.3, 1.0)[seed % 4]
        ft, lpft = (here.losses(fine_tune(here, eta, probing).u) for probing in (NO_PROBING, CONVERGED))
        assert lpft[0] == pytest.approx(0, abs=1e-20)
        assert ft[0] > 0
        assert (lpft[1:] <= ft[1:]).all() == (lpft[1:] <= ft[1:]).any() == lpft_not_worse(eta, here.common, 5)


# --- Theorem 4.5 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_equation_3_is_right_and_equation_5_is_once_its_term_is_restored(eps: float) -> None:
    for seed in range(5):
        here, eta = world(seed, eps=eps), 0.1
        ft, lpft = (fine_tune(here, eta, probing).u for probing in (NO_PROBING, CONVERGED))
        assert printed.printed_lpft_covariate_loss(here) == pytest.approx(here.global_loss(lpft), rel=1e-10)
        np.testing.assert_allclose(printed.equation_5(here, eta, restored=True), ft - here.targets, atol=1e-12)
        assert printed.printed_ft_covariate_loss(here, eta, restored=True) == pytest.approx(here.global_loss(ft))
        slip = printed.equation_5(here, eta) - (ft - here.targets)
        np.testing.assert_allclose(slip, np.tile(here.start.u, (5, 1)), atol=1e-12)


@pytest.mark.parametrize("eps", INPUTS)
def test_both_losses_go_to_zero_as_lambda_squared(eps: float | None) -> None:
    """There are no constant terms; the printed ones are the loss of u_0, as if the clients wanted 0."""
    here, eta = world(eps=eps), 0.1
    limits = exact.small_lambda(here, eta)
    for lam in (1e-2, 1e-4, 1e-6):
        small = replace(here, lam=lam)
        losses = [small.global_loss(fine_tune(small, eta, probing).u) for probing in (NO_PROBING, CONVERGED)]
        # Gaps of size lambda are differences of numbers of size 1: their relative precision is 1e-16 / lambda.
        np.testing.assert_allclose(np.array(losses) / lam**2, limits, rtol=0.1 * lam + 1e-14 / lam)
        if eps is not None:
            floor = np.mean([here.start.u[i] ** 2 + eps**2 * here.common @ here.common for i in range(5)]) / 2
            assert printed.printed_ft_covariate_loss(small, eta) == pytest.approx(floor, rel=10 * lam)


def test_a_counter_example_to_theorem_4_5_and_what_decides_instead() -> None:
    """eps = 1, eta = 0.1: with S = 1 LP-FT is worse at every small lambda, with S = 25 it is better."""
    here = world(eps=1.0)
    length = np.linalg.norm(here.common)
    for size, better in ((1.0, False), (5.0, True)):
        scaled = replace(here, common=here.common * size / length)
        ft, lpft = exact.small_lambda(scaled, 0.1)
        assert (lpft < ft) == better
        for lam in (1e-1, 1e-2, 1e-3, 1e-4):
            small = replace(scaled, lam=lam)
            losses = [small.global_loss(fine_tune(small, 0.1, probing).u) for probing in (NO_PROBING, CONVERGED)]
            assert (losses[1] < losses[0]) == better


def test_with_covariate_shift_lp_ft_wins_where_lambda_is_large() -> None:
    """FT's loss has a term lambda^4, LP-FT's has not: a threshold exists, but LP-FT is better above it."""
    here = world(eps=1.0)
    for probing, order in ((NO_PROBING, 4), (CONVERGED, 2)):
        far, further = (replace(here, lam=lam) for lam in (1e6, 1e7))
        growth = further.global_loss(exact.end(further, 0.1, probing)) / far.global_loss(exact.end(far, 0.1, probing))
        assert np.log10(growth) == pytest.approx(order, abs=0.05)


# --- Corollary E.2 and Remark 4.7 -------------------------------------------------------------------------------------


def small_losses_by_autograd(here: World, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Each client's loss over lambda^2 of FT by autograd, and of LP-FT at the least-squares head, by whole matrices."""

    def over(u: np.ndarray) -> np.ndarray:
        gaps = [u - here.B.T @ np.concatenate([here.common, here.lam * own]) for own in np.eye(here.clients)]
        return np.array([gap @ here.moment(i) @ gap for i, gap in enumerate(gaps)]) / (2 * here.lam**2)

    V, B = torch_steps(here, eta, NO_PROBING)
    root = np.linalg.cholesky(here.moment())
    wanted = here.B.T @ np.concatenate([here.common, here.lam * np.eye(here.clients)[0]])
    head = np.linalg.lstsq(root.T @ here.B.T, root.T @ wanted, rcond=None)[0]
    return over(B.T @ V), over(here.B.T @ head)


@pytest.mark.parametrize("eps", INPUTS)
def test_corollary_e_2_is_decided_by_the_client_and_not_by_lambda(eps: float | None) -> None:
    """The limits q_i and p_i against simulation and against autograd; p_1 is 0 and p_i as docs/theory.md has it."""
    found = []
    for seed in range(30):
        here, eta = world(seed, eps=eps), (0.05, 0.1, 0.3, 1.0)[seed % 4]
        q, p = exact.small_lambda_losses(here, eta)
        for lam in (1e-2, 1e-4):
            small = replace(here, lam=lam)
            simulated = [small.losses(fine_tune(small, eta, probing).u) for probing in (NO_PROBING, CONVERGED)]
            for ours in (np.array(simulated) / lam**2, small_losses_by_autograd(small, eta)):
                np.testing.assert_allclose(ours[0], q, rtol=5 * lam, atol=5 * lam)
                np.testing.assert_allclose(ours[1], p, rtol=1e-7, atol=1e-9)
            assert ((simulated[1] <= simulated[0]) == (p <= q))[np.abs(p - q) > 10 * lam].all()
        columns = np.arange(1, 5)
        apart = here.B[5, columns] - here.B[5 + columns, columns]
        np.testing.assert_allclose(p, [0, *([1.0] * 4 if eps is None else (apart**2 + 2 * eps**2) / 2)], atol=1e-12)
        assert p[0] <= q[0], "the client that fine-tunes never prefers FT"
        found += (p <= q)[1:].tolist()
    assert 0.05 < np.mean(found) < 0.95, "for the others it is one or the other"


def test_counter_examples_to_corollary_e_2_and_remark_4_7_in_plain_numbers() -> None:
    """B* = I (3 x 3), V_com = 1, eps = 1, eta = 0.1. FT ends at (1, 0.2 lambda, 0), LP-FT at (1, lambda, 0); client 2
    wants (1, 0, lambda) with Sigma = diag(1, 2, 1): (2 x 0.04 + 1) / 2 = 0.54 against (2 + 1) / 2 = 1.5. Client 1 has
    diag(2, 1, 1): 0.64 / 2 = 0.32 against 0. So the mean and client 2 prefer FT, client 1 LP-FT, at every lambda."""
    for lam in (10.0, 1.0, 1e-3):
        here = World(np.eye(3), np.ones(1), lam, 1.0)
        ft, lpft = (fine_tune(here, 0.1, probing).u for probing in (NO_PROBING, CONVERGED))
        np.testing.assert_allclose(ft, [1, 0.2 * lam, 0], atol=1e-12)
        np.testing.assert_allclose(lpft, [1, lam, 0], atol=1e-12)
        np.testing.assert_allclose(here.losses(ft) / lam**2, [0.32, 0.54], rtol=1e-9)
        np.testing.assert_allclose(here.losses(lpft) / lam**2, [0, 1.5], rtol=1e-9, atol=1e-12)
        assert here.global_loss(ft) < here.global_loss(lpft)


def test_remark_4_7_holds_for_the_other_clients_of_isotropic_inputs_only() -> None:
    def order(here: World, eta: float) -> tuple[np.ndarray, bool]:
        ft, lpft = (here.losses(fine_tune(here, eta, probing).u) for probing in (NO_PROBING, CONVERGED))
        return lpft <= ft, bool(lpft.mean() <= ft.mean())

    shifted = []
    for seed in range(60):
        clients, mean = order(world(seed), 0.1)
        assert (clients[1:] == mean).all()
        clients, mean = order(world(seed, eps=0.1, lam=1e-3), 0.1)
        shifted += (clients[1:] == mean).tolist()
    assert 0.5 < np.mean(shifted) < 0.95


# --- what does hold ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", INPUTS)
def test_probing_to_convergence_leaves_the_features_alone(eps: float | None) -> None:
    here, eta = world(eps=eps), 0.1
    length = np.linalg.norm(here.common)
    ft, lpft = fine_tune(here, eta, NO_PROBING), fine_tune(here, eta, CONVERGED)
    assert here.drift(lpft) == pytest.approx(0, abs=1e-12)
    moved = np.linalg.norm(here.moment() @ here.B[5])
    assert here.drift(ft) == pytest.approx(eta * here.lam * length * moved, rel=1e-12)
    if eps is None:
        alpha = exact.probed(eta, 7)
        some = eta * here.lam * (1 - alpha) * np.sqrt(length**2 + (here.lam * alpha) ** 2)
        assert here.drift(fine_tune(here, eta, 7)) == pytest.approx(some, rel=1e-12)


def test_at_the_same_local_loss_one_step_of_ft_ties_with_probing() -> None:
    """Isotropic population: both are u_0 + lambda x b with the same x; only FT has moved the features for it."""
    here = world()
    ft = fine_tune(here, 0.3 / (1 + here.common @ here.common), NO_PROBING)
    lp = fine_tune(here, 0.3, 1, steps=0)
    np.testing.assert_allclose(ft.u, lp.u, atol=1e-14)
    assert here.drift(lp) == 0 < here.drift(ft)
    # Many small steps of FT also change the common part of V a little: then it is a tie to a thousandth.
    long_ft, long_lp = matched(here, 0.5)
    for model in (long_ft, long_lp):
        assert here.local_loss(model.u) == pytest.approx(0.5 * here.local_loss(here.start.u), rel=1e-10)
    assert here.global_loss(long_ft.u) == pytest.approx(here.global_loss(long_lp.u), rel=1e-3)
    assert here.drift(long_lp) == 0 < here.drift(long_ft)


def test_on_few_rows_lp_ft_forgets_less_at_the_same_local_loss() -> None:
    """15 rows in 20 dimensions: FT follows directions that only the sample has, probing keeps to the features."""
    better = []
    for seed in range(20):
        here = world(seed, lam=1.0)
        both = matched(here, 0.5, moment=sample_moment(here, generator(seed, "rows"), 15))
        ft, lpft = (here.global_loss(model.u) for model in both)
        better.append(ft - lpft)
    assert np.mean(np.array(better) > 0) >= 0.9
    assert np.mean(better) > 0.01


def test_a_local_loss_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkeel.papers.theory.simulation.MOST_STEPS", 3)
    with pytest.raises(FedkeelError, match=r"still above 0\.5 of its first value after 3 steps"):
        matched(world(), 0.5)


def test_finite_samples_train_on_the_rows_themselves() -> None:
    """A step with X^T X / n is a step on the rows; and with n >= k rows probing still finds V_1*."""
    here, random = world(eps=None), generator(3, "rows")
    moment = sample_moment(here, generator(3, "rows"), 30)
    X = random.standard_normal((30, 20))
    y = X @ here.targets[0]
    V, B = here.start.V, here.B
    residual = X @ B.T @ V - y
    step_V, step_B = B @ X.T @ residual / 30, np.outer(V, residual @ X / 30)
    model = fine_tune(here, 0.1, NO_PROBING, moment=moment)
    np.testing.assert_allclose(model.V, V - 0.1 * step_V, atol=1e-12)
    np.testing.assert_allclose(model.B, B - 0.1 * step_B, atol=1e-12)
    np.testing.assert_allclose(fine_tune(here, 0.1, CONVERGED, moment=moment).u, here.targets[0], atol=1e-10)
    many = sample_moment(replace(here, eps=0.3), random, 200_000)
    np.testing.assert_allclose(many, replace(here, eps=0.3).moment(), atol=0.01)


def test_sampling_noise_helps_lp_ft() -> None:
    """As a share of worlds in which LP-FT is not worse, eta = 0.1, lambda = 0.5: more with 20 rows than with 2000."""

    def share(rows: int) -> float:
        wins = []
        for seed in range(60):
            here = world(seed, lam=0.5)
            moment = sample_moment(here, generator(seed, "noise"), rows)
            ft, lpft = (fine_tune(here, 0.1, probing, moment=moment).u for probing in (NO_PROBING, CONVERGED))
            wins.append(here.global_loss(lpft) <= here.global_loss(ft))
        return float(np.mean(wins))

    assert share(20) > share(2000) + 0.05


# --- Figure 6 ---------------------------------------------------------------------------------------------------------


def test_figure_6_as_printed_exact_and_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DRAWS", 40)
    monkeypatch.setattr(page, "MATCHED_DRAWS", 4)
    worlds = [draw(generator(0, "theory", number)) for number in range(40)]
    for eps in (0.1, 1.0):
        curves = page.measure(worlds, eps)
        as_printed, truth, simulated = curves.ratios
        np.testing.assert_allclose(truth[::2], simulated, rtol=1e-9)
        assert as_printed[0] < 0.01 < 1 < truth[0]
        assert 1 < (page.crossing(as_printed) or 0) < 10 < 100 < (page.crossing(truth) or 0)
        assert page.crossing(truth[0] * np.ones(13)) is None
    first = fk.reproduce("lp-ft/theory", out=tmp_path / "a")
    text = first.page.read_text()
    assert text.count("<figure>") == 3
    assert "The runs in full" not in text
    assert "Figure 6, three ways" in text
    assert "that floor is only the term that equation (5) forgets to subtract" in first.text
    assert "Client by client" in text
    counted = page.client_by_client(worlds)
    assert [row[0] for row in counted.table.rows] == ["isotropic", "ε = 0.1", "ε = 1"]
    assert [row[1] for row in counted.table.rows] == ["100"] * 3, "who fine-tunes never prefers FT"
    assert [row[4] for row in counted.table.rows] == ["100"] * 3, "rule and simulation agree"
    assert counted.table.rows[0][7] == "100" != counted.table.rows[1][7]
    assert first.results == []
    assert fk.reproduce("lp-ft/theory", out=tmp_path / "b").page.read_text() == text
    assert fk.reproduce("lp-ft/theory", seeds=[1], out=tmp_path / "c").text != first.text


def test_there_is_nothing_to_set_in_a_recipe_without_runs(tmp_path: Path) -> None:
    says(
        fedkeel("reproduce", "lp-ft/theory", "--set", "method.rounds=3", cwd=tmp_path),
        "lp-ft/theory has no runs: --set method.rounds=3 can change nothing there, leave --set out",
    )
    assert list(tmp_path.iterdir()) == []
