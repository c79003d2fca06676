"""Runs as rows of numbers, written as people do, for a terminal or a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkeel.core.wrap import wrapped
from fedkeel.metrics.convergence import acc95_round, retained
from fedkeel.reporting.columns import columns
from fedkeel.reporting.grouping import groups
from fedkeel.runs.events import Record

NOTHING = "–"
MEASURES = (
    "accuracy",
    "personal",
    "retained",
    "acc95",
    "bytes_up",
    "bytes_down",
    "seconds",
    "round_up",
    "round_down",
    "client_seconds",
    "server_seconds",
    "bytes_until",
    "seconds_until",
)


@dataclass(frozen=True)
class Table:
    """What a table of a page holds: the first ``words`` columns are text, the others numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 2
    above: Mapping[int, str] = field(default_factory=dict)
    """headings of some rows, by their number"""
    corner: str = ""
    over: Sequence[str] = ()
    """headings over the head: one over the words, and some over as many columns of numbers each"""


def summary_row(record: Record, iid: Record | None) -> dict[str, Any]:
    """One run in raw numbers: accuracy 0..1, retained in percent, bytes, seconds; None where there is no number.

    Costs up to Acc@95 follow OvA-LP Tables 3 and 5: clients work in parallel, so a round lasts one client's mean
    work plus the server's.
    """
    curve, exchanges = record.accuracy_curve, record.traffic
    last = record.start["config"]["method"].get("rounds", len(curve))  # what comes later belongs to no round
    training = [event for event in exchanges if 1 <= event["round"] <= last]
    rounds = max(1, len({event["round"] for event in training}))
    # Acc@95 is relative to the final accuracy, which an unfinished run does not have yet.
    acc95 = acc95_round(curve) if record.end else None
    until = [event for event in exchanges if acc95 is not None and event["round"] <= acc95]
    return {
        "method": record.method,
        "partition": record.partition,
        "seed": record.seed,
        "finished": record.end is not None,
        "accuracy": record.end["accuracy"] if record.end else curve[-1] if curve else None,
        "personal": record.end.get("personal_mean") if record.end else None,
        "retained": _retained_at_end(curve, iid.accuracy_curve if iid else []),
        "acc95": acc95,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "seconds": record.seconds,
        "round_up": _total(training, "bytes_up") / rounds,
        "round_down": _total(training, "bytes_down") / rounds,
        "client_seconds": _total(training, "client_seconds") / rounds,
        "server_seconds": _total(training, "server_seconds") / rounds,
        "bytes_until": _total(until, "bytes_up", "bytes_down") if until else None,
        "seconds_until": _total(until, "client_seconds", "server_seconds") if until else None,
    }


def summary_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row per method and partition: means over the seeds and, from two seeds on, sample deviations."""
    rows = []
    for group in groups(records):
        runs = [summary_row(run, twin) for run, twin in group.shown]
        row: dict[str, Any] = {"method": group.method, "partition": group.partition, "iid": group.is_iid}
        row["seeds"] = len(runs)
        row["unfinished"] = sum(run.end is None for run in group.runs)
        row["finished"] = len(group.runs) - row["unfinished"]
        for measure in MEASURES:
            values = [run[measure] for run in runs if run[measure] is not None]
            row[measure] = statistics.fmean(values) if values else None
            row[f"{measure}_std"] = statistics.stdev(values) if len(values) > 1 else None
        rows.append(row)
    return rows


def format_bytes(count: float | None) -> str:
    """A bytes count in units of 1024: 410829 -> '401 KB', 41082900 -> '39.2 MB'."""
    if count is None:
        return NOTHING
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{_three_digits(count, whole=unit == 'B')} {unit}"
        count /= 1024
    return f"{_three_digits(count)} TB"


def format_seconds(seconds: float | None) -> str:
    """A duration in the unit a person would choose: 0.0142 -> '14.2 ms', 90 -> '1.5 min'."""
    if seconds is None:
        return NOTHING
    for below, size, unit in ((1, 0.001, "ms"), (60, 1, "s"), (3600, 60, "min")):
        if seconds < below:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds / 3600)} h"


def _three_digits(number: float, whole: bool = False) -> str:
    return f"{number:.0f}" if whole or number >= 100 else f"{number:.1f}"


def format_spread(mean: float | None, std: float | None, digits: int) -> str:
    """'71.23 ± 0.42', or the mean alone where there is one seed."""
    if mean is None or math.isnan(mean):
        return NOTHING
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def as_text(records: Sequence[Record], width: int | None = None) -> str:
    """The summary of some runs as plain text, in whole lines or so many columns wide; what none has gets no column."""
    rows = summary_rows(records)
    personal = ["Personal %"] if _has_personal(rows) else []
    numbers = [_summary_numbers(row, bool(personal)) for row in rows]
    head = ["Accuracy %", *personal, "R(final) %", "Acc@95", "Up", "Down", "Time"]
    known = [k for k in range(len(head)) if any(line[k] != NOTHING for line in numbers)]
    cells = [
        [row["method"], row["partition"], *(line[k] for k in known)] for row, line in zip(rows, numbers, strict=True)
    ]
    text = columns(["Method", "Split", *(head[k] for k in known)], cells, 2, width, spare=3)
    if all(row["finished"] for row in rows):
        return text
    return f"{text}\n{wrapped('* not finished: the numbers are those of the last completed round', width)}"


def results_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of ``summary_rows`` as a table of a page."""
    head = [
        "Method",
        "Split",
        "Seeds",
        "Accuracy, %",
        *(["Personal, %"] if _has_personal(rows) else []),
        "R(final), %",
        "Acc@95, rounds",
        "Bytes up",
        "Bytes down",
        "Time",
    ]
    numbers = [_summary_numbers(row, _has_personal(rows)) for row in rows]
    names = [[row["method"], row["partition"], str(row["seeds"])] for row in rows]
    return Table(head, [[*mine, *cells] for mine, cells in zip(names, numbers, strict=True)])


def cost_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What each method costs per round, in all, and until Acc@95, as a table of a page."""
    head = ["Method", "Split", "Up per round", "Down per round", "Up in all", "Down in all"]
    head += ["Client per round", "Server per round", "Acc@95, rounds", "Bytes until Acc@95", "Time until Acc@95"]
    sizes, times = ("round_up", "round_down", "bytes_up", "bytes_down"), ("client_seconds", "server_seconds")
    cells = [
        [row["method"], row["partition"]]
        + [format_bytes(row[key]) for key in sizes]
        + [format_seconds(row[key]) for key in times]
        + [_rounds(row), format_bytes(row["bytes_until"]), format_seconds(row["seconds_until"])]
        for row in rows
    ]
    return Table(head, cells)


def _has_personal(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some run gave every client a model of its own."""
    return any(row["personal"] is not None for row in rows)


def _summary_numbers(row: Mapping[str, Any], personal: bool) -> list[str]:
    return [
        _percent(row, "accuracy") + ("" if row["finished"] else " *"),
        *([_percent(row, "personal")] if personal else []),
        format_spread(row["retained"], row["retained_std"], digits=1),
        _rounds(row),
        format_bytes(row["bytes_up"]),
        format_bytes(row["bytes_down"]),
        format_seconds(row["seconds"]),
    ]


def _percent(row: Mapping[str, Any], measure: str) -> str:
    mean, std = (None if row[key] is None else 100 * row[key] for key in (measure, f"{measure}_std"))
    return format_spread(mean, std, digits=2)


def _rounds(row: Mapping[str, Any]) -> str:
    return NOTHING if row["acc95"] is None else f"{row['acc95']:.1f}".removesuffix(".0")


def _total(events: Sequence[Mapping[str, Any]], *keys: str) -> float:
    return float(sum(event[key] for event in events for key in keys))


def _retained_at_end(curve: Sequence[float], iid_curve: Sequence[float]) -> float | None:
    """R at the run's last round; None where the twin has not come that far."""
    return retained(curve, iid_curve)[-1] if curve and len(iid_curve) >= len(curve) else None
