"""One client's training by itself, with autograd and PyTorch's optimizers: slow, and right by construction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.method import Batch, Method, Visit
from fedkeel.core.tree import STATS, Tree
from fedkeel.engines.base import Clients, schedule
from fedkeel.models.backbone import Inputs


def train(method: Method, clients: Clients, client: int, visit: Visit) -> tuple[Tree, Tree]:
    """Train from ``begin`` to ``end``: (what the client sends, what it keeps)."""
    params = {name: value.clone() for name, value in method.begin(visit).items()}
    learnt = [name for name in params if not name.startswith(STATS)]
    optimizer = visit.phase.optim.torch([params[name].requires_grad_() for name in learnt])
    rows = clients.rows(client)
    x, y, first_to_last = method.once(clients.x[rows], visit), clients.y[rows], np.argsort(rows.numpy())
    if isinstance(x, Inputs):
        x = replace(x, moves=len(learnt) < len(params))
    steps = 0
    for picked, u in schedule(clients, client, visit.round, visit.phase):
        at = first_to_last[np.searchsorted(rows.numpy(), picked, sorter=first_to_last)]
        step(method, params, optimizer, as_batch(x, y, at, u), visit)
        steps += 1
    trained = {name: value.detach() for name, value in params.items()}
    return method.end(trained, torch.tensor(float(steps)), visit)


def step(method: Method, params: Tree, optimizer: torch.optim.Optimizer, batch: Batch, visit: Visit) -> None:
    grads = method.gradients(params, batch, visit)
    detached = {name: params[name].detach() for name in grads}
    for name, grad in method.adjust(grads, detached, batch, visit).items():
        params[name].grad = grad
    optimizer.step()


def as_batch(x: Any, y: Tensor, at: np.ndarray, u: np.ndarray) -> Batch:
    index = torch.from_numpy(at)
    return Batch(x[index], y[index], torch.full((len(at),), 1.0 / len(at)), torch.from_numpy(u))
