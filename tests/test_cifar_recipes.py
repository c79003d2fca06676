"""The papers' own scale on small copies of the official files of CIFAR and TinyImageNet: the commands as documented."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import fedkeel as fk
import small_cifar
from fedkeel.commands.reproduce import Reproduction
from fedkeel.papers import RECIPES, comparison
from fedkeel.papers.comparison import Line
from fedkeel.study import request
from fedkeel.study.recipe import find
from test_reproduce import tiny_vit

KINDS = ("brightness", "jpeg_compression")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the datasets below the names that recipes give them, as they are unpacked, and a cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def only(grids: Sequence[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run these grids of a recipe alone."""
    recipe = find(name)
    plan = recipe.scales["paper"]
    kept = plan.model_copy(update={"grids": tuple(grid for grid in plan.grids if grid.name in grids)})
    one = recipe.model_copy(update={"scales": {**recipe.scales, "paper": kept}})
    monkeypatch.setattr(request, "find", lambda name: one)


def beside(recipe: str, figure: str, done: Reproduction) -> list[Line]:
    """The paper's numbers of one figure or table, and ours in each column."""
    (source,) = (source for source in RECIPES[recipe] if source.name == figure)
    return [line for line in comparison.lines(source, done.runs) if line.paper is not None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_encoders_on_cifar_100_and_tiny_imagenet(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 6 tells the datasets apart by their source, wherever the files are."""
    small_cifar.cifar_100(here / "cifar100", "binary")
    small_cifar.tiny_imagenet(here / "tinyimagenet")
    tiny_vit(here / "google" / "vit-base-patch16-224")
    only(["cifar100-vit-b16", "tiny-imagenet-vit-b16"], "ova-lp/encoders", monkeypatch)
    done = fk.reproduce("ova-lp/encoders", scale="paper", seeds=[0], set=["method.rounds=1", "partition.clients=4"])
    assert len(done.results) == 4
    filled = {
        line.paper: [ours is not None for ours in line.ours] for line in beside("ova-lp/encoders", "Figure 6", done)
    }
    assert filled[92.9] == [True, False], "CIFAR-100"
    assert filled[93.9] == [False, True], "TinyImageNet"
    assert "92.9" in done.text


def test_personal_models_on_the_official_corrupted_cifar(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 2: one client for each file of the folder, tested on photos that nobody trained on."""
    small_cifar.cifar_c(here / "cifar10-c", kinds=KINDS)
    small_cifar.cifar_c(here / "cifar100-c", classes=100, kinds=KINDS, each=2)
    only(["cifar10-c", "cifar100-c"], "lp-ft/main", monkeypatch)
    few = ["data.encoder=cnn", "method.rounds=1", "personal.epochs=1", "personal.models=2"]
    done = fk.reproduce("lp-ft/main", scale="paper", seeds=[0], set=few)
    assert [result.record.start["config"]["data"]["severity"] for result in done.results] == [3, 3]
    for name, column in (("CIFAR10-C", 0), ("CIFAR100-C", 1)):
        found = beside("lp-ft/main", f"Table 2, {name}", done)
        assert len(found) == 6 * 5
        for line in found:
            assert [ours is not None for ours in line.ours] == [column == 0, column == 1], line.claim
    for number in ("63.55 ± 0.04", "32.60 ± 0.14"):
        assert number in done.text
    page = done.page.read_text()
    assert "30 of Mintun et al." in page
    assert "jpeg_compression" in page
