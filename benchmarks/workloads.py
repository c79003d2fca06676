"""The two workloads every speed is quoted on, and the plain PyTorch loop they are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.core.method import Method, State, Task
from fedkeel.core.rng import generator
from fedkeel.data.ownership import Ownership
from fedkeel.engines.base import choose, schedule
from fedkeel.engines.sites import Sites
from fedkeel.methods.heads.base import BIAS, WEIGHT, LinearProbe
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.ova_lp import OvaLP
from fedkeel.rows.features import Features


@dataclass(frozen=True)
class Workload:
    name: str
    what: str
    clients: int
    rows: int
    dim: int
    classes: int
    test_rows: int
    method: LinearProbe

    @property
    def task(self) -> Task:
        return Task(self.dim, self.classes, self.clients, seed=0)

    def federation(self) -> tuple[Sites, Tensor, Tensor]:
        """(sites, test rows, test labels): blobs, so that there is something to learn."""
        draw = generator(0, "benchmark", self.name)
        count = self.clients * self.rows
        labels = draw.integers(0, self.classes, count + self.test_rows)
        x = draw.standard_normal((count + self.test_rows, self.dim), dtype=np.float32)
        x += draw.standard_normal((self.classes, self.dim), dtype=np.float32)[labels]
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        owned = Ownership(np.arange(self.clients + 1) * self.rows, np.arange(count))
        names = [f"client-{k:05d}" for k in range(self.clients)]
        y = torch.from_numpy(labels)
        rows = torch.from_numpy(x)
        sites = Sites(names, Features(rows[:count]), y[:count], owned, seed=0, classes=self.classes)
        return sites, rows[count:], y[count:]

    def flop(self) -> float:
        """Multiplications and additions of one round: forward and weight gradient per row and epoch, and the test."""
        visited = self.clients * self.method.participation * self.rows * self.method.epochs
        return 2.0 * self.dim * self.classes * (2 * visited + self.test_rows)


W1 = Workload(
    "W1",
    "100 clients x 500 rows x 1024-d, 100 one-vs-all heads, AdamW, 3 epochs of batch 50, 10,000 test rows",
    100, 500, 1024, 100, 10_000, OvaLP(stages=1, bias=True),
)  # fmt: skip
W2 = Workload(
    "W2",
    "10,000 clients x 20 rows x 384-d, 20 classes, one SGD step, 10 % of the clients per round",
    10_000, 20, 384, 20, 0,
    FedAvg(bias=True, optimizer="sgd", lr=0.1, weight_decay=0.0, epochs=1, batch=20, participation=0.1),
)  # fmt: skip


def plain_round(method: LinearProbe, state: State, round: int, sites: Sites) -> State:
    """One round as everybody writes it first: a loop over clients, nn.Linear, autograd, torch.optim, same batches."""
    phase = method.plan(round)[0]
    one_vs_all = isinstance(method, OvaLP)
    totals = {name: torch.zeros_like(value) for name, value in state.shared.items()}
    weight = 0
    roster = sites.enrol().roster("benchmark", sites.seed, tuple(map(str, range(sites.classes))))
    for client in choose(roster, method, phase, round, []):
        owned = sites.owned.of(client)
        model = nn.Linear(sites.x.dim, len(state.shared[BIAS]))
        with torch.no_grad():
            model.weight.copy_(state.shared[WEIGHT])
            model.bias.copy_(state.shared[BIAS])
        optimizer = phase.optim.torch(list(model.parameters()))
        for rows, _ in schedule(sites.seed, sites.names[client], len(owned), round, phase):
            picked = torch.from_numpy(owned[rows])
            x, y = sites.x.read()[picked], sites.y[picked]
            logits = model(x)
            if one_vs_all:
                targets = nn.functional.one_hot(y, logits.shape[1]).float()
                loss = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(rows)
            else:
                loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weight += (count := len(owned))
        with torch.no_grad():
            totals[WEIGHT] += count * model.weight
            totals[BIAS] += count * model.bias
    return State({name: value / weight for name, value in totals.items()})


def accuracy(method: Method, state: State, x: Tensor, y: Tensor) -> float:
    with torch.inference_mode():
        return float((method.predict(state, {}, x).argmax(1) == y).float().mean()) if len(x) else float("nan")
