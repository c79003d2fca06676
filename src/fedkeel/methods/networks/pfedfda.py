"""pFedFDA: the head is a discriminant analysis between the client's and everybody's Gaussians of features.

McLaughlin, Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024. Features of class c
are N(mu_c, Sigma), so with class priors pi the head has the rows Sigma^-1 mu_c and the intercepts
    -mu_c^T Sigma^-1 mu_c / 2 + log pi_c.
A client trains the encoder under the frozen head of the global (mu, Sigma) and its own priors. Then it estimates
(mu, Sigma) on its rows and interpolates with the global ones,
    mu = beta_1 mu_own + (1 - beta_1) mu_global,   Sigma = beta_2 Sigma_own + (1 - beta_2) Sigma_global,
where beta minimises the cross-entropy of two-fold cross-validation (at most 10 iterations of L-BFGS). The server
averages encoders and interpolated statistics by rows; the head of a client's own is that of its interpolation.

Our choices: clients estimate after the encoder was averaged, in an exchange of its own, on the features that their
heads will see (the authors' code: on those seen in training, and anew for evaluation); a last phase fits the heads of
all clients to the last encoder; folds take turns within each class, and a class of one row is in none; without folds
beta = 0; absent classes have the global mean; Sigma gets 1e-4 on its diagonal, which keeps it positive definite (the
code adds 1, and 1e-4 to every entry); the global model has equal priors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Task, Visit, register
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import BIAS, WEIGHT
from fedkeel.methods.networks.base import ENCODER, Network
from fedkeel.models.backbone import Backbone
from fedkeel.rows.inputs import Inputs

GAUSS, MEANS, COVARIANCE = "gauss.", "gauss.means", "gauss.covariance"


class Gauss(NamedTuple):
    means: Tensor
    covariance: Tensor


@register("pfedfda", paper="heads from interpolated Gaussians of features (McLaughlin, Su, NeurIPS 2024)")
class PFedFDA(Network):
    ridge: float = Field(1e-4, gt=0)
    """added to the diagonal of estimated covariances"""
    prior_floor: float = Field(1e-4, gt=0)
    """added to the share of each class among a client's rows"""

    def start(self, task: Task) -> State:
        means = torch.from_numpy(generator(task.seed, "means").random((task.classes, task.dim))).float()
        return State({**Backbone.in_task(task).tree(task.seed), MEANS: means, COVARIANCE: torch.eye(task.dim)})

    def plan(self, round: int) -> list[Phase]:
        estimate = Phase("estimate", sends=(GAUSS,), cohort="same", epochs=0)
        fit = replace(estimate, name="fit", sends=(), cohort="all")
        return [self.phase("train", ENCODER, ENCODER), estimate, *([fit] if round == self.rounds else [])]

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        return self.network.cross_entropy({**params, **head(shared_in(visit.down), self.priors(visit.counts))}, batch)

    def measure(self, x: Tensor | Inputs, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        features, theirs = self.network.encoded(visit.down, x).double(), shared_in(visit.down)
        priors = self.priors(visit.counts)
        own = between(theirs, self.estimate(features, y, theirs), self.beta(features, y, theirs, priors))
        moved = {MEANS: own.means - theirs.means, COVARIANCE: own.covariance - theirs.covariance}
        return {name: value.float() for name, value in moved.items()} if visit.phase.sends else {}, head(own, priors)

    def priors(self, counts: Tensor) -> Tensor:
        shares = counts.double() / counts.sum() + self.prior_floor
        return shares / shares.sum()

    def estimate(self, features: Tensor, y: Tensor, others: Gauss) -> Gauss:
        """Of greatest likelihood; classes without rows have the others' mean."""
        members = torch.nn.functional.one_hot(y, len(others.means)).double()
        counts = members.sum(0).unsqueeze(1)
        means = torch.where(counts > 0, members.T @ features / counts.clamp(min=1), others.means)
        centred = features - means[y]
        return Gauss(means, centred.T @ centred / len(y) + self.ridge * torch.eye(features.shape[1]).double())

    def beta(self, features: Tensor, y: Tensor, theirs: Gauss, priors: Tensor) -> Tensor:
        """How much the client's own means and covariance count, by cross-validation."""
        from scipy.optimize import minimize

        fold = folds(y)
        parts = [(features[fold == k], y[fold == k]) for k in (0, 1)]
        if not len(parts[1][1]):
            return torch.zeros(2).double()
        fitted = [(self.estimate(*parts[1 - k], theirs), *parts[k]) for k in (0, 1)]

        def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
            beta = torch.from_numpy(at.copy()).requires_grad_()
            whole = torch.zeros(()).double()
            for own, rows, labels in fitted:
                weight, bias = discriminant(between(theirs, own, beta), priors)
                whole = whole + torch.nn.functional.cross_entropy(rows @ weight.T + bias, labels)
            (gradient,) = torch.autograd.grad(whole, [beta])
            return float(whole.detach()), gradient.numpy()

        few, unit = {"maxiter": 10}, [(0, 1), (0, 1)]
        found = minimize(loss, np.full(2, 0.5), jac=True, method="L-BFGS-B", bounds=unit, options=few)
        return torch.from_numpy(found.x)

    def predict(self, state: State, mine: Tree, x: Tensor | Inputs) -> Tensor:
        theirs = shared_in(state.shared)
        equal = torch.full((len(theirs.means),), 1 / len(theirs.means)).double()
        return super().predict(state, mine or head(theirs, equal), x)


def shared_in(tree: Tree) -> Gauss:
    return Gauss(tree[MEANS].double(), tree[COVARIANCE].double())


def between(theirs: Gauss, own: Gauss, beta: Tensor) -> Gauss:
    return Gauss(*(share * mine + (1 - share) * other for share, mine, other in zip(beta, own, theirs, strict=True)))


def discriminant(gauss: Gauss, priors: Tensor) -> tuple[Tensor, Tensor]:
    weight = torch.linalg.solve(gauss.covariance, gauss.means.T).T
    return weight, priors.log() - (gauss.means * weight).sum(1) / 2


def head(gauss: Gauss, priors: Tensor) -> Tree:
    weight, bias = discriminant(gauss, priors)
    return {WEIGHT: weight.float().contiguous(), BIAS: bias.float()}


def folds(y: Tensor) -> Tensor:
    """0 and 1 by turns within each class, -1 for a class of one row."""
    fold = torch.full_like(y, -1)
    for label in range(int(y.max()) + 1):
        rows = (y == label).nonzero().flatten()
        if len(rows) > 1:
            fold[rows] = torch.arange(len(rows)) % 2
    return fold
