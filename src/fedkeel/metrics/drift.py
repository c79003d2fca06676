"""How far clients pull apart: bias, variance and cross-class covariance of the gradients of a linear head, exactly.

Park, Yeo, Lee, OvA-LP, arXiv 2511.05028, Sections 3.1 and 3.3. With g_i the gradient of one row of client i, L_i the
client's loss, L the loss of all rows, n_i its rows and p_i = n_i / n:
    local bias       b_i = grad L_i - grad L
    global bias      B = E_i[grad L_i] - grad L
    local variance   v_i = Var[g_i], here its trace; that of a batch of m rows is v_i / m
    variance         V = Var[sum_i p_i g_i] = sum_i p_i^2 v_i
    cross-class      Cov(g_c, g_j) for classes c != j, summed over the features; here sum |off-diagonal| / sum diagonal

The gradient of a row with respect to W is the outer product of its residual r and its features x (with a bias, x has
one more feature, 1). So all of this follows from two sums per client, of r x^T and of |x|^2 r r^T, without autograd:
    Cov(g_c, g_j) = E[r_c r_j |x|^2] - <E g_c, E g_j>.

Remarks on the paper. B weights clients equally: with the weights p_i, which FedAvg uses, B is 0 by definition. The
residuals of softmax sum to 0, so its cross-class ratio is at least 1. One-vs-all heads are said to remove the
cross-class covariance; they do not, and on the features used here they raise it. What they remove is the influence of
one class's weights on another's gradient. The label still ties the classes together: a row is a negative of all classes
but one and pushes all of those along the same x; with heads at zero the ratio is about (C - 1) (1 - 4 / C). Measured on
20 Newsgroups (MiniLM, centred, 100 clients, Bernoulli-Dirichlet) before training and after 15 rounds: softmax 1.00 and
1.04, one-vs-all 15.2 and 16.2; OvA-LP has 0.03 in stage 1, then 17.7 and 17.3 in stage 2. It falls below softmax only
where the heads learn to say "no" to most classes, which takes a bias (0.65 after 15 rounds, at the price of accuracy).
That covariance is harmless, though: nearly all of it is a push that all heads share, and a vector added to all heads
changes no decision. ``decision_bias`` leaves this common part out and is the number to compare methods by; before
training softmax and one-vs-all have the same.

Our choices: these are gradients of the loss, before any correction that a method makes to them (``adjust``), for that
is what a correction works against. Where a phase draws a number u for each row (OvA-LP keeps a positive if u is below
the kept fraction), every row counts with so many evenly spaced numbers as the method says (``levels``): the expectation
over the draw, exact for fractions in whole per cent. IID clients have a local bias too, |b_i|^2 of about v_i / n_i: the
luck of the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, Batch, Phase, State, Visit
from fedkeel.core.tree import Tensor, Tree
from fedkeel.engines.base import going_down
from fedkeel.methods.dual.base import dual_of
from fedkeel.methods.heads.base import BIAS, WEIGHT, LinearProbe, logits

if TYPE_CHECKING:
    from fedkeel.engines.sites import Sites

Mine = Callable[[int], Tree]
ROOM = 2**22
"""Residuals in memory at once."""
ROUNDING = 1e-12
"""What is smaller than this share of the gradients is taken for 0."""


@dataclass(frozen=True)
class Drift:
    """The drift of one head under the loss of one phase; lengths of gradients unless said otherwise."""

    phase: str
    gradient: float
    """|grad L|"""
    local_bias: float
    """mean of |b_i| over the clients with rows"""
    local_bias_max: float
    local_bias_rms: float
    """root of sum_i p_i |b_i|^2"""
    relative_bias: float | None
    """local_bias_rms / |grad L|; None where the gradient is 0"""
    decision_bias: float | None
    """the same of b_i and grad L less what is common to all classes"""
    global_bias: float
    local_variance: float
    """mean of v_i over the clients with rows, squared length"""
    variance: float
    """V, squared length"""
    cross_class: float | None
    """ratio over the rows of the whole federation; None where no gradient varies"""
    cross_class_local: float | None
    """ratio within clients: both of its sums are means over the clients by rows"""


def linear_head(method: AnyMethod) -> LinearProbe:
    """The method, if its drift can be measured."""
    rounds = range(1, method.rounds + 1)
    if isinstance(method, LinearProbe) and method.in_closed_form and any(stepping(method, round) for round in rounds):
        return method
    raise FedkeelError(
        f"run.drift needs a dual encoder or a linear head that is trained in steps on a mean over rows, method "
        f"{method.name} has none: set run.drift = false"
    )


def measurable(method: AnyMethod) -> None:
    """Raise an error unless the drift of the method can be measured: of a linear head, or of a dual encoder."""
    if dual_of(method) is None:
        linear_head(method)


def stepping(method: LinearProbe, round: int) -> Phase | None:
    """The first phase of the round that trains the head."""
    return next((phase for phase in method.plan(round) if phase.epochs and WEIGHT.startswith(phase.trains)), None)


def drift(method: LinearProbe, sites: Sites, state: State, round: int, mine: Mine | None = None) -> Drift | None:
    """The drift at the heads in ``state`` under the loss that ``round`` trains; None if it trains no head.

    ``mine`` gives what a client keeps for itself; without it nobody was visited yet.
    """
    phase = stepping(method, round)
    if phase is None:
        return None
    gradients = _Gradients(method, sites, state, phase, round, mine or (lambda client: method.private(state.down)))
    able = np.flatnonzero(sites.owned.sizes).tolist()
    share = (sites.owned.sizes / len(sites.owned.rows)).tolist()
    mean = uniform = second = torch.zeros((), dtype=torch.float64)
    within = beside = local_variance = variance = 0.0
    for client in able:
        gradient, moment = gradients.moments(client)
        covariance = moment - gradient @ gradient.T
        mean = mean + share[client] * gradient
        uniform = uniform + gradient / len(able)
        second = second + share[client] * moment
        v = float(covariance.trace())
        local_variance += v / len(able)
        variance += share[client] ** 2 * v
        within += share[client] * v
        beside += share[client] * _off_diagonal(covariance)
    # A second pass, so that the gradients of all clients are never in memory together.
    lengths, squared, deciding = [], 0.0, 0.0
    for client in able:
        bias = gradients.mean(client) - mean
        lengths.append(float(bias.norm()))
        squared += share[client] * float(bias.square().sum())
        deciding += share[client] * float(_apart(bias).square().sum())
    length, covariance, energy = float(mean.norm()), second - mean @ mean.T, float(second.trace())
    return Drift(
        phase=phase.name,
        gradient=length,
        local_bias=sum(lengths) / len(able),
        local_bias_max=max(lengths),
        local_bias_rms=squared**0.5,
        relative_bias=_ratio(squared**0.5, length, energy**0.5),
        decision_bias=_ratio(deciding**0.5, float(_apart(mean).norm()), energy**0.5),
        global_bias=float((uniform - mean).norm()),
        local_variance=local_variance,
        variance=variance,
        cross_class=_ratio(_off_diagonal(covariance), float(covariance.trace()), energy),
        cross_class_local=_ratio(beside, within, energy),
    )


@dataclass(frozen=True)
class _Gradients:
    """The gradients of a client's rows, never all at once."""

    method: LinearProbe
    sites: Sites
    state: State
    phase: Phase
    round: int
    mine: Mine

    def mean(self, client: int) -> Tensor:
        """grad L_i, a matrix (classes, features)."""
        total = torch.zeros((), dtype=torch.float64)
        for x, r in self.rows(client):
            total = total + r.mean(0).T @ x
        return total / len(self.sites.owned.of(client))

    def moments(self, client: int) -> tuple[Tensor, Tensor]:
        """grad L_i and the matrix E[r r^T |x|^2] (classes, classes)."""
        gradient = moment = torch.zeros((), dtype=torch.float64)
        for x, r in self.rows(client):
            gradient = gradient + r.mean(0).T @ x
            long = (r * x.norm(dim=1, keepdim=True)).flatten(0, 1)
            moment = moment + long.T @ long / len(r)
        count = len(self.sites.owned.of(client))
        return gradient / count, moment / count

    def rows(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Some rows at a time: their features (rows, features) and residuals (levels of the draw, rows, classes)."""
        sites, phase = self.sites, self.phase
        per_client = {name: value[client] for name, value in self.state.per_client.items()}
        mine = self.mine(client)
        visit = Visit(going_down(self.state, phase), mine, phase, self.round, sites.counts[client], per_client)
        head = self.method.begin(visit)
        copies = self.method.levels if phase.draws else 1
        levels = (torch.arange(copies) + 0.5) / copies
        stacked = replace(visit, mine=_copied(mine, copies), per_client=_copied(per_client, copies),
                          counts=visit.counts.expand(copies, -1))  # fmt: skip
        features, owned = sites.x.tensor, sites.rows(client)
        assert features is not None
        most = max(1, ROOM // (copies * len(head[WEIGHT])))
        for first in range(0, len(owned), most):
            rows = owned[first : first + most]
            x, y = features[rows], sites.y[rows].expand(copies, -1)
            u = levels.unsqueeze(1).expand(-1, len(rows) if phase.draws else 0)
            batch = Batch(x.expand(copies, -1, -1), y, torch.full(y.shape, 1 / len(rows)), u)
            residuals = self.method.residual(logits(head, x).repeat(copies, 1, 1), batch, stacked)
            if BIAS in head:
                x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
            yield x.double(), residuals.double()


def _copied(tree: Tree, copies: int) -> Tree:
    return {name: value.expand(copies, *value.shape) for name, value in tree.items()}


def _off_diagonal(matrix: Tensor) -> float:
    return float(matrix.abs().sum() - matrix.diagonal().abs().sum())


def _apart(gradient: Tensor) -> Tensor:
    """A gradient without the part that is the same for all classes."""
    return gradient - gradient.mean(0)


def _ratio(part: float, whole: float, scale: float) -> float | None:
    return part / whole if whole > ROUNDING * scale else None
