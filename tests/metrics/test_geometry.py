"""Feature geometry against sums over all pairs, and the relations between its numbers."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkeel.core.rng import generator
from fedkeel.metrics import geometry as module
from fedkeel.metrics.geometry import Geometry, geometry


def blobs(sizes: tuple[int, ...], dim: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = generator(seed, "geometry")
    y = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = draw.normal(size=(len(sizes), dim))[y] * 2 + draw.normal(size=(len(y), dim))
    return torch.from_numpy(x), torch.from_numpy(y)


def measured(x: Tensor, y: Tensor) -> Geometry:
    return geometry(x, y, torch.arange(len(y)))


@pytest.mark.parametrize("chunk", [8192, 7])
def test_every_number_from_all_pairs(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of 9, 4, 1, 0 and 12 rows. Alignment: the mean over rows that have a partner of the mean over their
    partners, so both rows of a pair are distributed as the data are (Wang and Isola, Section 4.1)."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    x, y = blobs((9, 4, 1, 0, 12))
    X, Y = x.numpy(), y.numpy()
    chance = np.zeros((len(Y), len(Y)))
    for a, b in permutations(range(len(Y)), 2):
        if Y[a] == Y[b]:
            chance[a, b] = 1 / (np.count_nonzero(Y[a] == Y) - 1)
    chance /= chance.sum()
    assert np.allclose(chance, chance.T)
    assert np.allclose(chance.sum(0)[Y != 2], 1 / 25), "the marginal is the data's"
    squared = ((X[:, None] - X[None]) ** 2).sum(-1)
    centre = {c: X[c == Y].mean(0) for c in (0, 1, 2, 4)}
    to_centre = np.array([np.linalg.norm(row - centre[label]) for row, label in zip(X, Y, strict=True)])
    between = np.array([np.linalg.norm(centre[a] - centre[b]) for a, b in combinations(centre, 2)])
    found = measured(x, y)
    assert found.alignment == pytest.approx((chance * squared).sum())
    assert found.intra == pytest.approx((to_centre**2).mean())
    assert found.inter == pytest.approx((between**2).mean())
    assert found.ratio == pytest.approx((to_centre**2).mean() / (between**2).mean())
    assert found.intra_distance == pytest.approx(to_centre.mean())
    assert found.inter_distance == pytest.approx(between.mean())


def test_alignment_follows_from_intra_where_classes_are_equally_large() -> None:
    """Two rows drawn without replacement from n: E|a - b|^2 = 2 n / (n - 1) times the mean squared distance to mu."""
    found = measured(*blobs((6, 6, 6)))
    assert found.alignment == pytest.approx(2 * found.intra * 6 / 5)


def test_unit_vectors_obey_the_bound_that_the_paper_s_figure_breaks() -> None:
    """Unit length: |mu_y|^2 averages 1 - Intra over equally large classes, and K points with mean squared length m
    have a mean squared distance of at most 2 m K / (K - 1). Figure 2 prints Intra 0.818, Inter 0.840 for K = 10."""
    x, y = blobs((30,) * 10, dim=20)
    x = (x - x.mean(0)) / (x - x.mean(0)).norm(dim=1, keepdim=True)
    found = measured(x, y)
    assert found.inter is not None
    assert found.inter <= 2 * (1 - found.intra) * 10 / 9 + 1e-12
    assert 2 * (1 - 0.818) * 10 / 9 < 0.41 < 0.840


def test_perfect_features_and_scale() -> None:
    """Rows on their centre (0, 0) or (3, 4): nothing within, 25 between. Twice as large: squares are four times."""
    y = torch.tensor([0, 0, 1, 1])
    perfect = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
    found = measured(perfect, y)
    assert (found.alignment, found.intra, found.inter, found.ratio) == (0, 0, 25, 0)
    assert found.inter_distance == 5
    x, y = blobs((5, 7))
    one, two = measured(x, y), measured(2 * x, y)
    assert two.intra == pytest.approx(4 * one.intra)
    assert two.intra_distance == pytest.approx(2 * one.intra_distance)
    assert two.ratio == pytest.approx(one.ratio)


def test_only_the_rows_named_count() -> None:
    x, y = blobs((9, 4, 8))
    rows = torch.tensor([5, 2, 11, 3, 17, 9])
    assert asdict(geometry(x, y, rows)) == pytest.approx(asdict(measured(x[rows], y[rows])))


def test_nothing_to_compare() -> None:
    """One class has no inter, rows alone in their class have no pairs."""
    x, _ = blobs((4,))
    single = measured(x, torch.zeros(4, dtype=torch.int64))
    assert single.inter is single.ratio is single.inter_distance is None
    assert single.alignment is not None
    lonely = measured(x, torch.arange(4))
    assert lonely.alignment is None
    assert lonely.intra == pytest.approx(0, abs=1e-12)
    assert lonely.ratio == pytest.approx(0, abs=1e-12)
