"""Frequent and rare classes on the page: tables, verdicts and figures from events alone, and FedPuReL's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_browser import SCREENS, Browser, browser, faults, write_run  # noqa: F401  a fixture
from test_report import Page

import fedkeel as fk
from fedkeel.papers import PAPERS, RECIPES, comparison, fedpurel, fedpurel_verdicts
from fedkeel.papers.commentary import COMMENTARY
from fedkeel.papers.measures import METRICS, Ran
from fedkeel.reporting import balance, balance_plots, canvas, html, personal
from fedkeel.reporting.balance import BalanceSection
from fedkeel.reporting.balance_numbers import balancedness
from fedkeel.reporting.balance_plots import Served
from fedkeel.reporting.grouping import groups
from fedkeel.reporting.personal import PersonalSection
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.plots import Look
from fedkeel.runs.events import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = [round(480 * 100 ** (-c / 19)) for c in range(20)]
"""A long tail of imbalance 100: 7 head classes, 7 mid, 6 tail, in the order of the labels."""
NAMED = np.linspace(0.50, 0.70, 20)
"""Zero-shot: rare classes are no worse off than frequent ones."""


def tailed_run(
    folder: Path,
    method: str = "fedpurel",
    seed: int = 0,
    *,
    slope: float = 0.0,
    gain: float = 0.02,
    personal: float | None = 0.75,
    by_global: float | None = None,
    rounds: int = 6,
    measured: bool = False,
    alpha: float = 1.0,
    **settings: Any,
) -> Record:
    """A run whose training raised the most frequent class by ``gain + slope`` and the rarest by ``gain - slope``."""
    tilt = np.linspace(1, -1, 20)
    after = np.clip(NAMED + gain + slope * tilt + 0.001 * seed, 0, 1)
    usual = {"peft": "prompt", "alignment": "tkl", "lam": 0.9} if method == "fedpurel" else {"balance": "none"}
    run = write_run(
        folder, method, "dirichlet", seed, curve=np.linspace(NAMED.mean(), after.mean(), rounds).tolist(), clients=20,
        settings={**usual, **settings}, split={"alpha": alpha, "test_split": "same"},
    )  # fmt: skip
    start = {**run.start, "data": {**run.start["data"], "class_rows": ROWS, "zero_shot": NAMED.tolist()}}
    start["config"] = {**run.start["config"], "shift": {"long_tail": 100.0}, "report": {"head": 100, "tail": 20}}
    own = np.full(20, 40.0)
    right = np.round(own * np.clip(after + 0.1, 0, 1))
    models = {} if personal is None else {
        "personal": [personal] * 20, "personal_mean": personal, "personal_right": right.tolist(),
        "personal_rows": own.tolist(),
        "by_global": None if by_global is None else (right * by_global * tilt**2).tolist(),
    }  # fmt: skip
    moments = [
        {
            "event": "balance", "round": t, "per_class": (NAMED + (after - NAMED) * t / rounds).tolist(),
            "kl": 0.3 * t / rounds, "tkl": 0.1 * t / rounds, "agreement": 1 - 0.4 * t / rounds,
            "angle": 90 + 40 * t / rounds * (method == "fedpurel") + seed, "angles": [],
            "client_drift": 2.0 - t / rounds,
            "personal": [0.6 + 0.1 * t / rounds, None], "personal_right": right.tolist(), "personal_rows": own.tolist(),
        }
        for t in range(rounds + 1)
    ]  # fmt: skip
    assert run.end
    end = {**run.end, "accuracy": float(after.mean()), "per_class": after.tolist(), "per_client": [0.6] * 20, **models}
    return replace(run, start=start, end=end, balance=moments if measured else [])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """What stands on the axes of each figure, by its title; turning it into SVG takes most of the time."""
    from matplotlib.figure import Figure

    found: dict[str, Axes] = {}

    def paint_only(title: str, height: float, paint: Callable[[Axes], None]) -> str:
        found[title] = Figure(layout="constrained").add_subplot()
        paint(found[title])
        return "<svg></svg>"

    monkeypatch.setattr(canvas, "draw", paint_only)
    return found


def line(axes: Axes, label: str) -> np.ndarray:
    """The heights of a line that the legend names."""
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return np.array(found.get_ydata(), dtype=float)


def section(text: str) -> str:
    return text[text.index("<h2>Balance</h2>") :].split("<section", 1)[0]


def rows(text: str) -> list[list[str]]:
    table = re.findall(r"<table>.*?</table>", text, flags=re.DOTALL)[0]
    return [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table)]


def served(records: list[Record]) -> list[Served]:
    return [Served(group) for group in groups(records)]


def titles(section: BalanceSection | PersonalSection | None) -> list[str]:
    assert section is not None
    return [picture.title for figures in section.figures for picture in figures]


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_has_zero_shot_first_and_both_models_of_each_method(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    """Zero-shot rises evenly from 0.5 to 0.7: head is the mean of its first 7 classes, 0.5 + 3 * 0.2 / 19 = 0.5316, mid
    of the next 7, tail of the last 6. The method has 0.02 more everywhere, and 0.001 more in seed 1: 62.05 +- 0.07."""
    runs = [tailed_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    text = section(html.page(runs))
    over, head, zero_shot, method = rows(text)
    assert over == ["", "Global model (GM)", "Personal models (PM)"]
    assert head == ["Method", *["All, %", "Head, %", "Mid, %", "Tail, %", "β, %"] * 2]
    beta = 100 * (balancedness(NAMED) or 0)
    assert zero_shot[:6] == ["zero-shot", "60.0 ± 0.0", "53.2 ± 0.0", "60.5 ± 0.0", "67.4 ± 0.0", f"{beta:.1f} ± 0.0"]
    assert zero_shot[6:] == ["–"] * 5
    assert method[:5] == ["fedpurel", "62.0 ± 0.1", "55.2 ± 0.1", "62.6 ± 0.1", "69.4 ± 0.1"]
    assert method[6] == "75.0 ± 0.0"
    words = Page(text).text
    assert "That is our reading" in words
    assert "classes with more than 100 training rows" in words
    assert "(7 head, 7 mid, 6 tail classes)" in words
    assert "a class at 0 % counts" in words


def test_zero_shot_that_was_run_takes_the_place_of_what_others_measured(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    runs = [tailed_run(tmp_path / "a"), tailed_run(tmp_path / "z", "zero-shot", gain=0, personal=0.61)]
    _, _, *methods = rows(section(html.page(runs)))
    assert [row[0] for row in methods] == ["zero-shot", "fedpurel"]
    assert methods[0][6] == "61.0"


def test_a_run_that_sends_nothing_has_a_page(tmp_path: Path) -> None:
    """Zero-shot has one round and no exchange: its accuracy stands beside the others', its bytes are none."""
    silent = replace(tailed_run(tmp_path / "z", "zero-shot", rounds=1, gain=0), exchanges=[])
    assert groups([silent])[0].traffic().tolist() == [0]
    for runs in ([silent], [silent, tailed_run(tmp_path / "a")]):
        assert "<h2>Balance</h2>" in html.page(runs)


def test_each_split_has_its_rows_under_its_name(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    runs = [tailed_run(tmp_path / f"{alpha}", alpha=alpha) for alpha in (0.1, 1, 5)]
    _, _, *found = rows(section(html.page(runs)))
    assert [row[0] for row in found if len(row) == 1] == [f"dirichlet, alpha={alpha}" for alpha in (0.1, 1, 5)]
    assert [row[0] for row in found if len(row) > 1] == ["zero-shot", "fedpurel"] * 3


def test_runs_without_a_long_tail_or_a_zero_shot_model_have_no_such_part(
    tmp_path: Path, drawn: dict[str, Axes]
) -> None:
    plain = write_run(tmp_path / "old", curve=[0.5, 0.6])
    assert "<h2>Balance</h2>" not in html.page([plain])
    tail = {**plain.start, "data": {**plain.start["data"], "class_rows": ROWS}}
    tail["config"] = {**plain.start["config"], "shift": {"long_tail": 100.0}}
    assert "<h2>Balance</h2>" not in html.page([replace(plain, start={**tail, "config": plain.start["config"]})])
    _, _, *methods = rows(section(html.page([replace(plain, start=tail)])))
    assert [row[0] for row in methods] == ["ova-lp"]
    assert methods[0][6:] == ["–"] * 5


# --- what the page says of the paper's story --------------------------------------------------------------------------


def test_what_was_expected_and_came_out_is_told_with_its_numbers(tmp_path: Path) -> None:
    runs = [
        tailed_run(tmp_path / "a", gain=0.02, personal=0.76),
        tailed_run(tmp_path / "b", "promptfl", slope=0.25, gain=-0.05, personal=0.70),
        tailed_run(tmp_path / "c", "promptfolio", slope=0.25, gain=-0.03, personal=0.73),
        tailed_run(tmp_path / "d", "clip-lora", gain=0.1, personal=0.9),
    ]
    (told,) = fedpurel_verdicts.verdicts(served(runs), "")
    assert told.startswith("fedpurel. As the paper has it: global accuracy 62.00 % against 55.00 % of promptfl (+7.00)")
    assert "tail accuracy 69.37 % against 67.37 % of zero-shot (+2.00)" in told
    assert "personal accuracy 76.00 % against 73.00 % of promptfolio, the best of 2 baselines (+3.00)" in told
    assert "NOT" not in told
    assert "clip-lora" not in told, "another family"


def test_what_did_not_come_out_is_told_as_plainly(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    """Every expectation is broken in turn: a worse global model, a less even one, a lost tail, worse personal ones."""
    runs = [
        tailed_run(tmp_path / "a", gain=-0.04, slope=0.3, personal=0.70),
        tailed_run(tmp_path / "b", "promptfl", gain=0.01, personal=0.72),
    ]
    (told,) = fedpurel_verdicts.verdicts(served(runs), " on here")
    assert told.startswith("fedpurel on here. NOT as the paper has it: global accuracy 56.00 % against 61.00 %")
    assert all(words in told for words in ("global balancedness", "tail accuracy", "personal accuracy"))
    assert "As the paper" not in told
    assert "NOT as the paper has it" in Page(section(html.page(runs, commentary=COMMENTARY))).text
    assert "as the paper has it" not in Page(section(html.page(runs))).text, "a page alone knows no paper"


def test_the_plain_baseline_is_the_one_without_a_balancer(tmp_path: Path) -> None:
    runs = [
        tailed_run(tmp_path / "a", peft="adapter", gain=0.02),
        tailed_run(tmp_path / "b", "fedclip", gain=0.05, balance="grab", personal=0.9),
        tailed_run(tmp_path / "c", "fedclip", gain=-0.01, slope=0.3, personal=0.7),
    ]
    (told,) = fedpurel_verdicts.verdicts(served(runs), "")
    assert "As the paper has it: global accuracy 62.00 % against 59.00 % of fedclip (+3.00)" in told
    assert "NOT as the paper has it: personal accuracy 75.00 % against 90.00 % of fedclip, balance=grab" in told


def test_tkl_is_set_against_kl_with_the_same_settings(tmp_path: Path) -> None:
    runs = [
        tailed_run(tmp_path / "a", gain=0.03, personal=0.74),
        tailed_run(tmp_path / "b", gain=0.01, slope=0.3, personal=0.75, alignment="kl"),
        tailed_run(tmp_path / "c", gain=0.2, alignment="kl", peft="lora"),
    ]
    (told,) = fedpurel_verdicts.verdicts(served(runs), "")
    assert "TKL against KL. As the paper has it: global accuracy 63.00 % against 61.00 %" in told
    assert "NOT as the paper has it: personal accuracy 74.00 % against 75.00 %" in told


def test_seeds_are_counted_and_a_difference_that_does_not_show_is_none(tmp_path: Path) -> None:
    """Seed 0 is 3 points ahead, seed 1 is 1 behind: 1 in the mean, in one of two seeds. The tail is zero-shot's own to
    two digits: not below it. Personal models are ahead by a thousandth of a point: that is no gain."""
    runs = [
        tailed_run(tmp_path / "a0", gain=0.0, personal=0.70001, template="a {}"),
        tailed_run(tmp_path / "a1", seed=1, gain=-0.001, personal=0.70001, template="a {}"),
        tailed_run(tmp_path / "b0", "promptfl", gain=-0.03, slope=0.3, personal=0.7, template="a {}"),
        tailed_run(tmp_path / "b1", "promptfl", seed=1, gain=0.009, slope=0.3, personal=0.7, template="a {}"),
    ]
    (told,) = fedpurel_verdicts.verdicts(served(runs), "")
    assert "global accuracy 60.00 % against 59.00 % of promptfl (+1.00, in 1 of 2 seeds)" in told
    assert "tail accuracy 67.37 % against 67.37 % of zero-shot (+0.00, in 2 of 2 seeds)" in told
    assert "NOT as the paper has it: personal accuracy 70.00 % against 70.00 % of promptfl (+0.00, in 0 of 2" in told


def test_numbers_that_are_missing_are_not_judged(tmp_path: Path) -> None:
    alone = tailed_run(tmp_path / "a")
    assert list(fedpurel_verdicts.verdicts(served([alone]), "")) == []
    baseline = tailed_run(tmp_path / "b", "promptfl", personal=None)
    (told,) = fedpurel_verdicts.verdicts(served([alone, baseline]), "")
    assert "personal accuracy" not in told


# --- figures ----------------------------------------------------------------------------------------------------------


def test_one_run_has_all_its_figures(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    run = tailed_run(tmp_path / "a", by_global=0.5, measured=True)
    found = groups([run])
    assert titles(balance.section(found, Look.of(found), COMMENTARY)) == [
        "Accuracy from frequent to rare classes",
        "Which branch right answers are due to: fedpurel",
        "Accuracy over the rounds",
        "Accuracy on tail classes over the rounds",
        "Angle between task and alignment gradient",
        "Client drift",
        "Drift from zero-shot",
        "Agreement with zero-shot",
    ]


def test_classes_stand_from_frequent_to_rare_whatever_their_labels_are(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    """Seed 1 has the long tail the other way round: its accuracies are averaged by rank, not by label."""
    runs = [tailed_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    turned = {**runs[1].start["data"], "class_rows": ROWS[::-1]}
    runs[1] = replace(runs[1], start={**runs[1].start, "data": turned})
    found = served(runs)
    balance_plots.by_frequency(found, Look.of([one.group for one in found]), "")
    axes = drawn["Accuracy from frequent to rare classes"]
    assert line(axes, "zero-shot, all test rows") == pytest.approx(100 * (NAMED + NAMED[::-1]) / 2)
    assert axes.get_xticklabels()[0].get_text() == "480"
    assert [text.get_text() for text in axes.texts] == ["head", "mid", "tail"]


def test_many_classes_are_drawn_as_means_of_neighbours(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    run = tailed_run(tmp_path / "a")
    many = {**run.start["data"], "classes": [str(k) for k in range(90)], "class_rows": list(range(90, 0, -1)),
            "zero_shot": (np.arange(90) / 100).tolist()}  # fmt: skip
    assert run.end
    end = {"accuracy": 0.5, "per_class": [0.5] * 90, "per_client": [0.5], "digest": ""}
    (picture,) = balance_plots.by_frequency(
        served([replace(run, start={**run.start, "data": many}, end=end)]), Look(("fedpurel",), ("dirichlet",)), ""
    )
    assert line(drawn[picture.title], "zero-shot, all test rows")[:2] == pytest.approx([1, 4])
    assert "mean of about 3 classes" in picture.note


def test_bars_of_the_branches_add_up_to_all_right_answers(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    one, other = served([tailed_run(tmp_path / "a", by_global=0.5), tailed_run(tmp_path / "b", "promptfl")])
    picture = balance_plots.branches(one, "")
    assert picture is not None
    assert balance_plots.branches(other, "") is None
    bars = [bar.get_width() for bar in drawn[picture.title].patches]
    shares = one.seeds[0].branch_by_group
    assert shares is not None
    assert bars[:3] == pytest.approx([100 * (shares[name] or 0) for name in ("head", "mid", "tail")])
    assert np.add(bars[:3], bars[3:]) == pytest.approx([100, 100, 100])


def test_rounds_are_drawn_for_both_models_with_zero_shot_and_90_degrees(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    runs = [tailed_run(tmp_path / str(seed), seed=seed, gain=0.06, measured=True) for seed in (0, 2)]
    found = served(runs)
    balance_plots.rounds(found, Look.of([one.group for one in found]), "")
    overall, tail, angle = (
        drawn[title]
        for title in (
            "Accuracy over the rounds",
            "Accuracy on tail classes over the rounds",
            "Angle between task and alignment gradient",
        )
    )
    assert line(overall, "global model")[[0, -1]] == pytest.approx([60, 66.1])
    assert line(overall, "personal models")[[0, -1]] == pytest.approx([60, 70])
    assert line(overall, "zero-shot, all test rows") == pytest.approx([60, 60])
    assert line(tail, "global model")[-1] - line(tail, "global model")[0] == pytest.approx(6.1)
    assert line(angle, "angle")[[0, -1]] == pytest.approx([91, 131])
    assert line(angle, "90°")[0] == 90
    assert line(drawn["Client drift"], "drift")[[0, -1]] == pytest.approx([2, 1])
    drift = drawn["Drift from zero-shot"]
    assert (line(drift, "TKL")[-1], line(drift, "KL")[-1]) == (pytest.approx(0.1), pytest.approx(0.3))
    assert line(drawn["Agreement with zero-shot"], "agreement")[-1] == pytest.approx(60)


def test_of_many_methods_global_and_personal_models_have_figures_of_their_own(
    tmp_path: Path, drawn: dict[str, Axes]
) -> None:
    names = ("promptfl", "promptfolio", "fedotp", "fedpurel")
    found = groups([tailed_run(tmp_path / name, name, measured=True) for name in names])
    shown = titles(balance.section(found, Look.of(found), COMMENTARY))
    for title in ("Accuracy from frequent to rare classes", "Accuracy over the rounds"):
        assert [name for name in shown if name.startswith(title)] == [
            f"{title}: global model", f"{title}: personal models",
        ]  # fmt: skip
    labels = drawn["Accuracy over the rounds: global model"].get_legend_handles_labels()[1]
    assert labels == ["zero-shot, all test rows", *names]


def test_a_sweep_of_lambda_stars_the_best_of_each_group(tmp_path: Path, drawn: dict[str, Axes]) -> None:
    """Personal accuracy is best at 0.5; the slope tilts towards the head, so head is best at 0.9 and tail at 0."""
    values = {0.0: 0.70, 0.5: 0.80, 0.9: 0.75}
    runs = [tailed_run(tmp_path / f"{lam}", lam=lam, slope=lam / 4, personal=best) for lam, best in values.items()]
    found = groups(runs)
    (title,) = [name for name in titles(balance.section(found, Look.of(found), COMMENTARY)) if "lambda" in name]
    axes = drawn[title]
    assert line(axes, "overall") == pytest.approx([70, 80, 75])
    stars = [float(np.asarray(star.get_xdata())[0]) for star in axes.lines
             if star.get_marker() == "*" and len(np.asarray(star.get_xdata()))]  # fmt: skip
    assert stars[0] == 0.5
    assert (stars[1], stars[3]) == (0.9, 0.0)
    assert fedpurel_verdicts.sweeps(served(runs[:2]), "") == [], "two values are no sweep"


def test_models_that_were_tested_at_home_only_have_no_number_for_abroad(tmp_path: Path) -> None:
    """The mean over all test sets would be that of the own ones, and a map of the diagonal says nothing."""
    home = Personal.of_matrix(np.where(np.eye(3) > 0, 0.7, np.nan))
    assert (home.local, home.global_incl, home.worst, home.average_lgw) == (pytest.approx(0.7), None, None, None)
    assert Personal.of_matrix([[0.7]]).global_incl == 0.7, "there is no abroad"
    assert Personal.of_matrix([[0.7, None], [0.5, None]]).global_incl == pytest.approx(0.6)
    run = tailed_run(tmp_path / "a")
    models = [
        {"client": k, "name": str(k), "rows": 9, "on": [0.7 if k == j else None for j in range(3)], "distortion": None,
         "seconds": {}, "flops": {}}
        for k in range(3)
    ]  # fmt: skip
    test = {"basis": "own test rows", "names": list("abc"), "rows": [9] * 3, "before": [0.6] * 3}
    found = groups([replace(run, personal=models, personal_test=test)])
    shown = titles(personal.section(found, COMMENTARY))
    assert any(title.startswith("Own test set") for title in shown)
    assert not [title for title in shown if title.startswith(("All test sets", "Whose model"))]


# --- the paper's numbers ----------------------------------------------------------------------------------------------

ARROWS = {
    "prompt": (3.91, 2.59, 3.62, 1.71, 4.63, 1.58, 4.31, 1.53),
    "lora": (1.41, 1.29, 0.31, 1.13, 1.21, 2.94, 0.89, 0.65),
    "adapter": (1.89, 0.80, 1.11, 0.40, 2.14, 1.22, 1.79, 0.56),
}


@pytest.mark.parametrize("family", ARROWS)
def test_the_arrows_of_table_7_are_the_distances_to_the_best_baseline(family: str) -> None:
    *baselines, ours = (row for _, row in fedpurel.TABLE_7[family].values())
    gains = [mine - max(row[k] for row in baselines) for k, mine in enumerate(ours)]
    assert gains == pytest.approx(ARROWS[family], abs=0.006)


def test_table_6_is_the_prompt_at_alpha_1() -> None:
    ours = fedpurel.TABLE_7["prompt"]["FedPuReL"][1]
    assert fedpurel.TABLE_6["tkl"][:2] == ours[4:6] == (69.77, 73.37)


def ran(record: Record, method: str, partition: str, column: str = "ours") -> Ran:
    return Ran(column, method, partition, record, None)


def test_every_measure_of_a_run(tmp_path: Path) -> None:
    run = ran(tailed_run(tmp_path / "a", personal=0.75), "fedpurel", "dirichlet")
    assert run.record.end
    after = np.array(run.record.end["per_class"])
    assert METRICS["gm"].of(run) == pytest.approx(100 * after.mean())
    assert METRICS["pm"].of(run) == 75
    assert METRICS["gm_head"].of(run) == pytest.approx(100 * after[:7].mean())
    assert METRICS["gm_mid"].of(run) == pytest.approx(100 * after[7:14].mean())
    assert METRICS["gm_tail"].of(run) == pytest.approx(100 * after[14:].mean())
    assert METRICS["gm_balance"].of(run) == pytest.approx(100 * (balancedness(after) or 0))
    right, own = (np.array(run.record.end[key]) for key in ("personal_right", "personal_rows"))
    assert METRICS["pm_tail"].of(run) == pytest.approx(100 * (right / own)[14:].mean())
    assert METRICS["pm_balance"].of(run) == pytest.approx(100 * (balancedness(right / own) or 0))
    none = ran(tailed_run(tmp_path / "b", "promptfl", personal=None), "promptfl", "dirichlet")
    assert METRICS["pm"].of(none) is METRICS["pm_tail"].of(none) is None


def test_the_paper_stands_beside_a_laptop_s_split_and_its_own(tmp_path: Path) -> None:
    """The split has another name at each scale; alpha is what a claim asks for."""
    runs = []
    for kind, source, column in (("dirichlet", "newsgroups20", "A"), ("pachinko", f"hf:{fedpurel.CIFAR100[1]}", "B")):
        for alpha in (0.1, 1.0):
            run = tailed_run(tmp_path / f"{kind}{alpha}", alpha=alpha, gain=alpha / 10, personal=0.75)
            run.start["config"]["data"]["source"] = source
            runs.append(ran(run, "fedpurel:peft=prompt", f"{kind}:alpha={alpha:g}", column))
    source = RECIPES["fedpurel/heterogeneity"][0]
    lines = {(found.claim.metric, found.claim.setting): found for found in comparison.lines(source, runs)
             if found.claim.called == "FedPuReL"}  # fmt: skip
    first, third = lines["gm", "α = 0.1"], lines["gm", "α = 1"]
    assert [first.paper, third.paper] == [68.88, 69.77]
    assert [ours and ours.mean for ours in first.ours] == [pytest.approx(61)] * 2
    assert [ours and ours.mean for ours in third.ours] == [pytest.approx(70)] * 2
    assert lines["gm", "α = 5"].ours == (None, None)
    text = comparison.section(PAPERS["fedpurel"], "Table 7", RECIPES["fedpurel/heterogeneity"], runs)
    assert "64.79 at every alpha" in Page(text).text
    assert "PromptFolio + Fed-GraB" in text
    assert "69.77" in comparison.text(RECIPES["fedpurel/heterogeneity"], runs)


def test_other_datasets_do_not_stand_beside_the_numbers_of_cifar_100(tmp_path: Path) -> None:
    run = tailed_run(tmp_path / "a")
    run.start["config"]["data"]["source"] = "hf:ethz/food101"
    found = comparison.lines(
        RECIPES["fedpurel/heterogeneity"][0], [ran(run, "fedpurel:peft=prompt", "dirichlet:alpha=1")]
    )
    assert all(line.ours == (None,) for line in found)


def test_recipes_on_a_laptop_have_runs_for_every_claim() -> None:
    """One for each seed; at the paper's scale the same is tested for all recipes."""
    for name, sources in RECIPES.items():
        if not name.startswith("fedpurel/"):
            continue
        plan = fk.recipes()[name].scales["laptop"]
        made = [
            (grid.seeds or plan.seeds, cell) for grid in plan.grids for cell in grid.cells(grid.seeds or plan.seeds)
        ]
        for claim in (claim for source in sources for claim in source.claims):
            alpha = claim.where["partition.alpha"]
            tail = claim.where.get("shift.long_tail", 100.0)
            mine = [
                seeds
                for seeds, cell in made
                if (str(cell.method), cell.experiment.partition.alpha, cell.experiment.shift.long_tail)
                == (claim.method, alpha, tail)
            ]
            assert mine, claim
            assert len(mine) == len(mine[0]), claim


# --- in a browser -----------------------------------------------------------------------------------------------------


def test_the_page_shows_on_every_screen(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    runs = [
        tailed_run(tmp_path / f"{name}{seed}", name, seed, by_global=0.5, measured=True)
        for name in ("promptfl", "fedpurel")
        for seed in (0, 1)
    ]
    page = html.build(runs, tmp_path / "page.html")
    ids = Page(page.read_text()).ids
    assert len(ids) == len(set(ids))
    for screen in SCREENS.values():
        seen = browser.open(page, screen)
        assert faults(seen, screen) == []
        assert "Balance" in seen["headings"]
