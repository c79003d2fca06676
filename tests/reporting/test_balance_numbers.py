"""Frequent and rare classes against numbers worked out by hand and by brute force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedkeel.core.errors import FedkeelError
from fedkeel.reporting.balance_numbers import Balance, balancedness, groups
from fedkeel.runs.config import load
from fedkeel.runs.events import Log, Record, read


def record(
    folder: Path,
    data: dict[str, Any],
    end: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
    moments: list[dict[str, Any]] | None = None,
) -> Record:
    """A run of four classes as its events tell it."""
    config = {"method": {"name": "fedpurel"}, "partition": {"kind": "dirichlet"}, "run": {"seed": 0}}
    config |= {} if report is None else {"report": report}
    counts = {"label_counts": [[150, 40, 10, 5], [50, 10, 5, 0]]}
    with Log(folder / "events.jsonl") as log:
        log.write("start", config=config, data={"classes": list("abcd"), **data}, clients=counts)
        for moment in moments or []:
            log.write("balance", **moment)
        if end is not None:
            log.write("end", **end)
    return read(folder)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_groups_by_the_published_thresholds() -> None:
    """Head has more than 100 rows, tail at most 20, mid is between: 100 and 21 are mid, 20 is tail."""
    assert groups([101, 100, 21, 20, 0]) == {"head": [0], "mid": [1, 2], "tail": [3, 4]}
    assert groups([6, 5, 2, 1], head=5, tail=1) == {"head": [0], "mid": [1, 2], "tail": [3]}


def test_a_class_at_zero_counts_in_its_group(tmp_path: Path) -> None:
    """Tail: accuracies 0.8 and 0, mean 0.4. Leaving out the class that is never right would make it 0.8."""
    run = record(
        tmp_path, {"class_rows": [200, 50, 15, 5]}, {"accuracy": 0.5, "per_class": [0.9, 0.6, 0.8, 0.0]}, {"head": 100}
    )
    gm = Balance.of(run).gm
    assert gm is not None
    assert (gm.overall, gm.head, gm.mid, gm.tail) == (0.5, 0.9, 0.6, pytest.approx(0.4))


def test_a_class_without_test_rows_is_left_out_and_an_empty_group_has_no_number(tmp_path: Path) -> None:
    end = {"accuracy": 0.7, "per_class": [0.9, 0.5, None, 0.2]}
    gm = Balance.of(record(tmp_path, {"class_rows": [200, 150, 15, 5]}, end)).gm
    assert gm is not None
    assert (gm.head, gm.mid, gm.tail) == (pytest.approx(0.7), None, 0.2)
    assert gm.beta == balancedness([0.9, 0.5, 0.2])


def test_thresholds_and_scale_are_settings(tmp_path: Path) -> None:
    end = {"accuracy": 0.5, "per_class": [0.9, 0.6, 0.8, 0.0]}
    report = {"head": 10, "tail": 5, "balance_scale": 1.0}
    balance = Balance.of(record(tmp_path, {"class_rows": [200, 50, 15, 5]}, end, report))
    assert balance.groups == {"head": [0, 1, 2], "mid": [], "tail": [3]}
    assert balance.gm is not None
    assert balance.gm.beta == balancedness(end["per_class"], 1.0)  # type: ignore[arg-type]


# --- balancedness -----------------------------------------------------------------------------------------------------


def test_balancedness_by_hand() -> None:
    """Two classes at 1 and 0.9 differ by 0.1: (1 + 1 + 2 exp(-1)) / 4. One class, or all alike: 1. C classes far
    apart: hardly more than the C equal pairs, 1/C."""
    assert balancedness([1.0, 0.9]) == pytest.approx((2 + 2 * math.exp(-1)) / 4)
    assert balancedness([1.0, 0.9], scale=20) == pytest.approx((2 + 2 * math.exp(-2)) / 4)
    assert balancedness([0.4]) == balancedness([0.3] * 7) == 1
    assert balancedness([0.0, 1.0, None]) == pytest.approx(1 / 2, abs=1e-4)
    assert balancedness([None]) is None


accuracies = arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1))


@given(accuracies, st.floats(0.1, 30))
def test_balancedness_is_the_mean_over_all_pairs(values: np.ndarray, scale: float) -> None:
    pairs = [math.exp(-scale * abs(a - b)) for a in values.tolist() for b in values.tolist()]
    assert balancedness(values, scale) == pytest.approx(sum(pairs) / len(values) ** 2)
    assert balancedness(values[::-1], scale) == pytest.approx(balancedness(values, scale))


def test_balancedness_lies_where_the_paper_s_numbers_do() -> None:
    """The numbers of the docstring; and a closed form: of a difference d ~ N(0, 2 s^2) the mean of exp(-10 |d|) is
    2 exp(100 s^2) Phi(-10 sqrt(2) s), and of the pairs of 100 classes one in 100 is a class with itself."""
    from scipy.stats import norm

    for deviation, told in ((0.15, 0.32), (0.20, 0.26), (0.25, 0.23)):
        s = 10 * math.sqrt(2) * deviation
        exact = 2 * math.exp(s**2 / 2) * norm.cdf(-s)
        places = norm.ppf((np.arange(100) + 0.5) / 100) * deviation + 0.7
        assert balancedness(places) == pytest.approx(exact + (1 - exact) / 100, abs=0.01)
        assert balancedness(np.clip(places, 0, 1)) == pytest.approx(told, abs=0.006)


# --- personal models, branches and rounds -----------------------------------------------------------------------------

MODELS = {
    "accuracy": 0.6,
    "per_class": [0.9, 0.6, 0.8, 0.0],
    "personal": [0.5, 0.9, None],
    "personal_mean": 0.7,
    "personal_right": [90, 30, 6, 0],
    "personal_rows": [100, 40, 10, 0],
    "by_global": [60, 12, 3, 0],
}


def test_personal_models_are_a_mean_over_clients_and_by_class_all_rows_together(tmp_path: Path) -> None:
    """Overall what the end says; classes 90/100, 30/40, 6/10 and none: head 0.9, mid 0.75, tail 0.6 of one class."""
    pm = Balance.of(record(tmp_path, {"class_rows": [200, 50, 15, 5]}, MODELS)).pm
    assert pm is not None
    assert (pm.overall, pm.head, pm.mid, pm.tail) == (0.7, 0.9, 0.75, 0.6)
    assert pm.beta == balancedness([0.9, 0.75, 0.6])


def test_branches_share_the_right_answers(tmp_path: Path) -> None:
    """Class by class 60/90, 12/30, 3/6; with head = 40 the first two are together: 72 of 120."""
    balance = Balance.of(record(tmp_path, {"class_rows": [200, 50, 15, 5]}, MODELS, {"head": 40}))
    assert balance.branch_by_class is not None
    assert balance.branch_by_class == pytest.approx([2 / 3, 0.4, 0.5, math.nan], nan_ok=True)
    assert balance.branch_by_group == {"head": pytest.approx(0.6), "mid": None, "tail": pytest.approx(0.5)}


def test_one_branch_has_no_shares(tmp_path: Path) -> None:
    balance = Balance.of(record(tmp_path, {"class_rows": [200, 50, 15, 5]}, {**MODELS, "by_global": None}))
    assert balance.branch_by_class is None
    assert balance.branch_by_group is None
    assert balance.pm is not None


def test_zero_shot_is_weighed_by_the_test_rows_of_its_classes(tmp_path: Path) -> None:
    """0.8, 0.4, 0.6 with 10, 30, 10 test rows: 26 of 50 right; without the counts the mean of the classes, 0.6."""
    shot = {"class_rows": [200, 50, 15, 5], "zero_shot": [0.8, 0.4, 0.6, None]}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    told = Balance.of(record(tmp_path / "a", {**shot, "class_test_rows": [10, 30, 10, 0]})).zero_shot
    silent = Balance.of(record(tmp_path / "b", shot)).zero_shot
    assert told is not None
    assert silent is not None
    assert told.overall == pytest.approx(26 / 50)
    assert silent.overall == pytest.approx(0.6)
    assert told.tail == 0.6


def test_moments_are_those_of_the_balance_events_and_a_redone_round_counts_once(tmp_path: Path) -> None:
    def moment(round: int, tail: float) -> dict[str, Any]:
        drift = {"kl": 0.2, "tkl": 0.1, "agreement": 0.9, "angle": None, "angles": [], "client_drift": 1.5}
        own = {"personal": [0.5, 0.7, None], "personal_right": [9, 0, 1, 0], "personal_rows": [10, 0, 2, 0]}
        return {"round": round, "per_class": [0.9, 0.6, tail, tail], **drift, **own}

    run = record(tmp_path, {"class_rows": [200, 50, 15, 5]}, moments=[moment(0, 0.5), moment(1, 0.1), moment(1, 0.2)])
    balance = Balance.of(run)
    assert [event["round"] for event in run.balance] == [0, 1]
    first, last = balance.moments
    assert (first.round, first.gm.tail, last.gm.tail) == (0, 0.5, 0.2)
    assert first.gm.overall == pytest.approx((0.9 + 0.6 + 0.5 + 0.5) / 4)
    assert first.pm is not None
    assert (first.pm.overall, first.pm.head, first.pm.mid, first.pm.tail) == (pytest.approx(0.6), 0.9, None, 0.5)
    assert (last.kl, last.tkl, last.agreement, last.angle, last.client_drift) == (0.2, 0.1, 0.9, None, 1.5)
    assert balance.gm is balance.pm is None, "not finished"


def test_older_records_have_neither_class_rows_nor_a_report_section(tmp_path: Path) -> None:
    """Rows are those that the clients' labels add up to: 200, 50, 15 and 5."""
    balance = Balance.of(record(tmp_path, {}, {"accuracy": 0.5, "per_class": [0.9, 0.6, 0.8, 0.0]}))
    assert balance.class_rows.tolist() == [200, 50, 15, 5]
    assert balance.groups == {"head": [0], "mid": [1], "tail": [2, 3]}
    assert balance.zero_shot is balance.pm is balance.branch_by_group is None
    assert balance.moments == ()


def test_a_method_without_a_global_model_has_no_gm(tmp_path: Path) -> None:
    end = {"accuracy": 0.7, "per_class": [None] * 4, "personal": [0.7], "personal_mean": 0.7}
    balance = Balance.of(record(tmp_path, {"class_rows": [200, 50, 15, 5]}, end))
    assert balance.gm is None
    assert balance.pm is not None
    assert (balance.pm.overall, balance.pm.tail, balance.pm.beta) == (0.7, None, None)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_how_a_report_reads_a_run_is_no_part_of_what_the_run_is() -> None:
    usual, other = load(None), load(None, ["report.head=50", "report.tail=5", "report.balance_scale=5"])
    assert usual.digest() == other.digest()
    assert (other.report.head, other.report.tail, other.report.balance_scale) == (50, 5, 5.0)
    assert "[report]" in other.toml()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("report.haed=5", "unknown key 'report.haed': did you mean 'report.head'?"),
        ("report.tail=300", "report.tail is 300, above report.head, 100: make it the smaller one"),
        ("report.balance_scale=0", "report.balance_scale is 0: input should be greater than 0"),
        ("report=3", "report is a section: set one of its keys, e.g. report.head"),
    ],
)
def test_mistakes_in_the_section_are_told_in_one_line(text: str, line: str) -> None:
    with pytest.raises(FedkeelError) as caught:
        load(None, [text])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
