"""pFedFDA's heads against scikit-learn's discriminant analysis, its weights against a search, its step by hand."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from backbones import WIDTH, gradient_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.rng import generator
from fedkeel.core.tree import select
from fedkeel.engines.local import LocalEngine
from fedkeel.methods.network import WHOLE
from fedkeel.methods.networks.pfedfda import COVARIANCE, MEANS, Gauss, PFedFDA, between, folds, head

DIM = 5
METHOD = PFedFDA(rounds=1, optimizer="sgd", lr=0.1, batch=50)


def rows(count: int, seed: int, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Gaussian classes around fixed centres, all of them moved by the shift."""
    centres, draw = generator(0, "centres").normal(size=(CLASSES, DIM)), generator(seed, "rows")
    y = np.arange(count) % CLASSES
    return torch.from_numpy(centres[y] + shift + 0.7 * draw.normal(size=(count, DIM))), torch.from_numpy(y)


class Ridged(EmpiricalCovariance):
    def fit(self, X: np.ndarray, y: None = None) -> Ridged:
        super().fit(X)
        self.covariance_ = self.covariance_ + METHOD.ridge * np.eye(X.shape[1])
        return self


def test_with_beta_one_the_head_is_a_discriminant_analysis() -> None:
    """scikit-learn's covariance is the mean of the classes' own, weighted by their shares: that of all centred rows."""
    x, y = rows(50, seed=1)
    x, y = x[:43], y[:43]
    counts = torch.bincount(y).float()
    nobody_s = Gauss(torch.full((CLASSES, DIM), 99.0).double(), 99 * torch.eye(DIM).double())
    ours = head(between(nobody_s, METHOD.estimate(x, y, nobody_s), torch.ones(2)), METHOD.priors(counts))
    shares = counts.numpy() / 43
    exact = LinearDiscriminantAnalysis(solver="lsqr", priors=shares, covariance_estimator=Ridged()).fit(x, y)
    np.testing.assert_allclose(ours["head.weight"], exact.coef_, rtol=1e-4)
    floored = np.log((shares + 1e-4) / (1 + CLASSES * 1e-4)) - np.log(shares)
    np.testing.assert_allclose(ours["head.bias"], exact.intercept_ + floored, rtol=1e-4)


def test_a_class_that_is_absent_has_the_global_mean() -> None:
    x, y = rows(40, seed=1)
    x, y = x[y != 2], y[y != 2]
    theirs = Gauss(torch.arange(CLASSES * DIM).reshape(CLASSES, DIM).double(), torch.eye(DIM).double())
    means = METHOD.estimate(x, y, theirs).means
    assert torch.equal(means[2], theirs.means[2])
    np.testing.assert_allclose(means[1], x[y == 1].mean(0))


def validated(x: np.ndarray, y: np.ndarray, theirs: Gauss, shares: np.ndarray, beta: np.ndarray) -> float:
    """The cross-entropy of two-fold cross-validation, with numpy and class by class."""
    fold, whole = folds(torch.from_numpy(y)).numpy(), 0.0
    for k in (0, 1):
        learn, test = fold == 1 - k, fold == k
        means = np.stack([x[learn & (y == c)].mean(0) for c in range(CLASSES)])
        covariance = np.cov((x[learn] - means[y[learn]]).T, bias=True) + METHOD.ridge * np.eye(DIM)
        means = beta[0] * means + (1 - beta[0]) * theirs.means.numpy()
        inverse = np.linalg.inv(beta[1] * covariance + (1 - beta[1]) * theirs.covariance.numpy())
        scores = x[test] @ inverse @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, inverse, means) + np.log(shares)
        whole -= log_softmax(scores, axis=1)[np.arange(test.sum()), y[test]].mean()
    return whole


def test_beta_is_the_best_by_cross_validation() -> None:
    """Many rows far from the others': their own means; few rows like the others': less so. No grid finds better."""
    pool = METHOD.estimate(*rows(4000, seed=7), Gauss(torch.zeros(CLASSES, DIM).double(), torch.eye(DIM).double()))
    found = {}
    for count, shift in ((400, 1.0), (24, 0.0)):
        x, y = rows(count, seed=2, shift=shift)
        shares = METHOD.priors(torch.bincount(y).float())
        beta = METHOD.beta(x, y, pool, shares).numpy()
        found[count] = beta
        grid = [np.array([a, b]) for a in np.linspace(0, 1, 21) for b in np.linspace(0, 1, 21)]
        best = min(validated(x.numpy(), y.numpy(), pool, shares.numpy(), at) for at in grid)
        assert validated(x.numpy(), y.numpy(), pool, shares.numpy(), beta) < best + 2e-3
    assert found[400][0] > 0.9
    assert found[24][0] < 0.6


def test_too_few_rows_for_folds_leave_the_global_statistics() -> None:
    assert folds(torch.tensor([3, 0, 3, 3, 1])).tolist() == [0, -1, 1, 0, -1]
    theirs = Gauss(torch.zeros(CLASSES, DIM).double(), torch.eye(DIM).double())
    x, _ = rows(3, seed=1)
    assert METHOD.beta(x, torch.tensor([0, 1, 2]), theirs, METHOD.priors(torch.ones(CLASSES))).tolist() == [0, 0]


def test_a_round_by_hand() -> None:
    """The encoder takes a step under the head of the global Gaussians and the client's priors, which does not move.
    Means and covariance that the server ends with are the clients' interpolations, averaged by rows."""
    who, task = reading_images(clients((12, 20)), CLASSES)
    state = METHOD.start(task)
    theirs = Gauss(state.shared[MEANS].double(), state.shared[COVARIANCE].double())
    after = played(METHOD, LocalEngine(who), state)
    moved, gausses = [], []
    for client in (0, 1):
        x, y = pictures_of(who, client)
        priors = METHOD.priors(torch.bincount(y, minlength=CLASSES).float())
        encoder = {name: value.clone() for name, value in select(state.shared, ("body.", "norm.", "stats.")).items()}
        whole = {**encoder, **head(theirs, priors)}
        grads = gradient_by_hand(whole, x, y, moves=True)
        moved.append(plain_step(encoder, grads, 0.1))
    same(
        select(after.shared, ("body.", "norm.", "stats.")),
        {name: (12 * moved[0][name] + 20 * moved[1][name]) / 32 for name in moved[0]},
    )
    for client in (0, 1):
        y = who.y[who.rows(client)]
        features = WHOLE.encoded(after.shared, who.x[who.rows(client)]).double()
        beta = METHOD.beta(features, y, theirs, METHOD.priors(torch.bincount(y, minlength=CLASSES).float()))
        gausses.append(between(theirs, METHOD.estimate(features, y, theirs), beta))
    expected = (12 * gausses[0].means + 20 * gausses[1].means) / 32
    torch.testing.assert_close(after.shared[MEANS].double(), expected, rtol=1e-4, atol=1e-5)
    assert after.shared[COVARIANCE].shape == (WIDTH, WIDTH)
    assert private(who)[0].keys() == {"head.weight", "head.bias"}
    own, common = METHOD.predict(after, private(who)[0], who.x), METHOD.predict(after, {}, who.x)
    assert not torch.allclose(own, common, atol=1e-2)
