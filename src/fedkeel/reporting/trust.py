"""How far the scores of a model can be trusted: confidence against accuracy, without and with the temperature."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fedkeel.reporting.grouping import Group
from fedkeel.reporting.tables import NOTHING, Table, format_spread
from fedkeel.runs.events import Record


def trust_table(found: Sequence[Group]) -> Table | None:
    """One row per method and split, means over the seeds; None where no run has measured it."""
    head = ["Method", "Split", "Accuracy, %", "Temperature", "Validation rows"]
    head += ["Confidence without, %", "Confidence with, %", "ECE without, %", "ECE with, %"]
    rows = [
        _row(group, measured) for group in found if (measured := [m for run in group.runs if (m := _measured(run))])
    ]
    return Table(head, rows) if rows else None


def uncalibrated(found: Sequence[Group]) -> bool:
    """Whether a model's scores have no temperature."""
    return any(m and m["temperature"] is None for group in found for run in group.runs for m in [_measured(run)])


def _measured(run: Record) -> dict[str, Any] | None:
    told = (run.end or {}).get("calibration", {})
    return told if "before" in told else None


def _row(group: Group, measured: Sequence[dict[str, Any]]) -> list[str]:
    def shown(values: Sequence[float | None], digits: int) -> str:
        known = [value for value in values if value is not None]
        spread = statistics.stdev(known) if len(known) > 1 else None
        return format_spread(statistics.fmean(known), spread, digits) if known else NOTHING

    def percent(when: str, key: str) -> str:
        return shown([100 * one[when][key] if when in one else None for one in measured], 2)

    rows = [str(one["validation_rows"]) for one in measured if one["temperature"] is not None]
    numbers = [percent("before", "accuracy"), shown([one["temperature"] for one in measured], 3)]
    numbers.append(
        rows[0] if len(set(rows)) == 1 else f"{min(map(int, rows))} to {max(map(int, rows))}" if rows else NOTHING
    )
    return [group.method, group.partition, *numbers] + [
        percent(when, key) for key in ("confidence", "ece") for when in ("before", "after")
    ]
