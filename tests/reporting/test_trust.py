"""How far scores can be trusted, on the page: the numbers of the events, means over seeds, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_browser import write_run

from fedkeel.reporting import grouping, html, trust
from fedkeel.runs.events import Record

BEFORE = {"rows": 50, "accuracy": 0.6, "confidence": 0.9, "ece": 0.3, "bins": []}
AFTER = {**BEFORE, "confidence": 0.62, "ece": 0.021}


def calibrated(folder: Path, told: dict[str, Any] | None, **settings: Any) -> Record:
    record = write_run(folder, rounds=2, **settings)
    assert record.end is not None
    if told is not None:
        record.end["calibration"] = told
    return record


def test_confidence_and_error_of_each_method(tmp_path: Path) -> None:
    hot = {"temperature": 2.5, "validation_rows": 40, "before": BEFORE, "after": AFTER}
    cold = {**hot, "temperature": 2.7, "validation_rows": 44}
    records = [calibrated(tmp_path / str(seed), told, seed=seed) for seed, told in enumerate((hot, cold))]
    found = grouping.groups(records)
    table = trust.trust_table(found)
    assert table is not None
    (row,) = table.rows
    assert len(row) == len(table.head)
    assert row[2:] == ["60.00 ± 0.00", "2.600 ± 0.141", "40 to 44", "90.00 ± 0.00", "62.00 ± 0.00", "30.00 ± 0.00",
                       "2.10 ± 0.00"]  # fmt: skip
    assert not trust.uncalibrated(found)
    page = html.page(records)
    assert page.count("<h2>How far scores can be trusted</h2>") == 1
    assert "2.600" in page
    assert "not calibrated" not in page


def test_scores_without_a_temperature_are_marked(tmp_path: Path) -> None:
    record = calibrated(tmp_path / "a", {"temperature": None, "validation_rows": 0, "before": BEFORE})
    table = trust.trust_table(grouping.groups([record]))
    assert table is not None
    assert list(table.rows[0])[2:] == ["60.00", "–", "–", "90.00", "–", "30.00", "–"]
    assert "scores are not calibrated: set partition.validation=0.1 and run again" in html.page([record])


def test_a_run_that_did_not_measure_it_has_no_such_part(tmp_path: Path) -> None:
    nothing = {"temperature": None, "validation_rows": 0}
    for name, told in (("a", None), ("b", nothing)):
        assert "How far scores can be trusted" not in html.page([calibrated(tmp_path / name, told)])
