"""One client's training by itself, with autograd and PyTorch's optimizers: slow, and right by construction."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkeel.engines.base import Clients, schedule
from fedkeel.method import Batch, Method, Visit
from fedkeel.tree import Tree


def train(method: Method, clients: Clients, client: int, visit: Visit) -> tuple[Tree, Tree]:
    """Train from ``begin`` to ``end``: (what the client sends, what it keeps)."""
    params = {name: value.clone().requires_grad_() for name, value in method.begin(visit).items()}
    optimizer = visit.phase.optim.torch(list(params.values()))
    steps = 0
    for rows, u in schedule(clients, client, visit.round, visit.phase):
        step(method, params, optimizer, as_batch(clients, rows, u), visit)
        steps += 1
    trained = {name: value.detach() for name, value in params.items()}
    return method.end(trained, torch.tensor(float(steps)), visit)


def step(method: Method, params: Tree, optimizer: torch.optim.Optimizer, batch: Batch, visit: Visit) -> None:
    optimizer.zero_grad()
    method.loss(params, batch, visit).backward()  # type: ignore[no-untyped-call]
    detached = {name: value.detach() for name, value in params.items()}
    grads = {name: gradient(value) for name, value in params.items()}
    for name, grad in method.adjust(grads, detached, batch, visit).items():
        params[name].grad = grad
    optimizer.step()


def gradient(value: Tensor) -> Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad


def as_batch(clients: Clients, rows: np.ndarray, u: np.ndarray) -> Batch:
    index = torch.from_numpy(rows)
    return Batch(clients.x[index], clients.y[index], torch.full((len(rows),), 1.0 / len(rows)), torch.from_numpy(u))
