"""Grids with variants, recipes, and the whole way from a recipe to its page, at the paper's scale too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel as fk
import small_cifar
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.method import METHODS
from fedkeel.data.sources.base import SOURCES
from fedkeel.data.splits.base import SPLITS
from fedkeel.models.encoders import ENCODERS
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.runs.config import given, load
from fedkeel.runs.events import personalised
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import cells
from fedkeel.study.recipe import parse
from test_cli import fedkeel, says, within
from test_own_data import COLOURS, picture

TINY = {"data": {"source": "digits"}, "partition": {"clients": 6}, "method": {"rounds": 2}}


# --- variants ---------------------------------------------------------------------------------------------------------


def test_a_variant_reads_values_as_set_does() -> None:
    variant = Variant.parse("ova-lp:stages=1:bias=true:positive_mode=sample:positives=0.5")
    assert variant.name == "ova-lp"
    assert variant.settings == {"stages": 1, "bias": True, "positive_mode": "sample", "positives": 0.5}
    assert Variant.parse(str(variant)) == variant
    assert Variant.parse("iid") == Variant("iid", {})


def test_each_cell_has_a_folder_of_its_own_that_any_file_system_takes() -> None:
    base = given(None, ["data.source=digits"])
    grid = cells(
        base,
        ["fedavg", "ova-lp:stages=1", "ova-lp:stages=1:bias=true", "ova-lp"],
        ["dirichlet:alpha=0.1", "iid", "dirichlet:alpha=1"],
        [0, 42],
        {"method.participation": [0.1, 1.0], "data.source": ["hf:a/b c", "hf:a/b_c"]},
    )
    labels = [cell.label for cell in grid]
    assert len(labels) == len(set(labels)) == 4 * 3 * 2 * 2 * 2
    assert all(re.fullmatch(r"[A-Za-z0-9=._-]+", label) for label in labels)
    assert len({cell.experiment.digest() for cell in grid}) == len(grid)
    plain = cells(base, ["ova-lp", "ova-lp:stages=1"], ["iid", "dirichlet:alpha=0.1"], [0])
    assert [cell.label for cell in plain] == [
        "ova-lp-iid-seed0", "ova-lp_stages=1-iid-seed0",
        "ova-lp-dirichlet_alpha=0.1-seed0", "ova-lp_stages=1-dirichlet_alpha=0.1-seed0",
    ]  # fmt: skip
    assert plain[3].experiment.method["stages"] == 1
    assert plain[3].experiment.partition.alpha == 0.1


def test_a_cell_that_is_asked_for_twice_runs_once() -> None:
    assert len(cells({}, ["ova-lp", "ova-lp"], ["iid"], [0, 0])) == 1


def test_iid_cells_may_keep_one_value_of_an_axis() -> None:
    """R at participation 0.1 is taken against the IID run at 1.0: that one runs once, and first."""
    share = "method.participation"
    grid = cells({}, ["ova-lp"], ["zipf", "iid"], [0], {share: [0.1, 0.4, 1.0]}, {share: 1.0})
    assert [(cell.partition.name, cell.experiment.method["participation"]) for cell in grid] == [
        ("iid", 1.0), ("zipf", 0.1), ("zipf", 0.4), ("zipf", 1.0),
    ]  # fmt: skip


def test_a_key_may_follow_another_one() -> None:
    """On an axis or where all cells have the same value; and only in the methods that have it."""
    base, follow = {"shift": {"noise": "symmetric", "noise_ratio": 0.6}}, {"method.forget": "shift.noise_ratio"}
    grid = cells(base, ["fedavg", "co-teaching"], ["iid"], [0], {"shift.noise_ratio": [0.3, 0.4]}, follow=follow)
    assert [cell.experiment.method.get("forget") for cell in grid] == [None, 0.3, None, 0.4]
    assert [
        cell.experiment.method.get("forget") for cell in cells(base, ["co-teaching"], ["iid"], [0], follow=follow)
    ] == [0.6]
    noise = RECIPES["ova-lp/noise"].scales["paper"].grids[0]
    asked = {"shift.noise_ratio=0.5": 0.5, "method.forget=0.1": 0.1}
    for text, forget in asked.items():
        found = [cell.experiment.method.get("forget") for cell in noise.cells([0], [text])]
        assert set(found) == {None, forget}


MISTAKES = {
    "ova-lp:stagse=1": "method ova-lp:stagse=1: unknown key 'method.stagse': did you mean 'method.stages'?",
    "ova-lp:stages=3": "method ova-lp:stages=3: method.stages is 3: input should be 1 or 2",
    "ovalp": "unknown method 'ovalp': did you mean 'ova-lp'?",
    "ova-lp:stages": "'ova-lp:stages': expected name:key=value, e.g. ova-lp:stages=1",
    "ova-lp:=1": "expected name:key=value",
    ":stages=1": "expected name:key=value",
}
SPLIT_MISTAKES = {
    "dirichlet:alhpa=1": "partition dirichlet:alhpa=1: unknown key 'partition.alhpa': did you mean 'partition.alpha'?",
    "dirichlet:alpha=0": "partition dirichlet:alpha=0: partition.alpha is 0: input should be greater than 0",
    "dirichlett": "unknown partition 'dirichlett': did you mean 'dirichlet'?",
}


@pytest.mark.parametrize(
    ("method", "split", "line"),
    [(text, "iid", line) for text, line in MISTAKES.items()]
    + [("fedavg", text, line) for text, line in SPLIT_MISTAKES.items()],
)
def test_mistakes_in_variants_are_told_before_anything_runs(method: str, split: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(FedkeelError) as caught:
        fk.compare(methods=["fedavg", method], partitions=["iid", split], out=tmp_path / "grid", **TINY)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "grid").exists()


def test_compare_runs_variants_side_by_side(tmp_path: Path) -> None:
    methods, splits = ["ova-lp:stages=1", "ova-lp"], ["iid", "dirichlet:alpha=0.1"]
    results = fk.compare(methods=methods, partitions=splits, out=tmp_path, **TINY)
    assert [result.record.start["config"]["method"]["stages"] for result in results] == [1, 2, 1, 2]
    assert len({result.digest for result in results}) == 4
    page = (tmp_path / "report.html").read_text()
    assert '<th scope="row">ova-lp, stages=1</th>' in page
    assert '<th scope="row">ova-lp</th>' in page
    with pytest.raises(FedkeelError, match="got no methods"):
        fk.compare(methods=[], partitions=splits, out=tmp_path, **TINY)


# --- a method brings its own defaults ---------------------------------------------------------------------------------


def test_a_chosen_method_has_its_own_defaults_and_keeps_what_was_said(tmp_path: Path) -> None:
    """pfpt's batch is 16 and its learning rate 1e-4; those of the default method must not take their place."""
    own = METHODS["pfpt"]()
    for chosen in (
        load(None, ["method.name=pfpt"]),
        fk.experiment(method={"name": "pfpt"}),
        fk.experiment(fk.Experiment(), method={"name": "pfpt"}),
        fk.Experiment().with_values({"method.name": "pfpt"}),
        cells({}, ["ova-lp", "pfpt"], ["iid"], [0])[1].experiment,
    ):
        assert (chosen.method["batch"], chosen.method["lr"]) == (own.batch, own.lr) == (16, 1e-4)  # type: ignore[attr-defined]
    (tmp_path / "study.toml").write_text("[method]\nrounds = 50\nlr = 0.01\nstages = 1\n")
    said = cells(given(tmp_path / "study.toml", ["method.epochs=2"]), ["pfpt"], ["iid"], [0])[0].experiment.method
    assert (said["rounds"], said["lr"], said["epochs"], said["batch"]) == (50, 0.01, 2, 16)
    assert "stages" not in said


def test_a_setting_goes_to_the_methods_that_have_it() -> None:
    grid = cells(given(None, ["method.prompts=4"]), ["fedavg", "pfpt"], ["iid"], [0])
    assert [cell.experiment.method.get("prompts") for cell in grid] == [None, 4]
    with pytest.raises(FedkeelError, match=r"unknown key 'method\.promts'"):
        cells(given(None, ["method.promts=4"]), ["fedavg", "pfpt"], ["iid"], [0])


# --- recipes ----------------------------------------------------------------------------------------------------------

RECIPES = fk.recipes()
PLANS = {f"{name}-{scale}": (name, scale) for name, recipe in RECIPES.items() for scale in recipe.scales}


@pytest.mark.parametrize(("name", "scale"), PLANS.values(), ids=PLANS)
def test_every_recipe_names_what_exists(name: str, scale: Any) -> None:
    plan = RECIPES[name].scales[scale]
    assert len({grid.name for grid in plan.grids}) == len(plan.grids)
    for grid in plan.grids:
        for cell in grid.cells(grid.seeds or plan.seeds):
            METHODS[cell.method.name]
            SPLITS[cell.partition.name]
            kind, colon, reference = cell.experiment.data.encoder.removeprefix("random:").partition(":")
            assert (kind, bool(colon)) == ("hf", True) or kind in ENCODERS
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", reference) or not colon
            if scale == "paper":
                kind, colon, _ = cell.experiment.data.source.partition(":")
                assert kind in SOURCES
                assert colon or kind == "cifar10", "nothing that comes with fedkeel"
        assert [variant.name for variant in grid.strategies()] == [text.partition(":")[0] for text in grid.personal]
    if scale == "paper" and name.startswith("lp-ft/") and plan.grids:
        assert plan.seeds == (0, 1, 2)
        assert {cell.experiment.method["rounds"] for grid in plan.grids for cell in grid.cells([0])} == {100}
    elif scale == "paper" and name.startswith("fedpurel/"):
        assert plan.seeds == (0, 1, 2)
        made = [cell for grid in plan.grids for cell in grid.cells([0])]
        assert {cell.experiment.method["rounds"] for cell in made if cell.method.name != "zero-shot"} == {100}
        assert {cell.experiment.data.encoder for cell in made} == {"hf:openai/clip-vit-base-patch16"}
    elif scale == "paper" and name != "ova-lp/geometry" and plan.grids:
        assert plan.seeds == (0, 42, 777, 1337, 15254)
        cells = [cell for grid in plan.grids for cell in grid.cells([0])]
        assert {cell.experiment.method["rounds"] for cell in cells} <= {50, 10, 1}


def test_the_standard_recipes_are_there() -> None:
    papers = {
        "ova-lp": ["ablation", "baselines", "encoders", "geometry", "noise", "participation", "partitions"],
        "lp-ft": ["distortion", "label-flip", "label-shift", "main", "overfitting", "peft", "pfl", "theory"],
        "fedpurel": ["angles", "branches", "convergence", "heterogeneity", "lambda", "tkl"],
    }
    for paper, names in papers.items():
        assert [f"{paper}/{name}" for name in names] == [name for name in RECIPES if name.startswith(f"{paper}/")]
    assert all(set(recipe.scales) == {"laptop", "paper"} for recipe in RECIPES.values())


SMALL = """
title = "t"
about = "a"
shows = "Figure 1"
[scales.laptop]
seeds = [0]
needs = "nothing"
[[scales.laptop.grids]]
name = "digits"
title = "Digits"
methods = ["ova-lp"]
partitions = ["iid"]
data = { source = "digits" }
"""


def test_a_scale_may_say_how_features_are_prepared() -> None:
    """For all grids that say nothing else: OvA-LP's paper has no centring."""
    raw = parse(SMALL.replace("seeds = [0]", 'seeds = [0]\nfeatures = "raw"'), "mine.toml").scales["laptop"]
    assert raw.grids[0].cells([0])[0].experiment.data.features == "raw"
    own = SMALL.replace("seeds = [0]", 'seeds = [0]\nfeatures = "raw"').replace(
        '"digits" }', '"digits", features = "l2" }'
    )
    assert parse(own, "mine.toml").scales["laptop"].grids[0].cells([0])[0].experiment.data.features == "l2"
    for name in ("ablation", "partitions", "participation"):
        plan = RECIPES[f"ova-lp/{name}"].scales["paper"]
        assert [grid.cells([0])[0].experiment.data.features for grid in plan.grids] == ["raw", "centred"]


RECIPE_MISTAKES = [
    ('title = "t"', 'titel = "t"', "mine.toml: title: field required"),
    ('about = "a"', 'about = "a"\ncolour = "red"', "mine.toml: unknown key 'colour'"),
    ("methods", "methds", "mine.toml: scales.laptop.grids.0.methods: field required"),
    ('data = { source', 'dta = { source', "unknown key 'scales.laptop.grids.0.dta': did you mean"),
    ("seeds = [0]", "seeds = []", "scales.laptop.seeds: tuple should have at least 1 item"),
    ("scales.laptop", "scales.desk", "should be 'laptop' or 'paper'"),
    ("[[scales.laptop.grids]]", "[[scales.paper.grids]]", "scales.laptop: value error, there should be grids"),
    ('needs = "nothing"', 'needs = "nothing"\nfigures = ["theroy"]', "figures.0: input should be 'theory'"),
    ('name = "digits"', 'name = "../x"', "scales.laptop.grids.0.name: string should match"),
    ('title = "t"', 'title = "t', "mine.toml is not valid TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), RECIPE_MISTAKES)
def test_what_is_wrong_with_a_recipe_is_told_in_one_line(old: str, new: str, line: str) -> None:
    assert parse(SMALL, "mine.toml").scales["laptop"].grids[0].name == "digits"
    with pytest.raises(FedkeelError) as caught:
        parse(SMALL.replace(old, new), "mine.toml")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_is_set_is_no_axis_any_more() -> None:
    text = SMALL.replace(
        "data =", 'vary = { "shift.noise_ratio" = [0.1, 0.2] }\nshift = { noise = "symmetric" }\ndata ='
    )
    grid = parse(text, "mine.toml").scales["laptop"].grids[0]
    assert [cell.experiment.shift.noise_ratio for cell in grid.cells([0])] == [0.1, 0.2]
    (cell,) = grid.cells([0], ["shift.noise_ratio=0.5", "method.rounds=3"])
    assert (cell.experiment.shift.noise_ratio, cell.experiment.method["rounds"]) == (0.5, 3)
    with pytest.raises(FedkeelError, match=r"--set: unknown key 'shift\.nois'"):
        grid.cells([0], ["shift.nois=1"])
    with pytest.raises(FedkeelError, match=r"unknown key 'method\.ruonds'"):
        grid.cells([0], ["method.ruonds=1"])


# --- from a recipe to its page ----------------------------------------------------------------------------------------

QUICK = ("data.source=digits", "data.encoder=pixels", "data.limit=400", "partition.clients=12", "method.rounds=2")


def test_a_recipe_is_kept_continued_and_rebuilt(tmp_path: Path) -> None:
    """Stopped in its second grid: finished cells stay, the same call ends it, and a third one runs nothing."""

    def stop(round: int, rounds: int, accuracy: float) -> None:
        if len(list(tmp_path.glob("*/*/summary.json"))) == 6:
            raise KeyboardInterrupt

    call: dict[str, Any] = {"seeds": [0], "out": tmp_path, "set": QUICK}
    with pytest.raises(
        Stopped, match=r"stopped in ova-lp-bernoulli-dirichlet-participation=0\.1-seed0: the same command"
    ):
        fk.reproduce("ova-lp/participation", watch=fk.Watch(round=stop), **call)
    first = fk.reproduce("ova-lp/participation", **call)
    assert len(first.results) == 2 * 5
    times = {result.folder: (result.folder / "events.jsonl").stat().st_mtime_ns for result in first.results}
    page = first.page.read_text()
    again = fk.reproduce("ova-lp/participation", **call)
    assert times == {result.folder: (result.folder / "events.jsonl").stat().st_mtime_ns for result in again.results}
    assert again.page.read_text() == page
    changed = "digits with pixels (data.limit=400, partition.clients=12, method.rounds=2)"
    assert page.count(f"<h2>{changed}</h2>") == page.count(f"<h2>{changed} (2)</h2>") == 1
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "two grids may draw the same figure"
    assert "participation 0.4" in first.text
    assert "96.8" in first.text
    assert not list(tmp_path.glob("*/*/report.html")), "one page is enough"
    assert fk.report([tmp_path], out=tmp_path / "all.html").exists()


def tiny_dataset(folder: Path) -> None:
    """A hub dataset with two columns of labels, as CIFAR-100 has, in a folder."""
    import datasets

    names = list(COLOURS)
    labels = {"fine_label": datasets.ClassLabel(names=names), "coarse_label": datasets.ClassLabel(names=["a", "b"])}
    features = datasets.Features({"img": datasets.Image(), **labels})
    parts = {}
    for part, rows in (("train", 90), ("test", 30)):
        table = {
            "img": [picture(names[row % 3], row + 1000 * (part == "test")) for row in range(rows)],
            "fine_label": [row % 3 for row in range(rows)],
            "coarse_label": [row % 2 for row in range(rows)],
        }
        parts[part] = datasets.Dataset.from_dict(table, features=features)
    datasets.DatasetDict(parts).save_to_disk(str(folder))


def tiny_vit(folder: Path) -> None:
    import transformers
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8)
    transformers.ViTModel(config).save_pretrained(str(folder))
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(str(folder))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_paper_s_scale_with_a_tiny_encoder_and_a_small_copy_of_cifar_100(tmp_path: Path) -> None:
    """The whole way of --scale paper: CIFAR-100 as it is unpacked in cifar100/, a ViT where the hub's would be."""
    small_cifar.cifar_100(tmp_path / "cifar100")
    tiny_vit(tmp_path / "google" / "vit-large-patch16-224")
    words = ["reproduce", "ova-lp/ablation", "--scale", "paper", "--seeds", "0", "--set"]
    words += ["method.rounds=2", "partition.clients=6"]
    done = fedkeel(*words, cwd=tmp_path, FEDKEEL_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs/reproduce/ova-lp/ablation-paper"
    assert f"report: {folder.relative_to(tmp_path) / 'report.html'}" in done.stdout
    for number in (
        "56.3",
        "95.4",
        "95.9",
        "90.13 ± 0.04",
        "Ours: cifar100:cifar100 with hf:google/vit-large-patch16-224",
    ):
        assert number in done.stdout
    page = (folder / "report.html").read_text()
    assert "Beside the paper" in page
    for number in ("53.70 ± 6.79", "39.18", "14.86 ± 0.51"):
        assert number in page
    rows = re.findall(
        r'<tr><th scope="row">([^<]+)</th><td class="number">([^<]+)</td><td class="number">([^<]+)</td>', page
    )
    kept = {method: float(ours) for method, paper, ours in rows if paper in ("56.3", "95.4", "95.9")}
    assert kept.keys() == {"fedavg", "ova-lp, stages=1", "ova-lp"}
    assert all(20 < value <= 130 for value in kept.values())
    assert len(list(folder.glob("cifar100/*/summary.json"))) == 3 * 4
    stored = tomllib.loads((folder / "cifar100/ova-lp_stages=1-shard-1-seed0/config.toml").read_text())
    assert (stored["data"]["source"], stored["method"]["stages"]) == ("cifar100:cifar100", 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_paper_s_scale_of_personal_models_with_a_tiny_dataset(tmp_path: Path) -> None:
    """Table 3 all the way on a hub dataset, whose images are read when they are needed."""
    tiny_dataset(tmp_path / "data")
    few = [f"data.source=hf:{tmp_path / 'data'}", "data.label_column=fine_label", "data.encoder=cnn", "method.rounds=1"]
    few += ["partition.clients=3", "personal.epochs=1", "personal.models=2"]
    done = fk.reproduce("lp-ft/label-shift", scale="paper", seeds=[0], out=tmp_path / "runs", set=few)
    (run,) = done.results
    assert len(list((run.folder / "personal").iterdir())) == 5
    assert "90.15 ± 0.43" in done.text, "LP-FT's Local in the paper"
    ours = [Personal.of(record).local for record in personalised(run.folder)]
    assert all(f"{100 * value:.2f}" in done.text for value in ours)


def test_a_recipe_with_personal_models(tmp_path: Path) -> None:
    """Table 4 in small: run, personalised in two ways, beside the paper; called again it trains nothing."""
    few = ["data.limit=150", "method.rounds=1", "shift.flip=0.2", "personal.epochs=2"]

    def stop(done: int, clients: int, accuracy: float | None) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match=r"seed0, ft:epochs=2: the same command continues there"):
        fk.reproduce("lp-ft/label-flip", seeds=[0], out=tmp_path, set=few, watch=fk.Watch(client=stop))
    done = fk.reproduce("lp-ft/label-flip", seeds=[0], out=tmp_path, set=few)
    (run,) = done.results
    assert run.summary["kept_round"] == 1
    made = sorted(path.name for path in (run.folder / "personal").iterdir())
    assert made == ["ft_epochs=2", "lp-ft_epochs=2"]
    assert "91.32" in done.text, "FT's Local in the paper"
    ours = [Personal.of(record).local for record in personalised(run.folder)]
    assert all(f"{100 * value:.2f}" in done.text for value in ours)
    assert "Personal models" in done.page.read_text()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("events.jsonl")}
    assert len(times) == 3
    assert fk.reproduce("lp-ft/label-flip", seeds=[0], out=tmp_path, set=few).text == done.text
    assert times == {path: path.stat().st_mtime_ns for path in times}
    with pytest.raises(FedkeelError, match=r"personal\.epochs is 'many'"):
        fk.reproduce("lp-ft/label-flip", out=tmp_path, set=["personal.epochs=many"])
    with pytest.raises(FedkeelError, match="this recipe has no personal models"):
        fk.reproduce("ova-lp/ablation", out=tmp_path, set=["personal.epochs=2"])


def test_a_recipe_without_published_numbers_tells_those_of_its_personal_models(tmp_path: Path) -> None:
    few = ["data.source=digits", "data.encoder=pixels", "partition.clients=6", "method.rounds=1", "personal.epochs=1"]
    done = fk.reproduce("beyond/ova-lp-then-personal", seeds=[0], out=tmp_path, set=few)
    rows = [line.split() for line in done.text.splitlines() if "lp, epochs=1" in line]
    assert len(rows) == 9
    for result in done.results:
        (record,) = personalised(result.folder)
        own, name, split = Personal.of(record), result.record.method, result.record.partition
        numbers = [f"{100 * value:.2f}" for value in (own.local, own.global_incl, own.average_lgw)]
        mine = [row for row in rows if row[0].rstrip(",") == name and split in row and row[-3:] == numbers]
        assert mine, (name, split, numbers)


def test_the_command_line_lists_recipes_and_names_mistakes(tmp_path: Path) -> None:
    listed = within("reproduce", "--list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(RECIPES)
    assert "Figures 3 and 7, Tables 1, 3 and 4" in listed.stdout
    says(within("reproduce", "ova-lp/ablatoin", cwd=tmp_path), "did you mean 'ova-lp/ablation'?")
    says(within("reproduce", cwd=tmp_path), "fedkeel reproduce --list")
    says(within("reproduce", "ova-lp/noise", "--seeds", "x", cwd=tmp_path), "--seeds")
    says(within("reproduce", "ova-lp/noise", "--set", "method.ruonds=1", cwd=tmp_path), "'method.rounds'")
    assert list(tmp_path.iterdir()) == []
