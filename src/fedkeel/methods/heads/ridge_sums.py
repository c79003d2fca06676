"""Ridge regression onto one-hot labels, from sums over rows alone: it cannot matter who held which row.

    A = sum_i (x_i - mu)(x_i - mu)^T,  B = sum_i (x_i - mu)(y_i - share)^T,  (A + lambda I) W = B,  b = share - W^T mu
is the least-squares head with an intercept that is not penalised, and sums of x x^T, of x by class and of rows by class
are all it takes: A = sum x x^T - n mu mu^T, B_c = sum_{y = c} x - n_c mu. Everything is float64.

lambda is relative to the mean diagonal of A. Where it is not given, generalised cross-validation chooses it (Golub,
Heath, Wahba, Technometrics 1979): the lambda with the least RSS(lambda) / (n - df(lambda))^2, df = 1 + trace(A (A +
lambda I)^-1). It needs nothing but the same sums, so the choice does not depend on the partition either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.tree import Tensor, Tree

SQUARES, CLASS_SUMS, CLASS_ROWS = "sum.squares", "sum.x", "sum.rows"
GRID = tuple(10 ** (quarter / 4) for quarter in range(-16, 5))
"""What generalised cross-validation chooses from: 1e-4 to 10 times the mean diagonal."""


def no_class_sums(dim: int, classes: int) -> Tree:
    return {
        CLASS_SUMS: torch.zeros(classes, dim, dtype=torch.float64),
        CLASS_ROWS: torch.zeros(classes, dtype=torch.float64),
    }


def class_sums(x: Tensor, y: Tensor, classes: int) -> Tree:
    """The sum of the rows of each class, and how many there are."""
    sums = no_class_sums(x.shape[1], classes)
    sums[CLASS_SUMS].index_add_(0, y, x.double())
    sums[CLASS_ROWS].copy_(torch.bincount(y, minlength=classes))
    return sums


def no_sums(dim: int, classes: int) -> Tree:
    return {SQUARES: torch.zeros(dim * (dim + 1) // 2, dtype=torch.float64), **no_class_sums(dim, classes)}


def row_sums(x: Tensor, y: Tensor, classes: int) -> Tree:
    """All that ridge regression needs to know of some rows; of the symmetric sum x x^T the upper triangle."""
    x = x.double()
    return {SQUARES: (x.T @ x).flatten().index_select(0, _upper(x.shape[1])), **class_sums(x, y, classes)}


def solve(sums: Tree, penalty: float | None) -> tuple[Tensor, Tensor]:
    """(weight, bias) of the ridge head of all rows in the sums; without a penalty, cross-validation chooses it."""
    parts = Parts.of(sums)
    return parts.head(parts.cross_validated() if penalty is None else penalty)


@dataclass(frozen=True)
class Parts:
    """What all penalties have in common: the eigenvalues and eigenvectors of A, and B along them."""

    rows: Tensor
    mean: Tensor
    real: Tensor
    """Which eigenvalues are not 0 up to rounding."""
    values: Tensor
    axes: Tensor
    along: Tensor

    @classmethod
    def of(cls, sums: Tree) -> Parts:
        rows = sums[CLASS_ROWS]
        n, dim = rows.sum(), sums[CLASS_SUMS].shape[1]
        mean = sums[CLASS_SUMS].sum(0) / n
        squares = _symmetric(sums[SQUARES], dim)
        values, axes = torch.linalg.eigh(squares - n * torch.outer(mean, mean))
        real = values > dim * torch.finfo(torch.float64).eps * squares.trace()
        along = (sums[CLASS_SUMS] - torch.outer(rows, mean)) @ axes * real
        return cls(rows, mean, real, values * real, axes, along)

    def head(self, penalty: float) -> tuple[Tensor, Tensor]:
        """(weight, bias) with lambda = penalty * mean diagonal of A."""
        if penalty == 0 and not self.real.all():
            raise FedkeelError(
                f"ridge: the statistics are singular with penalty 0 (rank {int(self.real.sum())} of "
                f"{len(self.values)}): set method.penalty > 0"
            )
        damped = (self.values + penalty * self.values.mean()).where(self.real, 1.0)
        weight = (self.along / damped) @ self.axes.T
        return weight, self.rows / self.rows.sum() - weight @ self.mean

    def cross_validated(self) -> float:
        n, grid = self.rows.sum(), torch.tensor(GRID, dtype=torch.float64)
        spread = (self.rows * (1 - self.rows / n)).sum()
        scores = _cross_validation(self.values, self.along, grid * self.values.mean(), n, spread)
        return float(grid[scores.argmin()])


def _cross_validation(values: Tensor, along: Tensor, lambdas: Tensor, n: Tensor, spread: Tensor) -> Tensor:
    """Of each lambda, from the eigenvalues of A and B along its eigenvectors; spread = sum |y - share|^2.

    RSS = spread - 2 tr(W^T B) + tr(W^T A W) = spread - sum_k |B_k|^2 (s_k + 2 lambda) / (s_k + lambda)^2.
    """
    damped = values + lambdas.unsqueeze(1)
    explained = along.square().sum(0) * (damped + lambdas.unsqueeze(1)) / damped.square()
    freedom = 1 + (values / damped).sum(1)
    return (spread - explained.sum(1)) / (n - freedom).square()


@lru_cache(maxsize=4)
def _upper(dim: int) -> Tensor:
    """Where the upper triangle of a square matrix lies in its flat entries."""
    return torch.arange(dim * dim).view(dim, dim)[torch.ones(dim, dim, dtype=torch.bool).triu()]


def _symmetric(upper: Tensor, dim: int) -> Tensor:
    matrix = upper.new_zeros(dim * dim)
    matrix[_upper(dim)] = upper
    matrix = matrix.view(dim, dim)
    return matrix + matrix.triu(1).T
