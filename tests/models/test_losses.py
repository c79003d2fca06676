"""Losses against scipy, and their closed-form gradients against autograd and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax
from torch import Tensor

from fedkeel.core.method import Batch, Visit
from fedkeel.core.rng import generator
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.ova_lp import OvaLP

ROWS, CLASSES = 7, 5
DRAW = generator(0, "losses")
LOGITS = torch.from_numpy(DRAW.normal(size=(ROWS, CLASSES)) * 3)
LABELS = torch.from_numpy(DRAW.integers(0, CLASSES, ROWS))
BATCH = Batch(torch.empty(ROWS, 1), LABELS, torch.full((ROWS,), 1 / ROWS), torch.from_numpy(DRAW.random(ROWS)))

CASES: dict[str, tuple[LinearProbe, int]] = {
    "softmax": (FedAvg(), 1),
    "ova, one stage": (OvaLP(stages=1), 1),
    "ova, stage 1": (OvaLP(), 1),
    "ova, stage 2": (OvaLP(positives=0.5), 2),
    "ova, stage 2 by samples": (OvaLP(positives=0.5, positive_mode="sample"), 2),
}


def visit(method: LinearProbe, round: int) -> Visit:
    return Visit({}, {}, method.plan(round)[0])


@pytest.mark.parametrize(("method", "round"), CASES.values(), ids=CASES.keys())
def test_the_closed_form_is_the_gradient(method: LinearProbe, round: int) -> None:
    logits = LOGITS.clone().requires_grad_()
    method.rows(logits, BATCH, visit(method, round)).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(
        method.residual(LOGITS, BATCH, visit(method, round)), logits.grad, rtol=1e-12, atol=1e-12
    )
    numeric = finite_differences(lambda z: method.rows(z, BATCH, visit(method, round)).sum(), LOGITS)
    torch.testing.assert_close(logits.grad, numeric, rtol=1e-6, atol=1e-7)


def finite_differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-5) -> Tensor:
    slope = torch.zeros_like(at)
    for index in np.ndindex(*at.shape):
        up, down = at.clone(), at.clone()
        up[index] += step
        down[index] -= step
        slope[index] = (function(up) - function(down)) / (2 * step)
    return slope


def test_softmax_rows_against_scipy() -> None:
    expected = -log_softmax(LOGITS.numpy(), axis=1)[np.arange(ROWS), LABELS.numpy()]
    np.testing.assert_allclose(FedAvg().rows(LOGITS, BATCH, visit(FedAvg(), 1)), expected, rtol=1e-12)


def test_one_vs_all_rows_against_scipy() -> None:
    """Stage 1 is -log q_y; the full loss adds -log(1 - q_c) of all others; stage 2 drops -log q_y where u >= rho."""
    q = expit(LOGITS.numpy())
    rows = np.arange(ROWS)
    positive = -np.log(q[rows, LABELS.numpy()])
    negative = -np.log1p(-q).sum(1) + np.log1p(-q[rows, LABELS.numpy()])
    one, two, half = OvaLP(stages=1), OvaLP(), OvaLP(positives=0.5)
    np.testing.assert_allclose(two.rows(LOGITS, BATCH, visit(two, 1)), positive, rtol=1e-9)
    np.testing.assert_allclose(one.rows(LOGITS, BATCH, visit(one, 1)), positive + negative, rtol=1e-9)
    kept = BATCH.u.numpy() < 0.5
    assert 0 < kept.sum() < ROWS
    np.testing.assert_allclose(half.rows(LOGITS, BATCH, visit(half, 2)), positive * kept + negative, rtol=1e-9)


def test_rho_one_is_the_one_stage_loss() -> None:
    all_kept, one = OvaLP(positives=1.0), OvaLP(stages=1)
    ours, theirs = all_kept.rows(LOGITS, BATCH, visit(all_kept, 2)), one.rows(LOGITS, BATCH, visit(one, 2))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_no_class_appears_in_the_update_of_another() -> None:
    """Section 3.3: the gradient of head c depends on its own logit only; with softmax it does not."""
    moved = LOGITS.clone()
    moved[:, 0] += 1.0
    one, soft = OvaLP(stages=1), FedAvg()
    before, after = (one.residual(z, BATCH, visit(one, 1)) for z in (LOGITS, moved))
    torch.testing.assert_close(before[:, 1:], after[:, 1:], rtol=0, atol=0)
    before, after = (soft.residual(z, BATCH, visit(soft, 1)) for z in (LOGITS, moved))
    assert float((before[:, 1:] - after[:, 1:]).abs().max()) > 1e-3
