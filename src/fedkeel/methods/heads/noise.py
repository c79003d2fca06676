"""What label-noise methods look at: how many dimensions a model's outputs fill, and which values are the high ones."""

from __future__ import annotations

import warnings
from collections import Counter

import torch

from fedkeel.core.tree import Tensor

NEAREST = 1e-6
"""Distances below this count as this much: copies of a row would have a distance of 0 and no logarithm."""
ROOM = 1024
"""Rows whose distances are in memory at once."""


def intrinsic_dimension(outputs: Tensor, neighbours: int = 20) -> Tensor:
    """The mean local intrinsic dimensionality of the rows, 0 where there are too few of them to tell.

    LID(x) = -(1/k sum_{i <= k} log(r_i / r_k))^-1 with r_i the distance of x to its i-th nearest neighbour among the
    rows. There are fewer neighbours than asked for if there are fewer rows. Rows whose neighbours are all equally far
    have no dimensionality and are left out of the mean.
    """
    k = min(neighbours, len(outputs) - 1)
    if k < 2:
        return outputs.new_zeros(())
    rows = outputs.double()
    nearest = [
        torch.cdist(some, rows, compute_mode="donot_use_mm_for_euclid_dist").topk(k + 1, largest=False).values[:, 1:]
        for some in torch.split(rows, ROOM)
    ]
    distances = torch.cat(nearest).clamp_min(NEAREST)
    logs = -(distances / distances[:, -1:]).log().sum(1)
    known = logs > NEAREST
    return (k / logs[known]).mean().to(outputs.dtype) if known.any() else outputs.new_zeros(())


def high_group(values: Tensor, votes: int = 1) -> Tensor:
    """Which rows of ``values`` a mixture of two Gaussians puts into the component with the higher mean.

    With several votes as many mixtures are fitted from different starts, and the most frequent answer counts. Nobody
    is high where the rows do not fall into two groups: fewer than two rows, all rows alike, all in one component.
    """
    from sklearn.mixture import GaussianMixture

    nobody = torch.zeros(len(values), dtype=torch.bool)
    if len(values) < 2 or (values.amax(0) - values.amin(0)).max() < NEAREST:
        return nobody
    points = values.double().reshape(len(values), -1).numpy()
    found = []
    for seed in range(votes):
        with warnings.catch_warnings():  # a fit that has not settled still has an answer
            warnings.simplefilter("ignore")
            mixture = GaussianMixture(n_components=2, random_state=seed).fit(points)
        found.append(tuple(mixture.predict(points) == mixture.means_.sum(1).argmax()))
    high = torch.tensor(Counter(found).most_common(1)[0][0])
    return nobody if high.all() else high
