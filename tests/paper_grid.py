"""One grid of a recipe at the paper's scale, on tiny data with a small network: all the way to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.commands.result import Result
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.runs.events import personalised
from fedkeel.study import request
from fedkeel.study.recipe import find

FEW = ["data.encoder=cnn", "method.rounds=1", "method.batch=16", "personal.epochs=1", "personal.models=2"]


def beside_the_paper(name: str, grid: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, str]:
    """The grid's run with its personal models, and what stands beside the paper; data are where the recipe says."""
    recipe = find(name)
    plan = recipe.scales["paper"]
    alone = plan.model_copy(update={"grids": tuple(one for one in plan.grids if one.name == grid)})
    monkeypatch.setattr(request, "find", lambda _: recipe.model_copy(update={"scales": {"paper": alone}}))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDKEEL_CACHE", str(folder / "cache"))
    done = fk.reproduce(name, scale="paper", seeds=[0], out=folder / "runs", set=FEW)
    (run,) = done.results
    made = {record.folder.name: record for record in personalised(run.folder)}
    assert len(made) == len(alone.grids[0].personal)
    for record in made.values():
        assert f"{100 * Personal.of(record).local:.2f}" in done.text
    assert done.page.exists()
    return run, done.text
