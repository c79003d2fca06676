"""Figure 6 of OvA-LP at the paper's own scale, on small copies of the official files of CIFAR-100 and TinyImageNet."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedkeel as fk
import small_cifar
from fedkeel.papers import RECIPES, comparison
from test_reproduce import tiny_vit


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_encoders_on_cifar_100_and_tiny_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells the datasets apart by their source, wherever the files are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    small_cifar.cifar_100(tmp_path / "cifar100", "binary")
    small_cifar.tiny_imagenet(tmp_path / "elsewhere")
    tiny_vit(tmp_path / "google" / "vit-base-patch16-224")
    done = fk.reproduce(
        "ova-lp/encoders", scale="paper", grids=["cifar100-vit-b16", "tiny-imagenet-vit-b16"], seeds=[0],
        data={"tinyimagenet": "elsewhere"}, set=["method.rounds=1", "partition.clients=4"],
    )  # fmt: skip
    assert len(done.results) == 4
    (source,) = RECIPES["ova-lp/encoders"]
    filled = {
        line.paper: [ours is not None for ours in line.ours]
        for line in comparison.lines(source, done.runs)
        if line.paper is not None
    }
    assert filled[92.9] == [True, False], "CIFAR-100"
    assert filled[93.9] == [False, True], "TinyImageNet"
    assert "92.9" in done.text
