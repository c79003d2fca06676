"""Co-teaching: each of two heads learns from the rows its peer finds easy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_steps import ENGINES

from federations import TASK, clients, played
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import State
from fedkeel.core.rng import generator
from fedkeel.core.roster import Enrolment
from fedkeel.data.ownership import Ownership
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.methods.heads.co_teaching import CoTeaching
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.rows.features import Features

SIZES, CLASSES, DIM = (7, 4), 3, 2


def seven_and_four() -> tuple[np.ndarray, np.ndarray, Sites]:
    draw = generator(0, "seven and four")
    x, y = draw.normal(size=(sum(SIZES), DIM)).astype(np.float32), draw.integers(0, CLASSES, sum(SIZES))
    owned = Ownership.of_owners(np.repeat([0, 1], SIZES), 2)
    return x, y, Sites(["a", "b"], Features(torch.from_numpy(x)), torch.from_numpy(y), owned, 0, CLASSES)


@ENGINES
def test_one_step(engine: type) -> None:
    """Heads V and W, R = 1 - 0.3: of client a's seven rows the nearest whole number to 4.9 are kept, five; of b's four
    (padded to seven in a stack) three, for 2.8. V steps along the mean gradient of the rows on which W's loss is
    smallest, and W the other way round; then each head is averaged by 7 and 4 rows."""
    x, y, who = seven_and_four()
    draw, heads = generator(1, "heads"), ("head.weight", "head.peer.weight")
    start = {name: draw.normal(size=(CLASSES, DIM)) for name in heads}
    method = CoTeaching(forget=0.3, warmup=1, optimizer="sgd", lr=0.6, epochs=1, batch=10, weight_decay=0.0)
    state = State({name: torch.from_numpy(value).float() for name, value in start.items()})
    after = played(method, engine(who), state).shared

    expected = {name: value.copy() for name, value in start.items()}
    chosen = {}
    for client, (rows, keep) in enumerate(((np.arange(7), 5), (np.arange(7, 11), 3))):
        p = {name: np.exp(x @ value.T) / np.exp(x @ value.T).sum(1, keepdims=True) for name, value in start.items()}
        for mine, other in (heads, heads[::-1]):
            loss = -np.log(p[other][rows, y[rows]])
            kept = rows[np.argsort(loss)[:keep]]
            gradient = (p[mine][kept] - np.eye(CLASSES)[y[kept]]).T @ x[kept] / keep
            expected[mine] -= SIZES[client] / 11 * 0.6 * gradient
            chosen[client, mine] = set(kept.tolist())
    assert chosen[0, heads[0]] != chosen[0, heads[1]], "the heads disagree, or nothing would be tested"
    for name in heads:
        np.testing.assert_allclose(after[name].numpy(), expected[name], rtol=1e-5, atol=1e-6)


def test_the_share_that_is_remembered() -> None:
    """R(T) = 1 - min(T / T_k tau, tau) falls from 1 to 1 - tau in T_k rounds and stays."""
    method = CoTeaching(forget=0.4, warmup=10)
    assert [method.remembered(round) for round in (1, 5, 10, 50)] == pytest.approx([0.96, 0.8, 0.6, 0.6])


def test_without_forgetting_each_head_is_fedavg() -> None:
    plain, both = FedAvg(batch=8, bias=True), CoTeaching(forget=0, batch=8, bias=True)
    start = both.start(TASK)
    ours = played(both, LocalEngine(clients()), start, 3).shared
    for prefix in ("head.", "head.peer."):
        head = {name: start.shared[prefix + name.removeprefix("head.")] for name in ("head.weight", "head.bias")}
        for name, value in played(plain, LocalEngine(clients()), State(head), 3).shared.items():
            torch.testing.assert_close(ours[prefix + name.removeprefix("head.")], value, rtol=1e-4, atol=1e-5)


def test_the_heads_start_apart_and_keyed() -> None:
    one, again, other = (CoTeaching().start(task).shared for task in (TASK, TASK, replace(TASK, seed=1)))
    assert torch.equal(one["head.weight"], again["head.weight"])
    assert not torch.isclose(one["head.weight"], one["head.peer.weight"]).any()
    assert not torch.isclose(one["head.weight"], other["head.weight"]).any()


def test_the_first_head_predicts() -> None:
    state, x = CoTeaching().start(TASK), torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(CoTeaching().predict(state, {}, x), x @ state.shared["head.weight"].T)


def test_a_client_with_a_single_class_is_refused() -> None:
    counts, names = np.array([[3, 4], [0, 0], [0, 5], [6, 0]]), ["paris", "nice", "lyon", "brest"]
    with pytest.raises(FedkeelError, match=r"'lyon' holds rows of one class only \(2 such clients\)") as refusal:
        CoTeaching().check(Enrolment.of_counts(names, counts, 0, np.zeros(2)))
    assert "\n" not in str(refusal.value)
    CoTeaching().check(Enrolment.of_counts(names[:2], counts[:2], 0, np.zeros(2)))
