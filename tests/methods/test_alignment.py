"""The temperature-aligned divergence against scipy's root finding, finite differences and its own promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from fedkeel.methods.dual.alignment import (
    HIGHEST,
    LOWEST,
    Alignment,
    divergence,
    entropy,
    pull,
    temperature,
    temperatures,
)


def rows(seed: int, classes: int = 7, count: int = 12, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    drawn = np.random.default_rng(seed).normal(scale=spread, size=(2, count, classes))
    return torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])


def scipy_temperature(logits: np.ndarray, target: float) -> float:
    """The root by Brent's method."""
    return float(brentq(lambda tau: scipy_entropy(softmax(logits / tau)) - target, LOWEST, HIGHEST, xtol=1e-12))


def scipy_tkl(z: np.ndarray, f: np.ndarray) -> float:
    """TKL of one row, written down from its definition."""
    target = (scipy_entropy(softmax(z)) + scipy_entropy(softmax(f))) / 2
    p = softmax(z / scipy_temperature(z, target))
    log_q = log_softmax(f / scipy_temperature(f, target))
    return float((p * (np.log(p) - log_q)).sum())


def test_entropy_is_scipys() -> None:
    z, _ = rows(0)
    assert entropy(z).numpy() == pytest.approx(scipy_entropy(softmax(z.numpy(), axis=1), axis=1), rel=1e-12)


@given(st.integers(0, 10_000), st.integers(2, 40), st.floats(0.5, 6.0))
@settings(max_examples=40, deadline=None)
def test_temperatures_are_the_roots_that_scipy_finds(seed: int, classes: int, spread: float) -> None:
    """20 halvings of [0.05, 20] leave a bracket of 19.95 / 2^20 = 1.9e-5; its middle is at most half of that away."""
    z, f = rows(seed, classes, 4, spread)
    target = (entropy(z) + entropy(f)) / 2
    tau_z, tau_f = temperatures(z, f)
    for logits, found in ((z, tau_z), (f, tau_f)):
        for row, tau, wanted in zip(logits.numpy(), found.tolist(), target.tolist(), strict=True):
            ends = [scipy_entropy(softmax(row / end)) - wanted for end in (LOWEST, HIGHEST)]
            if ends[0] < 0 < ends[1]:
                assert tau == pytest.approx(scipy_temperature(row, wanted), abs=(HIGHEST - LOWEST) / 2**21)


@given(arrays(np.float64, (5, 6), elements=st.floats(-8, 8)), arrays(np.float64, (5, 6), elements=st.floats(-8, 8)))
@settings(max_examples=60, deadline=None)
def test_divergences_are_finite_and_never_negative(z: np.ndarray, f: np.ndarray) -> None:
    kinds: tuple[Alignment, ...] = ("tkl", "kl")
    for kind in kinds:
        found = divergence(torch.from_numpy(z), torch.from_numpy(f), kind)
        assert torch.isfinite(found).all()
        assert (found > -1e-12).all()
        assert torch.isfinite(pull(torch.from_numpy(z), torch.from_numpy(f), kind)).all()


def test_tkl_is_its_definition_with_scipys_temperatures() -> None:
    z, f = rows(1)
    wanted = [scipy_tkl(*pair) for pair in zip(z.numpy(), f.numpy(), strict=True)]
    assert divergence(z, f, "tkl").numpy() == pytest.approx(wanted, rel=1e-4)


def test_confidence_alone_is_no_divergence() -> None:
    """f = 3 z says the same, only louder: TKL is zero up to the bisection, KL is not."""
    z, _ = rows(2, spread=1.0)
    assert divergence(z, 3 * z, "tkl").max() < 1e-9
    assert divergence(z, 3 * z, "kl").min() > 1e-3


def test_the_pull_is_the_gradient_at_fixed_temperatures() -> None:
    """Central differences of KL(softmax(z / tau_z) || softmax(f / tau_f)) with the temperatures held."""
    z, f = rows(3, classes=4, count=3)
    tau_z, tau_f = temperatures(z, f)
    step = 1e-6
    for kind, held_z, held_f in (("tkl", tau_z, tau_f), ("kl", torch.ones(3).double(), torch.ones(3).double())):

        def value(moved: Tensor, held_z: Tensor = held_z, held_f: Tensor = held_f) -> np.ndarray:
            p = softmax((z / held_z[:, None]).numpy(), axis=1)
            log_q = log_softmax((moved / held_f[:, None]).numpy(), axis=1)
            found: np.ndarray = (p * (np.log(p) - log_q)).sum(1)
            return found

        found = pull(z, f, kind)  # type: ignore[arg-type]
        for column in range(4):
            nudge = torch.zeros_like(f)
            nudge[:, column] = step
            slope = (value(f + nudge) - value(f - nudge)) / (2 * step)
            assert found[:, column].numpy() == pytest.approx(slope, abs=1e-7)


def test_a_target_out_of_reach_ends_at_the_nearest_end() -> None:
    flat = torch.zeros(1, 5).double()
    peaked = torch.tensor([[60.0, 0, 0, 0, 0]]).double()
    assert temperature(flat, torch.zeros(1).double()).item() == pytest.approx(LOWEST, abs=1e-4)
    assert temperature(peaked, torch.full((1,), 9.0).double()).item() == pytest.approx(HIGHEST, abs=1e-4)
