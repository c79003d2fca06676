"""IFCA: choices by loss and means by choice, again in plain PyTorch; one cluster is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backbones import gradient_by_hand, logits_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.tree import Tree, take, unstack
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.networks.ifca import CLUSTERS, IFCA, LOSSES

LR = 0.3
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "batch": 50, "rounds": 3}
SIZES = (6, 9, 12, 7)


def loss(model: Tree, x: torch.Tensor, y: torch.Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits_by_hand(model, x), y))


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
def test_three_rounds_of_algorithm_1(engine: type) -> None:
    """Each client takes a step from the model that fits it best; each model becomes the mean by rows of what came of
    it, and stays where nobody chose it; in the end everybody chooses among the final models."""
    method = IFCA(clusters=3, **SGD)
    who, task = reading_images(clients(SIZES), CLASSES, shift=4.0)
    start = method.start(task)
    models = [{k: v.clone() for k, v in unstack(take(CLUSTERS, start.shared), j).items()} for j in range(3)]
    assert all((models[0][name] - models[1][name]).abs().max() > 0.01 for name in ("head.weight", "body.last.weight"))
    chosen = []
    for _ in range(3):
        chosen.append([])
        trained: list[list[tuple[int, Tree]]] = [[], [], []]
        for client, rows in enumerate(SIZES):
            x, y = pictures_of(who, client)
            losses = [loss(model, x, y) for model in models]
            j = losses.index(min(losses))
            model = {name: value.clone() for name, value in models[j].items()}
            trained[j].append((rows, plain_step(model, gradient_by_hand(model, x, y, moves=True), LR)))
            chosen[-1].append(j)
        for j, parts in enumerate(trained):
            total = sum(rows for rows, _ in parts)
            if parts:
                models[j] = {name: sum(n * part[name] for n, part in parts) / total for name in models[j]}  # type: ignore[misc]
    assert len(set(chosen[0])) == 2, "two of three models are chosen"
    state = played(method, engine(who), start, rounds=3)
    for j, model in enumerate(models):
        same(unstack(take(CLUSTERS, state.shared), j), model)
    for client in range(len(SIZES)):
        x, y = pictures_of(who, client)
        losses = [loss(model, x, y) for model in models]
        torch.testing.assert_close(private(who)[client][LOSSES], torch.tensor(losses), rtol=1e-4, atol=1e-5)
        mine = method.predict(state, private(who)[client], who.x[who.rows(client)])
        torch.testing.assert_close(mine, logits_by_hand(models[losses.index(min(losses))], x), rtol=1e-4, atol=1e-5)


def test_in_the_end_clients_choose_that_took_no_part() -> None:
    method = IFCA(**{**SGD, "rounds": 1}, participation=0.5)
    who, task = reading_images(clients(SIZES), CLASSES)
    played(method, LocalEngine(who), method.start(task))
    assert sorted(private(who)) == [0, 1, 2, 3]


def test_one_cluster_is_fedavg() -> None:
    how: dict[str, Any] = {"rounds": 2, "batch": 4, "epochs": 1, "lr": 0.01, "weight_decay": 0.0}
    method, plain = IFCA(clusters=1, **how), FedAvg(tune="network", **how)
    who, task = reading_images(clients(SIZES), CLASSES)
    ours = played(method, LocalEngine(who), method.start(task), rounds=2).shared
    theirs = played(plain, LocalEngine(who), plain.start(task), rounds=2).shared
    same(unstack(take(CLUSTERS, ours), 0), theirs)
