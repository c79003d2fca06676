"""Frequent and rare classes on the page: zero-shot, global and personal models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedkeel.reporting import balance_plots as draw
from fedkeel.reporting.balance_numbers import GROUPS
from fedkeel.reporting.balance_plots import Served
from fedkeel.reporting.canvas import Picture
from fedkeel.reporting.commentary import Commentary
from fedkeel.reporting.grouping import Group
from fedkeel.reporting.plots import Look
from fedkeel.reporting.tables import Table, format_spread
from fedkeel.runs.config import Report
from fedkeel.runs.events import Record

ZERO_SHOT = "zero-shot"
COLUMNS = {"overall": "All", **{name: name.capitalize() for name in GROUPS}, "beta": "β"}
Numbers = list[tuple[float | None, float | None]]


@dataclass(frozen=True)
class BalanceSection:
    """How frequent and rare classes are served."""

    head: str
    tail: str
    scale: str
    """thresholds of the groups and scale of balancedness, as the runs have them"""
    counted: str
    """how many classes each group has"""
    table: Table
    seeds: int
    remarks: Sequence[str]
    figures: Sequence[Sequence[Picture]]


def section(found: Sequence[Group], look: Look, commentary: Commentary) -> BalanceSection | None:
    """Table, remarks and figures of the runs that have a long tail or start from zero-shot; None without any."""
    shown = [Served(group) for group in found if any(map(concerned, group.runs))]
    if not shown:
        return None
    splits: dict[str, list[Served]] = {}
    for one in shown:
        splits.setdefault(one.group.partition, []).append(one)
    several = len(splits) > 1
    remarks = [
        line
        for split, mine in splits.items()
        for line in commentary.on_balance(mine, f" on {split}" if several else "")
    ]
    figures = [
        _pictures(_drawn(mine), look, f" ({split})" if several else "", commentary) for split, mine in splits.items()
    ]
    head, tail, scale = _thresholds(shown)
    sizes = shown[0].seeds[0].groups
    return BalanceSection(
        head=head,
        tail=tail,
        scale=scale,
        counted=", ".join(f"{len(sizes[name])} {name}" for name in GROUPS),
        table=_table(splits),
        seeds=max(len(one.seeds) for one in shown),
        remarks=remarks,
        figures=[pictures for pictures in figures if pictures],
    )


def _pictures(mine: Sequence[Served], look: Look, where: str, commentary: Commentary) -> list[Picture]:
    """Of one split; of many runs that a paper's figure has together, not each by itself as well."""
    pictures = commentary.balance_figures(mine, where)
    if not pictures or len(mine) <= draw.MOST_TOGETHER:
        pictures += draw.by_frequency(mine, look, where)
        pictures += [picture for one in mine if (picture := draw.branches(one, where))]
    return pictures + draw.rounds(mine, look, where)


def concerned(record: Record) -> bool:
    """Whether a run has a long tail, or a model that knows the classes before it is trained."""
    data, shift = record.start["data"], record.start["config"].get("shift", {})
    return "zero_shot" in data or ("class_rows" in data and shift.get("long_tail", 1.0) > 1)


def _table(splits: Mapping[str, Sequence[Served]]) -> Table:
    """Zero-shot and then each method, split by split: the global and the personal models."""
    rows: list[list[str]] = []
    above: dict[int, str] = {}
    for split, mine in splits.items():
        above[len(rows)] = split
        for name, gm, pm in _lines(mine):
            rows.append([name, *(format_spread(*number, digits=1) for number in [*gm, *pm])])
    head = ["Method", *[f"{words}, %" for words in COLUMNS.values()] * 2]
    over = ["Global model (GM)", "Personal models (PM)"]
    return Table(head, rows, words=1, above=above if len(above) > 1 else {}, over=over)


def _lines(mine: Sequence[Served]) -> Iterable[tuple[str, Numbers, Numbers]]:
    """Zero-shot as it was run, or as the others measured it before they began; then the others."""
    ran = [one for one in mine if one.group.runs[0].method == ZERO_SHOT]
    rest = [one for one in mine if one not in ran]
    if not ran:
        nothing: Numbers = [(None, None)] * len(COLUMNS)
        before = {tuple(n): one for one in rest if (n := _numbers(one, "zero_shot"))[0][0] is not None}
        for numbers, one in before.items():  # they differ where templates or encoders do
            yield (ZERO_SHOT if len(before) == 1 else f"{ZERO_SHOT} of {one.group.method}"), list(numbers), nothing
    for one in [*ran, *rest]:
        yield one.group.method, _numbers(one, "gm"), _numbers(one, "pm")


def _numbers(one: Served, model: str) -> Numbers:
    return [one.mean(model, what) for what in COLUMNS]


def _thresholds(shown: Sequence[Served]) -> tuple[str, str, str]:
    """Head, tail and scale of balancedness; several where runs differ."""
    configs = [run.start["config"].get("report", {}) for one in shown for run in one.group.runs]
    told = dict.fromkeys((r.head, r.tail, r.balance_scale) for r in (Report(**config) for config in configs))
    head, tail, scale = (" / ".join(dict.fromkeys(f"{values[k]:g}" for values in told)) for k in range(3))
    return head, tail, scale


def _drawn(mine: Sequence[Served]) -> Sequence[Served]:
    """Without zero-shot, which every figure has as its reference, unless there is nothing else."""
    return [one for one in mine if one.group.runs[0].method != ZERO_SHOT] or mine
