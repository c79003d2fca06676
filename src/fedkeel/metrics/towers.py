"""What is measured of a model that tunes a dual encoder: its own test rows class by class, its drift from zero-shot.

All of it is a simulation's privilege: it looks at rows of clients and at test rows, and nothing of it is ever sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fedkeel.core.method import Batch, Phase, State, Visit
from fedkeel.core.tree import STATS, Tensor, Tree, select
from fedkeel.engines.base import going_down, schedule
from fedkeel.engines.sites import Sites
from fedkeel.methods.dual.alignment import divergence, pull
from fedkeel.methods.dual.base import PART, PEFT, DualTuned
from fedkeel.metrics.accuracy import Evaluation, TestSets
from fedkeel.models.losses import softmax_rows

MOST_ANGLES = 10
"""Clients whose gradients are compared after a round."""
Mine = Callable[[int], Tree]
"""What a client keeps for itself."""


@dataclass(frozen=True)
class Own:
    """A client's model on its own test set. Where that is the common one, rows count as the client's classes weigh."""

    accuracy: float | None
    right: np.ndarray
    """of each class, how many rows are classified rightly"""
    rows: np.ndarray
    by_global: np.ndarray | None
    """of the right ones, how many owe more to the global branch: l_G of the true class above l_P"""


def on_own(method: DualTuned, state: State, mine: Tree, tests: TestSets, client: int) -> Own:
    at = tests.own_rows(client)
    classes = tests.label_counts.shape[1]
    if not len(at):
        return Own(None, np.zeros(classes), np.zeros(classes), None)
    x, labels = tests.x.pick(at).read(), tests.y[at]
    with torch.inference_mode():
        parts = [method.branches(state.shared, mine, part) for part in x.parts(PART)]
    branches = [torch.cat(logits) for logits in zip(*parts, strict=True)]
    hits = branches[-1].argmax(1) == labels
    weight = _weights(tests, client, labels)

    def of_classes(which: Tensor) -> np.ndarray:
        return np.bincount(labels[which].numpy(), weights=weight[which.numpy()], minlength=classes)

    by_global = None
    if len(branches) > 1:
        truth = labels.unsqueeze(1)
        by_global = of_classes(hits & (branches[0].gather(1, truth) > branches[1].gather(1, truth)).squeeze(1))
    right, rows = of_classes(hits), of_classes(torch.ones_like(hits))
    return Own(float(right.sum() / rows.sum()), right, rows, by_global)


def _weights(tests: TestSets, client: int, labels: Tensor) -> np.ndarray:
    """Of each row; on the common test set all rows of a class weigh as much as the client's training rows of it."""
    if tests.owned is not None:
        return np.ones(len(labels))
    there = np.bincount(labels.numpy(), minlength=tests.label_counts.shape[1])
    weights: np.ndarray = (tests.label_counts[client] / np.maximum(there, 1))[labels.numpy()]
    return weights


def pooled(models: list[Own]) -> dict[str, Any]:
    """Over all clients: right answers and rows of each class, and what of them is the global branch's."""
    ruled = [model.by_global for model in models if model.by_global is not None]
    return {
        "personal": [model.accuracy for model in models],
        "personal_right": np.sum([model.right for model in models], axis=0).tolist(),
        "personal_rows": np.sum([model.rows for model in models], axis=0).tolist(),
        "by_global": np.sum(ruled, axis=0).tolist() if ruled else None,
    }


def zero_shot_per_class(tests: TestSets) -> list[float | None]:
    found = torch.cat([part.zero_shot.argmax(1) for part in tests.x.read().parts(PART)])
    return Evaluation((found == tests.y).numpy(), tests.y.numpy()).per_class(tests.label_counts.shape[1])


@dataclass(frozen=True)
class Balance:
    """The global model after a round, beside zero-shot."""

    per_class: list[float | None]
    kl: float
    tkl: float
    """mean divergences of zero-shot from the model on the test rows"""
    agreement: float
    """share of the test rows on which the model says what zero-shot says"""
    angle: float | None
    angles: list[float]
    """in degrees, between the gradients of task and alignment, on one batch of each client; and their mean"""


def balance(method: DualTuned, sites: Sites, state: State, round: int, tests: TestSets) -> dict[str, Any]:
    with torch.inference_mode():
        f = method.predict(state, {}, tests.x.read())
        z = torch.cat([part.zero_shot for part in tests.x.read().parts(PART)])
    evaluation = Evaluation((f.argmax(1) == tests.y).numpy(), tests.y.numpy())
    found = angles(method, sites, state, round)
    measured = Balance(
        evaluation.per_class(tests.label_counts.shape[1]),
        float(divergence(z, f, "kl").mean()),
        float(divergence(z, f, "tkl").mean()),
        float((f.argmax(1) == z.argmax(1)).float().mean()),
        float(np.mean(found)) if found else None,
        found,
    )
    return asdict(measured)


def angles(method: DualTuned, sites: Sites, state: State, round: int) -> list[float]:
    """Of clients with rows, on the first batch of what the next round would train; none where a gradient is zero."""
    found = (between(method, state, x, y) for _, _, x, y in _first_batches(method, sites, round))
    return [angle for angle in found if angle is not None]


def _first_batches(method: DualTuned, sites: Sites, round: int) -> Iterator[tuple[int, Phase, Any, Tensor]]:
    """Of some clients with rows, what the next round begins with: client, phase, rows and labels."""
    phases = method.plan(min(round + 1, method.rounds))
    if not phases:
        return
    able = np.flatnonzero(sites.owned.sizes)
    some = able[np.linspace(0, len(able) - 1, min(MOST_ANGLES, len(able))).astype(int)]
    for client in some.tolist():
        x, y = sites.train.of(client)
        picked, _ = next(schedule(sites.seed, sites.names[client], len(y), round + 1, phases[0]))
        first = torch.from_numpy(picked)
        yield client, phases[0], x.pick(first).read(), y[first]


def client_drift(method: DualTuned, sites: Sites, state: State, round: int, mine: Mine) -> float | None:
    """How far the clients' steps on the shared module pull apart: the root of the mean of |g_k - g|^2 over |g|, with
    g_k what client k would step along on the first batch of the next round, purified where the method purifies, and g
    the mean of these. None where nobody would step.

    FedPuReL's supplement says that purification lowers client drift (Section E); how that was measured is in the part
    of the paper that could not be had, so this is our reading: that of OvA-LP's local bias.
    """
    steps = []
    for client, phase, x, y in _first_batches(method, sites, round):
        visit = Visit(going_down(state, phase), mine(client), phase, round + 1, sites.counts[client])
        params = {
            name: value.clone().requires_grad_(not name.startswith(STATS))
            for name, value in method.begin(visit).items()
        }
        weight = torch.full((len(y),), 1 / len(y))
        grads = method.gradients(params, Batch(x, y, weight, torch.empty(0)), visit)
        steps.append(_as_one(tuple(select(grads, (PEFT,)).values())))
    if not steps or not steps[0].numel():
        return None
    stacked = torch.stack(steps)
    common = stacked.mean(0)
    apart = (stacked - common).square().sum(1).mean().sqrt()
    return float(apart / common.norm()) if common.norm() > 0 else None


def between(method: DualTuned, state: State, x: Any, y: Tensor) -> float | None:
    """The angle between the two gradients by everything shared, as one vector."""
    shared = {name: value.clone().requires_grad_() for name, value in state.shared.items()}
    logits = method.branches(shared, {}, x)[-1]
    if not logits.requires_grad:
        return None
    wanted = list(shared.values())
    align = _as_one(
        torch.autograd.grad(logits, wanted, pull(x.zero_shot, logits.detach(), "tkl"), True, allow_unused=True)
    )
    task = _as_one(torch.autograd.grad(softmax_rows(logits, y).sum(), wanted, allow_unused=True))
    lengths = task.norm() * align.norm()
    if not lengths > 0:
        return None
    return float(torch.rad2deg(torch.acos((task @ align / lengths).clamp(-1, 1))))


def _as_one(gradients: tuple[Tensor | None, ...]) -> Tensor:
    return torch.cat([gradient.flatten().double() for gradient in gradients if gradient is not None])
