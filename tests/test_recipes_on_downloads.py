"""Grids of the papers' scale, whole, on tiny copies of their data as these are downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import downloads
import fedkeel as fk
from duals import clip_folder
from fedkeel.reporting import canvas
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.runs.events import personalised
from fedkeel.study import request
from fedkeel.study.recipe import find

Only = Callable[..., None]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Only:
    """Leave a recipe's paper scale one grid, with a few of its methods, in a folder for its data; and draw nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(canvas, "draw", lambda *_: "<svg></svg>")

    def leave(name: str, grid: str, **fewer: Any) -> None:
        recipe = find(name)
        plan = recipe.scales["paper"]
        (kept,) = (one.model_copy(update=fewer) for one in plan.grids if one.name == grid)
        scales = {"paper": plan.model_copy(update={"grids": (kept,)})}
        monkeypatch.setattr(request, "find", lambda _: recipe.model_copy(update={"scales": scales}))

    return leave


@pytest.mark.parametrize(("grid", "paper"), [("digit5", "82.78 ± 0.05"), ("domainnet", "57.52 ± 0.20")])
def test_table_2_of_lp_ft(grid: str, paper: str, only: Only, tmp_path: Path) -> None:
    """A small CNN in the place of a ResNet; the paper's number is LP-FT's Global."""
    downloads.MAKERS[grid](tmp_path / grid)
    only("lp-ft/main", grid, personal=("lp-ft",))
    few = ["data.encoder=cnn", "method.rounds=1", "personal.epochs=2"]
    done = fk.reproduce("lp-ft/main", scale="paper", seeds=[0], out=tmp_path / "runs", set=few)
    (run,) = done.results
    assert run.record.start["config"]["data"]["source"] == f"{grid}:{grid}"
    assert run.record.start["clients"]["count"] == {"digit5": 5, "domainnet": 6}[grid]
    line = next(line for line in done.text.splitlines() if paper in line)
    personal = {record.folder.name: Personal.of(record).global_incl for record in personalised(run.folder)}
    assert f"{100 * personal['lp-ft_epochs=2']:.2f}" in line
    page = done.page.read_text()
    assert "Beside the paper" in page
    assert paper in page


NAMED = {
    "imagenet-lt": ("imagenet-lt", "tench"),
    "places-lt": ("places-lt", "apartment building outdoor"),
    "stanford-dogs-lt": ("dogs", "golden retriever"),
}
"""Of a grid the source, and what one of its classes is called."""


@pytest.mark.parametrize("grid", NAMED)
def test_long_tails_of_fedpurel(grid: str, only: Only, tmp_path: Path) -> None:
    """CLIP of width 16, which reads the names of the classes."""
    source, name = NAMED[grid]
    downloads.MAKERS[source](tmp_path / source)
    encoder = clip_folder(tmp_path / "tiny-clip")
    only("fedpurel/heterogeneity", grid, methods=("zero-shot:rounds=1", "fedpurel:peft=prompt"))
    few = [f"data.encoder={encoder}", "method.rounds=1", "partition.clients=2", "method.participation=1.0"]
    done = fk.reproduce("fedpurel/heterogeneity", scale="paper", seeds=[0], out=tmp_path / "runs", set=few)
    assert len(done.results) == 2
    tuned = done.results[1]
    assert tuned.record.start["config"]["data"]["source"] == f"{source}:{source}"
    assert name in tuned.record.start["data"]["classes"]
    assert tuned.record.end is not None
    assert 0 <= tuned.record.end["accuracy"] <= 1
    assert done.page.exists()
