"""What the parts of a recipe are called where ``--set`` changed it: after what was run, never after what was not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from fedkeel.study.labels import Asked, changed, columns, titles
from fedkeel.study.recipe import Plan, Scale, recipes

RECIPES = {(name, scale): plan for name, recipe in recipes().items() for scale, plan in recipe.scales.items()}
WITH_RUNS = [key for key, plan in RECIPES.items() if plan.grids]
CLAIMS = re.compile(
    r"20 Newsgroups|newsgroups20|200 posts|CIFAR|Digit5|digit domains|Coloured|CelebA|DomainNet|CheXpert|ImageNet|-LT\b"
    r"|MiniLM|EfficientNet|ViT|ResNet|DINO|transformer|small network|one client each|one in ten|one corruption"
)
OTHER = ("data.source=npz:mine.npz", "data.encoder=none", "partition.clients=7", "method.rounds=3")


def asked(plan: Plan, texts: Sequence[str] = (), models: Sequence[str] = ()) -> list[Asked]:
    return [Asked.of(grid, grid.seeds or plan.seeds, texts, models) for grid in plan.grids]


@pytest.mark.parametrize(("name", "scale"), WITH_RUNS)
def test_a_recipe_as_it_is_keeps_its_words(name: str, scale: Scale) -> None:
    plan = RECIPES[name, scale]
    for texts in ((), ("run.threads=1",)):  # changes no result
        grids = asked(plan, texts)
        assert titles(grids) == [grid.title for grid in plan.grids]
        assert columns(grids) == [grid.column or grid.title for grid in plan.grids]
        assert changed(grids) == ""


@pytest.mark.parametrize(("name", "scale"), WITH_RUNS)
def test_no_label_claims_what_was_not_run(name: str, scale: Scale) -> None:
    plan = RECIPES[name, scale]
    kinds = {text.partition(":")[0] for grid in plan.grids for text in grid.partitions}
    texts = [text for text in OTHER if "clients" not in text or "column" not in kinds]
    grids = asked(plan, texts)
    made, heads = titles(grids), columns(grids)
    for label in [*made, *heads]:
        assert label.startswith("npz:mine.npz")
        assert not CLAIMS.search(label)
    assert len(set(made)) == len(made), "parts of a page are told apart"
    before = [grid.column or grid.title for grid in plan.grids]
    assert len(set(zip(before, heads, strict=True))) == len(set(heads)) == len(set(before)), "and so are federations"
    assert all(text in changed(grids) for text in texts if "rounds" not in text)


def test_labels_say_source_encoder_and_what_was_changed() -> None:
    plan = RECIPES["ova-lp/participation", "laptop"]
    grids = asked(plan, ["data.encoder=random:minilm", "partition.clients=20", "method.rounds=3", "data.limit=400"])
    news, photos = titles(grids)
    said = "(partition.clients=20, method.rounds=3, data.limit=400)"
    assert news == f"newsgroups20 with random:minilm {said}"
    assert photos == f"cifar10 with random:minilm {said}"
    assert columns(grids) == ["newsgroups20 with random:minilm", "cifar10 with random:minilm"]
    assert changed(grids) == (
        "data.encoder=random:minilm instead of minilm / efficientnet-lite0, partition.clients=20 instead of 100 / 50, "
        "method.rounds=3 instead of 50 / 15, data.limit=400 instead of 5000"
    )


def test_a_setting_that_only_some_grids_lack_changes_only_those() -> None:
    plan = RECIPES["ova-lp/participation", "laptop"]
    news, photos = asked(plan, ["partition.clients=50"])
    assert (bool(news.changes), bool(photos.changes)) == (True, False)
    assert titles([news, photos])[1] == plan.grids[1].title


def test_personal_settings_count_where_there_are_personal_models() -> None:
    plan = RECIPES["lp-ft/main", "laptop"]
    grids = asked(plan, (), ["personal.epochs=3"])
    assert changed(grids) == "personal.epochs=3"
    assert all("(personal.epochs=3)" in title for title in titles(grids))


def test_page_and_terminal_say_what_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkeel.reporting import canvas

    monkeypatch.setattr(canvas, "draw", lambda *_: "<svg></svg>")
    sets = ["data.source=digits", "data.encoder=pixels", "data.limit=300", "partition.clients=6", "method.rounds=1"]
    call: dict[str, Any] = {"seeds": [0], "out": tmp_path, "set": [*sets, "method.participation=1.0"]}
    told: list[str] = []
    done = fk.reproduce("ova-lp/participation", watch=fk.Watch(notice=told.append), **call)
    page = re.sub(r"\s+", " ", done.page.read_text())
    before, recipe = page.split("<aside>", 1)
    recipe, _, after = recipe.partition("</aside>")
    assert "The recipe with other settings: data.source=digits instead of newsgroups20 / cifar10" in before
    assert "The recipe as it is, without these settings" in recipe
    assert "The paper's numbers are for its own data and settings, not for these." in after.replace("&#39;", "'")
    assert not CLAIMS.search(re.sub(r"<code>.*?</code>|The recipe with other settings: .*?</p>", "", before))
    runs = after[after.index("The runs in full:") :]
    assert not CLAIMS.search(re.sub(r"meanings.*", "", runs))
    assert "digits with pixels (data.limit=300, partition.clients=6, method.rounds=1" in runs
    assert any(line.startswith("digits with pixels (") for line in told)
    assert not any(map(CLAIMS.search, told))
    first, *_ = done.text.split("\n\n")
    assert first.startswith("With other settings than the recipe's: data.source=digits instead of newsgroups20")
    assert first.endswith("The paper's numbers are for its own data and settings, not for these.")
    assert max(map(len, done.told(80).splitlines())) <= 80
    assert not CLAIMS.search(done.text.removeprefix(first))
