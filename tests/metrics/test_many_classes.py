"""A hundred thousand classes: nothing grows with the pairs of them, nor with classes times rows at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedkeel as fk
from fedkeel.core.method import AnyMethod
from fedkeel.core.tree import Tree
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.metrics import geometry as measured
from fedkeel.metrics.accuracy import SCORES, evaluate
from fedkeel.metrics.calibration import both_bins
from fedkeel.metrics.geometry import geometry
from fedkeel.rows.features import Features

MANY = 100_000


def rows_of(classes: int, each: int = 2, dim: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(classes).repeat_interleave(each)
    return torch.randn(len(y), dim, generator=generator) + 5, y


def test_inter_without_pairs_is_inter_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows_of(300)
    with_pairs = geometry(x, y, torch.arange(len(y)))
    monkeypatch.setattr(measured, "MOST_CLASSES", 299)
    without = geometry(x, y, torch.arange(len(y)))
    assert without.inter == pytest.approx(with_pairs.inter, rel=1e-12)
    assert (without.intra, without.alignment) == (with_pairs.intra, with_pairs.alignment)
    assert with_pairs.inter_distance
    assert without.inter_distance is None


def test_geometry_of_many_classes() -> None:
    x, y = rows_of(MANY)
    found = geometry(x, y, torch.arange(len(y)))
    assert found.inter == pytest.approx(2 * 3 * 0.5, rel=0.02)  # twice the variance of a mean of two rows
    assert found.inter_distance is None


def test_scores_of_many_classes_are_never_all_in_memory() -> None:
    x, y = rows_of(MANY, each=1)
    sizes = []

    def predict(part: Tensor) -> Tensor:
        sizes.append(len(part) * MANY)
        return part[:, :1].expand(len(part), 2)

    evaluate(predict, Features(x), y)
    assert sum(sizes) == MANY * MANY
    assert max(sizes) <= SCORES


def test_rows_are_held_out_in_one_pass(tmp_path: object) -> None:
    """Seconds, where looking through all rows for each class takes minutes."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(20_000), 2))
    np.savez(f"{tmp_path}/rows.npz", x=np.arange(len(y), dtype=np.float32)[:, None], y=y)
    dataset = load(Source.of(source=f"npz:{tmp_path}/rows.npz"))
    assert np.array_equal(np.sort(dataset.test_labels), np.arange(20_000))


def test_nor_are_they_when_a_finished_model_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Confidence and calibration error are of the same rows, however few of them are scored at once."""

    def calibrated(out: str) -> dict[str, Any]:
        run = fk.run(data={"source": "digits", "limit": 150}, method="ridge", partition="iid:clients=3",
                     run={"threads": 1}, out=tmp_path / out)  # fmt: skip
        found: dict[str, Any] = run.summary["calibration"]["before"]
        return found

    def counting(method: AnyMethod, logits: Tensor, y: Tensor, temperature: float) -> Tree:
        sizes.append(logits.numel())
        return both_bins(method, logits, y, temperature)

    sizes = list[int]()
    whole = calibrated("whole")
    monkeypatch.setattr("fedkeel.metrics.accuracy.SCORES", 100)
    monkeypatch.setattr("fedkeel.runs.observers.calibration.both_bins", counting)
    assert calibrated("parts") == pytest.approx(whole, rel=1e-12)
    assert len(sizes) > 1
    assert max(sizes) <= 100
