"""Fed-GraB's balancer against its controllers written down step by step, and what it is for: rare classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from duals import paired
from federations import clients, private
from fedkeel.core.method import METHODS, Batch
from fedkeel.core.tree import STATS, Tree, select
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.dual import grab
from fedkeel.methods.dual.grab import BEFORE, CONTROL, ERROR, balanced, fresh, weight


def batch(labels: list[int]) -> Batch:
    rows = len(labels)
    return Batch(torch.empty(rows, 0), torch.tensor(labels), torch.full((rows,), 1 / rows), torch.empty(0))


class ByHand:
    """One number at a time, in float64, as the released code has it: sums of both sides, then a PID per class."""

    def __init__(self, classes: int) -> None:
        self.positive, self.negative = np.zeros(classes), np.zeros(classes)
        self.u, self.e1, self.e2 = np.zeros(classes), np.zeros(classes), np.zeros(classes)

    def step(self, logits: np.ndarray, labels: list[int]) -> np.ndarray:
        gradient = np.zeros_like(logits)
        for row, label in enumerate(labels):
            for c in range(logits.shape[1]):
                plain = (1 / (1 + np.exp(-logits[row, c])) - (label == c)) / len(labels)
                x = self.u[c] if label == c else -self.u[c]
                gradient[row, c] = plain * (10 / 9) / (1 / 9 + np.exp(-x / 2))
        for c in range(logits.shape[1]):
            for row, label in enumerate(labels):
                side = self.positive if label == c else self.negative
                side[c] += abs(gradient[row, c])
            e0 = 0 - (self.positive[c] - self.negative[c])
            self.u[c] += 10 * (e0 - self.e1[c]) + 0.01 * e0 + 0.1 * (e0 - 2 * self.e1[c] + self.e2[c])
            self.e1[c], self.e2[c] = e0, self.e1[c]
        return gradient


def test_several_steps_by_hand() -> None:
    rng = np.random.default_rng(0)
    params, hand = fresh(3), ByHand(3)
    for size in (4, 4, 1, 6, 4):
        labels = rng.choice(3, size=size, p=[0.7, 0.2, 0.1]).tolist()
        z = rng.normal(size=(size, 3)) * 3
        logits = torch.from_numpy(z).float().requires_grad_()
        balanced(logits, params, batch(labels)).backward()  # type: ignore[no-untyped-call]
        assert logits.grad is not None
        assert logits.grad.numpy() == pytest.approx(hand.step(z, labels), rel=1e-4, abs=1e-7)
        for name, value in ((CONTROL, hand.u), (ERROR, hand.e1), (BEFORE, hand.e2)):
            assert params[name].numpy() == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert np.abs(hand.u).max() > 1, "the controllers have moved"


def test_the_weight_is_one_at_rest_and_between_nought_and_ten() -> None:
    assert weight(torch.tensor(0.0)) == pytest.approx(1.0)
    u = torch.linspace(-1000, 1000, 2001)
    assert (weight(u).diff() >= 0).all()
    assert (weight(u[0]), weight(u[-1])) == (0, 10), "no overflow, however far a controller has gone"
    x = np.array([-7.0, -1.0, 0.5, 4.0])
    assert weight(torch.from_numpy(x)).numpy() == pytest.approx((10 / 9) / (1 / 9 + np.exp(-x / 2)))


def test_the_first_step_is_the_plain_binary_gradient() -> None:
    """All controllers are at rest: binary cross-entropy, summed over classes, mean over rows, by differences."""
    rng = np.random.default_rng(1)
    z, labels = rng.normal(size=(5, 4)), [0, 1, 1, 3, 2]

    def loss(z: np.ndarray) -> float:
        own = np.eye(4)[labels]
        return float((np.logaddexp(0, -z) * own + np.logaddexp(0, z) * (1 - own)).sum() / 5)

    logits = torch.from_numpy(z).requires_grad_()
    params = {name: value.double() for name, value in fresh(4).items()}
    balanced(logits, params, batch(labels)).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    for row, c in ((0, 0), (0, 2), (3, 3), (4, 1)):
        step = np.zeros_like(z)
        step[row, c] = 1e-6
        assert logits.grad[row, c].item() == pytest.approx((loss(z + step) - loss(z - step)) / 2e-6, abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_the_rarest_class_weighs_most_and_its_two_sums_are_held_together(seed: int) -> None:
    """A linear head on a long tail of 200 to 5 rows, 20 epochs; beside it the same with all weights held at 1."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), [200, 60, 20, 5])
    x = torch.from_numpy(rng.normal(size=(4, 8))[labels] + rng.normal(size=(len(labels), 8))).float()
    batches = [part for _ in range(20) for part in np.array_split(rng.permutation(len(labels)), 9)]

    def trained(held: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean weight of each class's own rows, what its two sums differ by in the end)"""
        head, params, weights = torch.zeros(4, 8, requires_grad=True), fresh(4), []
        for at in batches:
            (gradient,) = torch.autograd.grad(balanced(x[at] @ head.T, params, batch(labels[at].tolist())), head)
            head.data -= 0.1 * gradient
            if held:
                params[CONTROL].zero_()
            weights.append(weight(params[CONTROL]))
        return torch.stack(weights).mean(0), params[ERROR].abs()

    (weights, apart), (_, plainly) = trained(False), trained(True)
    assert weights.argmax() == 3
    assert weights[3] > 2 * weights[0]
    assert apart[3] < 1 < 4 < plainly[3]


def served() -> tuple[Sites, Any, Any]:
    method = METHODS["promptfl"](rounds=3, participation=1.0, batch=4, balance="grab", lr=0.1, personal_epochs=1)
    who, task = paired(clients((9, 6)), method)  # type: ignore[arg-type]
    return who, method, method.start(task)


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
def test_a_client_goes_on_where_it_was_on_every_engine(engine: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every visit the controllers start from what the last one kept, in the personal phase too."""
    who, method, state = served()
    worker, seen = engine(who), []
    step = grab.balanced_gradient

    def spy(logits: torch.Tensor, params: Tree, batch: Batch) -> torch.Tensor:
        seen.append({name: value.clone() for name, value in select(params, (STATS,)).items()})
        return step(logits, params, batch)

    monkeypatch.setattr(grab, "balanced_gradient", spy)
    kept = fresh(4)
    phases = [(round, phase) for round in (1, 2, 3) for phase in method.plan(round)]
    assert [phase.name for _, phase in phases] == ["tune", "tune", "tune", "personal"]
    for round, phase in phases:
        seen.clear()
        exchange = worker.exchange(method, state, phase, round, [0])
        assert len(seen) == 3, "nine rows in batches of four"
        assert all(torch.equal(seen[0][name], kept[name]) for name in kept)
        kept = select(private(who)[0], (STATS,))
        assert not torch.equal(kept[CONTROL], seen[0][CONTROL])
        if exchange.update is not None:
            assert not select(exchange.update.mean, (STATS,))
            state = method.merge(state, exchange.update, phase)
    assert 1 not in private(who), "nobody else's have moved"


def test_the_balancer_acts_on_purified_gradients_too() -> None:
    """In FedPuReL's first phase the task gradient is the balanced one, and the controllers move once per step."""
    from fedkeel.methods.dual.fedpurel import task_and_alignment

    method = METHODS["fedpurel"](peft="adapter", balance="grab")
    who, task = paired(clients((7,)), method)  # type: ignore[arg-type]
    x: Any = who.x
    whole = Batch(x, who.y, torch.full((7,), 1 / 7), torch.empty(0))
    leaves = {name: value.clone().requires_grad_() for name, value in method.start(task).shared.items()}
    params = {**leaves, **fresh(4), CONTROL: torch.tensor([2.0, -1.0, 0.5, 3.0])}
    found, _ = task_and_alignment(method, params, whole, "tkl")  # type: ignore[arg-type]
    logits = method.module.logits({name[5:]: leaf for name, leaf in leaves.items()}, x)  # type: ignore[attr-defined]
    hand = ByHand(4)
    hand.u = np.array([2.0, -1.0, 0.5, 3.0])
    by_hand = torch.from_numpy(hand.step(logits.detach().double().numpy(), who.y.tolist())).float()
    expected = torch.autograd.grad(logits, list(leaves.values()), by_hand)
    for name, value in zip(leaves, expected, strict=True):
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    assert params[CONTROL].numpy() == pytest.approx(hand.u, rel=1e-4), "once, not twice"
