"""FedL2G's gradient of the guiding vectors against finite differences, and what moves when."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import cross_entropy

from backbones import logits_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.method import Update
from fedkeel.core.tree import Tree, learnt
from fedkeel.engines.base import schedule
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.networks.fedl2g import GUIDE, FedL2G

METHOD = FedL2G(rounds=3, warmup=1, inner_lr=0.5, batch=50)


def guided_gradient(tree: Tree, guide: Tensor, x: Tensor, y: Tensor) -> Tree:
    leaves = {name: value.clone().requires_grad_() for name, value in learnt(tree).items()}
    logits = logits_by_hand({**tree, **leaves}, x)
    loss = cross_entropy(logits, y) + torch.nn.functional.mse_loss(logits, guide[y])
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("batch", [50, 4])
def test_what_a_client_sends_is_the_derivative_of_its_quiz_after_the_guided_step(batch: int) -> None:
    """Central differences in float64, averaged over the batches; study and quiz are the halves of a batch."""
    method = METHOD.model_copy(update={"batch": batch})
    who, task = reading_images(clients((10,)), CLASSES)
    state, phase = method.start(task), method.plan(1)[0]
    update = LocalEngine(who).exchange(method, state, phase, 1, [0]).update
    assert update is not None
    x, y = (part.double() if part.is_floating_point() else part for part in pictures_of(who, 0))
    theta = {name: value.double() for name, value in state.server.items()}
    batches = [picked for picked, _ in schedule(who.seed, who.names[0], 10, 1, phase)]
    assert len(batches) == (1 if batch == 50 else 3)

    def quiz(guide: Tensor) -> float:
        losses = []
        for rows in batches:
            study, rest = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            after = plain_step(theta, guided_gradient(theta, guide, x[study], y[study]), 0.5)
            losses.append(cross_entropy(logits_by_hand(after, x[rest]), y[rest]))
        return float(torch.stack(losses).mean())

    guide, width = state.shared[GUIDE].double(), 1e-4
    numeric = torch.zeros_like(guide)
    for c in range(CLASSES):
        for j in range(CLASSES):
            nudge = torch.zeros_like(guide)
            nudge[c, j] = width
            numeric[c, j] = (quiz(guide + nudge) - quiz(guide - nudge)) / (2 * width)
    assert numeric.abs().max() > 1e-3
    torch.testing.assert_close(update.each[GUIDE][0].double(), numeric, rtol=1e-3, atol=1e-6)


def test_the_server_averages_a_class_over_the_clients_that_have_it() -> None:
    state = METHOD.start(reading_images(clients((9,)), CLASSES)[1])
    d = torch.zeros(3, CLASSES, CLASSES)
    d[0, 0, 1], d[1, 0, 1], d[2, 3, 2] = 0.02, 0.04, 0.05
    moved = METHOD.merge(state, Update({}, {GUIDE: d}, torch.arange(3), torch.ones(3), 1), METHOD.plan(1)[0])
    expected = torch.zeros(CLASSES, CLASSES)
    expected[0, 1], expected[3, 2] = 0.03, 0.05
    torch.testing.assert_close(state.shared[GUIDE] - moved.shared[GUIDE], METHOD.server_lr * expected)


def test_the_warm_up_learns_vectors_only_and_no_model_ever_leaves() -> None:
    who, task = reading_images(clients((6, 9, 5)), CLASSES)
    sent: list[bytes] = []
    engine, start = WireEngine(who, transport=lambda _, reply: sent.append(reply) or reply), METHOD.start(task)
    warm = played(METHOD, engine, start)
    assert not torch.equal(warm.shared[GUIDE], start.shared[GUIDE])
    for client in range(3):
        same(private(who)[client], start.server)
    who.store.forget_after(-1)
    engine = WireEngine(who, transport=lambda _, reply: sent.append(reply) or reply)
    state = played(METHOD, engine, start, rounds=2)
    assert list(state.shared) == [GUIDE]
    assert not any(prefix in message for message in sent for prefix in (b"body.", b"head.", b"norm.", b"stats."))
    models = [private(who)[client]["head.weight"] for client in range(3)]
    assert not torch.allclose(models[0], models[1], atol=1e-4)
    assert not torch.allclose(models[0], start.server["head.weight"], atol=1e-4)


def test_a_local_step_follows_the_cross_entropy_and_the_vectors() -> None:
    method = FedL2G(rounds=3, warmup=1, batch=50, optimizer="sgd", lr=0.2)
    who, task = reading_images(clients((9,)), CLASSES)
    state, (x, y) = method.start(task), pictures_of(who, 0)
    LocalEngine(who).exchange(method, state, method.plan(2)[0], 2, [0])
    tree = {name: value.clone() for name, value in state.server.items()}
    leaves = {name: value.clone().requires_grad_() for name, value in learnt(tree).items()}
    logits = logits_by_hand({**tree, **leaves}, x, moves=True)
    loss = cross_entropy(logits, y) + ((logits - state.shared[GUIDE][y]) ** 2).sum() / (9 * CLASSES)
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    same(private(who)[0], plain_step(tree, grads, 0.2))


def test_a_warm_up_without_end_is_refused() -> None:
    with pytest.raises(ValidationError, match="warmup = 3 of rounds = 3 leaves no round that trains models"):
        FedL2G(rounds=3, warmup=3)
