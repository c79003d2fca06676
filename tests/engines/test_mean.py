"""The running weighted mean against numpy, in any grouping."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.core.method import Phase
from fedkeel.core.rng import generator
from fedkeel.engines.server import WeightedMean


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(0, 10))
def test_equals_numpy_average(weights: list[int], seed: int) -> None:
    draw = generator(seed, "mean test")
    a, c = draw.normal(size=(len(weights), 3, 2)), draw.normal(size=(len(weights), 4))
    mean = WeightedMean({"a": torch.zeros(3, 2), "c.x": torch.zeros(4)}, Phase("train", uniform=("c.",)))
    for index, weight in enumerate(weights):
        update = {"a": torch.from_numpy(a[index]).float(), "c.x": torch.from_numpy(c[index]).float()}
        mean.add(update, float(weight))
    result = mean.result()
    assert result is not None
    np.testing.assert_allclose(result["a"], np.average(a, axis=0, weights=weights), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(result["c.x"], c.mean(0), rtol=1e-6, atol=1e-7)
    assert result["a"].dtype == torch.float32


def test_nothing_added_is_none() -> None:
    assert WeightedMean({"a": torch.zeros(1)}, Phase("train")).result() is None
