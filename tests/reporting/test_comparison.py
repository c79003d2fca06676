"""The paper's numbers beside ours: the paper's own arithmetic, and that a claim meets the runs made for it alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_browser import SCREENS, Browser, browser, faults, write_run  # noqa: F401  a fixture
from test_report import Page

import fedkeel as fk
from fedkeel.papers import PAPERS, RECIPES, comparison, ova_lp
from fedkeel.papers.claims import Claim, Source
from fedkeel.papers.measures import HEADLINE, METRICS, Ran, meets
from fedkeel.papers.ova_lp import IID, NON_IID
from fedkeel.reporting import averaged, canvas, grouping, html
from fedkeel.runs.events import Record
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import Cell

SOURCES = {f"{name}: {source.name}": source for name, sources in RECIPES.items() for source in sources}


def claims(recipe: str, source: str) -> dict[tuple[str, str, tuple[str, ...]], float]:
    """The values of a table by (metric, method, partitions)."""
    found = next(s for s in RECIPES[recipe] if s.name == source).claims
    return {(claim.metric, claim.method, claim.partitions): claim.value for claim in found}


def ran(records: Sequence[Record], column: str = "ours") -> list[Ran]:
    """Runs as a recipe with methods and partitions without settings has them."""
    return [Ran(column, r.method, r.partition, r, grouping.iid_twin(r, records)) for r in records]


# --- the paper's own arithmetic ---------------------------------------------------------------------------------------


def test_totals_of_the_paper_are_rounds_times_what_a_round_costs() -> None:
    """Tables 3 and 5: time = rounds x (client + server); communication = rounds x one client's uplink (Table 3) or
    that of all who take part (Table 5), 1 MB = 1024 KB. Rounds are printed as whole numbers, so each total may be half
    a round off, and so may the last printed digit."""
    for recipe, totals, costs, sent, total, unit in (
        ("ova-lp/ablation", "Table 3", "Table 4", "client_kb", "client_mb_until", 1024),
        ("ova-lp/baselines", "Table 5", "Table 6", "server_mb", "server_gb_until", 1024),
    ):
        final, cost = claims(recipe, totals), claims(recipe, costs)
        rows = [(method, split) for metric, method, split in final if metric == "acc95"]
        assert len(rows) == 6
        for row in rows:
            rounds = final["acc95", *row]
            seconds = (cost["client_ms", *row] + cost["server_ms", *row]) / 1000
            assert final["seconds_until", *row] == pytest.approx(rounds * seconds, abs=0.5 * seconds + 0.005)
            one = cost[sent, *row] / unit
            assert final[total, *row] == pytest.approx(rounds * one, abs=0.5 * one + 0.005)


def test_payloads_of_the_paper() -> None:
    """401.20 KB x 100 / 1024 = 39.18 MB; 1024 x 100 numbers of 4 bytes are 400 KB. PFPT: ten clients take part."""
    for key, value in claims("ova-lp/ablation", "Table 4").items():
        if key[0] == "client_kb":
            assert value * 100 / 1024 == pytest.approx(39.18, abs=0.005)
            assert 0 < value - 1024 * 100 * 4 / 1024 < 2
    table = claims("ova-lp/baselines", "Table 6")
    for method, clients in (("fft-moe", 100), ("pfpt", 10), ("ova-lp", 100)):
        for split in (IID, NON_IID):
            assert table["client_mb", method, split] * clients == pytest.approx(
                table["server_mb", method, split], abs=0.01
            )


def test_ratios_that_fit_and_the_two_that_do_not() -> None:
    """85.89 / 90.03 = 95.4 and 86.34 / 90.04 = 95.9 fit R(50); LP-softmax and PFPT do not, which the notes say."""
    kept = {claim.method: claim.value for claim in RECIPES["ova-lp/baselines"][0].claims}
    final = claims("ova-lp/ablation", "Table 3") | claims("ova-lp/baselines", "Table 5")
    ratio = {m: 100 * final["accuracy", m, NON_IID] / final["accuracy", m, IID] for m in kept}
    fits = {method for method in kept if abs(ratio[method] - kept[method]) < 0.15}
    assert fits == {"ova-lp", "ova-lp:stages=1", "fft-moe"}
    for number in (ratio["fedavg"], ratio["pfpt"]):
        assert f"{number:.1f}" in RECIPES["ova-lp/baselines"][0].notes[1]
    assert sum(ova_lp._FIGURE_5[name] for name in NON_IID) / 3 == pytest.approx(kept["ova-lp"], abs=0.05)


def test_table_2_is_whole() -> None:
    (source,) = RECIPES["ova-lp/noise"]
    assert len(source.claims) == 8 * 8
    ours = {
        (c.where["shift.noise"], c.where["shift.noise_ratio"]): (c.metric, c.value)
        for c in source.claims
        if c.method == "ova-lp"
    }
    assert ours["symmetric", 0.3] == ("accuracy", 88.78)
    assert [ours["symmetric", ratio] for ratio in (0.4, 0.5, 0.6, 0.7)] == [
        ("decline", value) for value in (0.76, 2.35, 4.52, 10.35)
    ]
    assert [ours["asymmetric", ratio] for ratio in (0.2, 0.3, 0.4)] == [
        ("accuracy", 89.28), ("decline", 0.63), ("decline", 1.53),
    ]  # fmt: skip
    probes = [claim for claim in source.claims if claim.called == "fedltf, stage 2"]
    assert len(probes) == 8
    assert {claim.where.get("method.tune") for claim in probes} == {"head"}, "a whole network is no probe"


# --- claims and recipes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_at_the_paper_s_scale_every_claim_has_runs(name: str) -> None:
    """One run for each partition of the claim, and for a decline one to decline from."""
    plan = fk.recipes()[name].scales["paper"]
    made: list[tuple[str, str, str, Cell]] = []
    """federation, method or what its models were personalised with, partition, cell"""
    for grid in plan.grids:
        for cell in grid.cells(grid.seeds or plan.seeds):
            ways = [str(Variant.parse(text)) for text in grid.personal]
            column = grid.column or grid.title
            made += [(column, method, str(cell.partition), cell) for method in (str(cell.method), *ways)]

    def made_for(claim: Claim, _: str, method: str, partition: str, cell: Cell, conditions: dict[str, Any]) -> bool:
        config = cell.experiment.model_dump()
        values = {f"{section}.{key}": value for section, keys in config.items() for key, value in keys.items()}
        values["dataset"] = cell.experiment.data.dataset
        values["pretrained"] = not config["data"]["encoder"].startswith("random:")
        named = method == claim.method and (not claim.partitions or partition in claim.partitions)
        return named and all(meets(values[key], wanted) for key, wanted in conditions.items())

    for source in RECIPES[name]:
        assert source.notes
        for claim in source.claims:
            assert claim.metric in METRICS
            for conditions in (claim.where, {**claim.where, **claim.against}):
                found = Counter(run[0] for run in made if made_for(claim, *run, dict(conditions)))
                assert set(found.values()) == {max(1, len(claim.partitions)) * len(plan.seeds)}, (claim, conditions)


def test_every_recipe_of_the_paper_has_claims_and_every_claim_a_recipe() -> None:
    recipes = fk.recipes()
    assert {name for name, recipe in recipes.items() if recipe.paper} == set(RECIPES)
    assert {recipe.paper for recipe in recipes.values() if recipe.paper} <= set(PAPERS)


# --- our side ---------------------------------------------------------------------------------------------------------


def test_ours_is_the_mean_over_seeds_of_the_mean_over_partitions(tmp_path: Path) -> None:
    """Seed 0: 60 and 80, mean 70. Seed 1: 62 and 84, mean 73. So 71.5 with a deviation of 3 / sqrt(2) = 2.1213. Seed 2
    has finished on one of the two partitions only and does not count."""
    curves = {
        ("shard-1", 0): 0.60,
        ("shard-2", 0): 0.80,
        ("shard-1", 1): 0.62,
        ("shard-2", 1): 0.84,
        ("shard-1", 2): 0.1,
    }
    records = [
        write_run(tmp_path / f"{split}{seed}", partition=split, seed=seed, curve=[0.1, final])
        for (split, seed), final in curves.items()
    ]
    records.append(write_run(tmp_path / "cut", partition="shard-2", seed=2, curve=[0.9], finished=False))
    claim = Claim("accuracy", 86.34, method="ova-lp", partitions=("shard-1", "shard-2"))
    ours = comparison.measured(claim, ran(records))
    assert ours is not None
    assert (ours.mean, ours.std) == (pytest.approx(71.5), pytest.approx(2.12132, abs=1e-5))
    assert comparison.measured(claim, ran(records[-2:])) is None
    assert comparison.measured(Claim("accuracy", 1, method="fedavg", partitions=NON_IID), ran(records)) is None


def test_retained_is_against_the_twin_of_the_same_seed(tmp_path: Path) -> None:
    records = [
        write_run(tmp_path / "a", partition="shard-1", curve=[0.5, 0.6]),
        write_run(tmp_path / "b", partition="iid", curve=[0.5, 0.8]),
    ]
    ours = comparison.measured(Claim("retained", 96.1, method="ova-lp", partitions=("shard-1",)), ran(records))
    assert ours == comparison.Ours(pytest.approx(75.0), None)


def test_a_run_must_meet_the_conditions_of_the_claim(tmp_path: Path) -> None:
    """A variant is another method, and a run at another participation or with random weights another setting."""
    some = write_run(tmp_path / "some", curve=[0.3], settings={"participation": 0.1})
    every = write_run(tmp_path / "all", curve=[0.6])
    runs = [*ran([some, every]), Ran("ours", "ova-lp:stages=1", "bernoulli-dirichlet", every, None)]
    share = {"method.participation": 0.1}
    one = ("bernoulli-dirichlet",)
    assert comparison.measured(
        Claim("accuracy", 1, method="ova-lp", partitions=one, where=share), runs
    ) == comparison.Ours(30.0, None)
    plain = {"method.participation": 1.0}
    assert comparison.measured(
        Claim("accuracy", 1, method="ova-lp", partitions=one, where=plain), runs
    ) == comparison.Ours(60.0, None)
    every.start["config"]["data"]["encoder"] = "random:minilm"
    assert not runs[1].has({"pretrained": True})
    assert runs[0].has({"pretrained": True, "method.participation": 0.1})
    assert runs[0].has({"method.participation": (0.5, 0.1)}), "any of these"
    assert not runs[0].has({"method.participation": (0.5, 0.2)})


def test_the_decline_is_relative_to_the_accuracy_at_the_lowest_noise(tmp_path: Path) -> None:
    """0.80 at 0.3 and 0.60 at 0.5: a quarter is lost, whatever another seed or kind of noise has."""
    finals = {
        ("symmetric", 0.3, 0): 0.8,
        ("symmetric", 0.5, 0): 0.6,
        ("asymmetric", 0.3, 0): 0.1,
        ("symmetric", 0.3, 1): 0.2,
    }
    records = []
    for (kind, ratio, seed), final in finals.items():
        record = write_run(tmp_path / f"{kind}{ratio}{seed}", partition="iid", seed=seed, curve=[final])
        record.start["config"]["shift"] |= {"noise": kind, "noise_ratio": ratio}
        records.append(record)
    where = {"shift.noise": "symmetric", "shift.noise_ratio": 0.5}
    claim = Claim("decline", 2.35, method="ova-lp", partitions=IID, where=where, against={"shift.noise_ratio": 0.3})
    assert comparison.measured(claim, ran(records)) == comparison.Ours(pytest.approx(25.0), None)
    assert comparison.measured(claim, ran(records[1:])) is None


def test_costs_are_those_of_the_uplink(tmp_path: Path) -> None:
    """100 IID clients send 4 * 385 * 20 + 312 = 31112 bytes each a round, 14.2 ms of a client and 1.9 ms of the server.
    Acc@95 is round 2. The exchange before round 1 is no round, but its time counts until Acc@95: 3 x 16.1 ms."""
    (run,) = ran([write_run(tmp_path / "a", partition="iid", curve=[0.1, 0.69, 0.7, 0.7])])
    expected = {
        "client_kb": 31112 / 2**10, "client_mb": 31112 / 2**20, "server_mb": 100 * 31112 / 2**20,
        "client_mb_until": 2 * 31112 / 2**20, "server_gb_until": 200 * 31112 / 2**30, "acc95": 2,
        "client_ms": 14.2, "server_ms": 1.9, "seconds_until": 0.0483,
    }  # fmt: skip
    for metric, value in expected.items():
        assert METRICS[metric].of(run) == pytest.approx(value), metric


def test_geometry_comes_from_the_record(tmp_path: Path) -> None:
    (run,) = ran([write_run(tmp_path / "a", partition="iid", rounds=1)])
    assert METRICS["alignment"].of(run) is None
    from fedkeel.runs.events import Log, read

    with Log(tmp_path / "a" / "events.jsonl") as log:
        log.write("geometry", alignment=1.3, intra=0.6, inter=0.8, intra_distance=0.7, inter_distance=0.9)

    (run,) = ran([read(tmp_path / "a")])
    values = {
        name: METRICS[name].of(run) for name in ("alignment", "intra", "ratio", "inter_distance", "ratio_distance")
    }
    expected = {"alignment": 1.3, "intra": 0.6, "ratio": 0.75, "inter_distance": 0.9, "ratio_distance": 7 / 9}
    assert values == pytest.approx(expected)


# --- pages and text ---------------------------------------------------------------------------------------------------


@pytest.fixture
def few(tmp_path: Path) -> list[Ran]:
    """OvA-LP with and without IID clients, and a method that the paper does not have."""
    records = [
        write_run(tmp_path / f"{method}{split}{seed}", method, split, seed, curve=[0.2, final - 0.01 * seed])
        for method, final in (("ova-lp", 0.6), ("scaffold", 0.5))
        for split in ("iid", *NON_IID)
        for seed in (0, 1)
    ]
    return ran(records, "my data")


def test_the_section_has_the_paper_s_column_ours_and_dashes(few: list[Ran]) -> None:
    sources = RECIPES["ova-lp/ablation"]
    page = Page(comparison.section(PAPERS["ova-lp"], "Figure 3", sources, few))
    assert page.titles == ["Beside the paper: Figure 3"]
    assert page.tags.count("svg") == 1 + 2, "bars, and averaged over the splits R(t) and accuracy"
    assert "arXiv 2511.05028" in page.text
    assert page.text.count("Ours: my data") >= 3
    for source in sources:
        assert source.title in page.text
        for note in source.notes:
            assert note in page.text
    for text in ("56.3", "53.70 ± 6.79", "401.20", "100.0 ± 0.0", "59.50 ± 0.71"):
        assert text in page.text
    assert page.text.count("–") >= 10, "softmax was not run"
    assert "scaffold" in page.text, "what was run besides stands after the paper's bars"


def test_settings_stand_beside_the_paper_s(few: list[Ran]) -> None:
    for run in few:
        run.record.start["config"]["method"] |= {"lr": 0.01, "rounds": 15}
    page = comparison.section(PAPERS["ova-lp"], "", (), few)
    assert '<td>Rounds</td><td class="number">50</td><td class="number">15</td>' in page
    assert '<td>Learning rate</td><td class="number">0.01</td><td class="number">0.01</td>' in page


def test_a_bar_plot_has_a_bar_for_each_number(few: list[Ran]) -> None:
    source = RECIPES["ova-lp/ablation"][0]
    picture = comparison.bars(source, comparison.lines(source, few), comparison.columns(few))
    assert picture.svg.startswith("<svg")
    for text in ("56.3", "95.9", "100.0", "scaffold", "paper", "ours: my data"):
        assert f">{text}<" in picture.svg


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.claims])
def test_every_figure_and_table_can_be_shown(name: str, few: list[Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canvas, "draw", lambda *_: "<svg></svg>")
    source: Source = SOURCES[name]
    page = comparison.section(PAPERS["ova-lp"], "", [source], few)
    first = source.claims[0]
    assert (first.printed or f"{first.value or 0:.{METRICS[first.metric].digits}f}") in page
    told = any(c.metric in HEADLINE for c in source.claims) and not source.wide  # of what was run, or as a whole
    assert (source.name in comparison.text([source], few)) is told


def test_curves_are_means_over_the_splits_of_each_seed_that_has_finished_on_all(tmp_path: Path) -> None:
    """Seed 0: (0.2 + 0.4) / 2 and (0.5 + 0.9) / 2. Seed 1 has one split only, seed 2 has not finished on the other."""
    made = {("shard-1", 0): [0.2, 0.5], ("shard-2", 0): [0.4, 0.9], ("shard-1", 1): [0.9, 0.9], ("shard-1", 2): [0.1]}
    pairs = [
        (split, write_run(tmp_path / f"{split}{seed}", partition=split, seed=seed, curve=curve), None)
        for (split, seed), curve in made.items()
    ]
    pairs.append(
        ("shard-2", write_run(tmp_path / "cut", partition="shard-2", seed=2, curve=[0.3], finished=False), None)
    )
    found = averaged.means({"ova-lp": pairs}, "ova-lp", ("shard-1", "shard-2"), lambda run, _: run.accuracy_curve)
    np.testing.assert_allclose(found, [[0.3, 0.7]])
    assert averaged.accuracy_curves({"ova-lp": pairs}, ("shard-1", "zipf"), "x") is None, "no seed is whole"
    picture = averaged.accuracy_curves({"ova-lp": pairs}, ("shard-1", "shard-2"), "my data")
    assert picture is not None
    assert picture.title == "Accuracy, averaged over 2 non-IID splits: my data"
    assert ">with IID clients<" in picture.svg


def test_curves_are_those_of_the_figure_s_methods(few: list[Ran]) -> None:
    """Figure 7 has OvA-LP and its parts: scaffold, which was run besides, has no curve there."""
    source = next(source for source in RECIPES["ova-lp/ablation"] if source.name == "Figure 7")
    (picture,) = comparison.curves(source, few)
    assert ">ova-lp<" in picture.svg
    assert ">scaffold<" not in picture.svg
    assert comparison.curves(RECIPES["ova-lp/noise"][0], few) == []
    kept = comparison.curves(RECIPES["ova-lp/ablation"][0], few)[0]
    assert kept.title.startswith("R(t)")
    assert "100 = the IID run" in kept.note


def test_bias_and_variance_are_means_over_the_rounds(tmp_path: Path) -> None:
    """Biases 3 and 5; deviations sqrt(4) / 2 and sqrt(9) / 1; a round without a gradient has neither."""
    (run,) = ran([write_run(tmp_path / "a", curve=[0.1, 0.2])])
    assert METRICS["bias"].of(run) is METRICS["deviation"].of(run) is None
    numbers = {"decision_bias": (3.0, 5.0, None), "variance": (4.0, 9.0, 1.0), "gradient": (2.0, 1.0, 0.0)}
    run.record.drift.extend({name: values[k] for name, values in numbers.items()} for k in range(3))
    assert (METRICS["bias"].of(run), METRICS["deviation"].of(run)) == (4.0, 2.0)
    page = comparison.section(PAPERS["ova-lp"], "", [RECIPES["ova-lp/ablation"][1]], [run])
    assert page.count('<td class="number">✓</td>') == 3
    assert page.count('<td class="number">×</td>') == 3


def test_how_a_dual_encoder_leaves_zero_shot_is_of_the_last_round_and_client_drift_of_all(tmp_path: Path) -> None:
    """A round in which nobody would step has no client drift; the paper's word stands where it has no number."""
    balanced, tailed = (write_run(tmp_path / name, "promptfl", "dirichlet", curve=[0.1]) for name in ("b", "t"))
    for run, tail in ((balanced, 1.0), (tailed, 100.0)):
        run.start["config"]["shift"]["long_tail"] = tail
        run.start["config"]["partition"]["alpha"] = 1
        run.start["config"]["data"]["source"] = "newsgroups20"
        classes = len(run.start["data"]["classes"])
        for round, (kl, drift) in enumerate(((0.1, 4.0), (0.3 * tail, None), (0.5 * tail, 2.0))):
            run.balance.append(
                {"round": round, "per_class": [0.5] * classes, "kl": kl, "tkl": 0.2, "client_drift": drift}
            )
    runs = ran([balanced, tailed])
    assert (METRICS["kl"].of(runs[0]), METRICS["tkl"].of(runs[0]), METRICS["client_drift"].of(runs[0])) == (
        0.5,
        0.2,
        3.0,
    )
    source = next(source for source in RECIPES["fedpurel/tkl"] if source.name == "Section D")
    page = comparison.section(PAPERS["fedpurel"], "", [source], runs)
    for cell in ("large", "0.500", "50.000", "balanced", "long tail"):
        assert f">{cell}</" in page


def test_methods_are_compared_one_setting_after_the_other(few: list[Ran]) -> None:
    """Table 2 has eight methods at eight settings: the setting is a heading, not a column."""
    page = comparison.section(PAPERS["ova-lp"], "", RECIPES["ova-lp/noise"], few)
    above = re.findall(r'<tr class="above"><th [^>]*>([^<]+)</th></tr>', page)
    assert above[:2] == ["Accuracy, %: symmetric noise 0.30", "Decline, %: symmetric noise 0.40"]
    assert len(above) == 8
    assert '<th scope="col">Method</th><th scope="col" class="number">Paper</th>' in page


def test_the_page_shows_on_every_screen(few: list[Ran], browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    opening = comparison.section(PAPERS["ova-lp"], "Figure 3", RECIPES["ova-lp/ablation"], few)
    parts = [html.Part(title, [run.record for run in few[:8]]) for title in ("My data", "The same once more")]
    text = html.book(html.About("A recipe", "What it shows", ["a note"], "fedkeel reproduce it"), opening, parts)
    page = html.write(text, tmp_path / "page.html")
    ids = Page(text).ids
    assert len(ids) == len(set(ids)), "two parts may draw the same figure"
    for screen in SCREENS.values():
        seen = browser.open(page, screen)
        assert faults(seen, screen) == []
        assert seen["headings"] == ["A recipe", "Beside the paper: Figure 3", "My data", "The same once more",
                                    "What the numbers mean"]  # fmt: skip


def test_the_text_fits_a_terminal_and_repeats_nothing(few: list[Ran]) -> None:
    text = comparison.text(RECIPES["ova-lp/ablation"], few)
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("Table 3") == 1
    assert "Table 4" not in text, "costs are on the page"
