"""Ways in which the models of runs were made personal: by the method itself, or afterwards, with every strategy."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.personal.plan import Wish, unfinished
from fedkeel.reporting.columns import columns
from fedkeel.reporting.grouping import Group, groups
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.tables import format_spread
from fedkeel.runs.events import Record, personalised

OWN = "personal models of the method"
SHOWN = {"local": "Local %", "global_incl": "Global %", "average_lgw": "Average %"}
"""Numbers of ``Personal`` that a terminal shows."""
ORDER = ("ft", "proximal-ft", "soup-ft", "sparse-ft", "lss-ft", "lp-ft")
"""In which strategies stand, as in LP-FT's tables (arXiv 2511.12695); others follow by name."""


@dataclass(frozen=True)
class Way:
    """One way in which the models of a group of runs were made personal, run by run."""

    group: Group
    label: str
    name: str
    """of the strategy, without its settings"""
    settings: Mapping[str, Any]
    """those that were chosen"""
    epochs: int | None
    records: tuple[Record, ...]

    @property
    def seeds(self) -> list[Personal]:
        return [Personal.of(record) for record in self.records]

    def mean(self, metric: str, factor: float = 100) -> tuple[float | None, float | None]:
        """Mean and sample deviation over the seeds."""
        return mean_and_deviation([getattr(personal, metric) for personal in self.seeds], factor)

    def spent(self, what: str, phase: str | None = None) -> float | None:
        """Seconds or flops of one client in one phase or all: mean over clients and seeds; None where unknown."""
        totals = []
        for model in (model for record in self.records for model in record.personal):
            parts = model[what] or {}
            numbers = list(parts.values()) if phase is None else [parts[phase]] if phase in parts else []
            if numbers and None not in numbers:
                totals.append(float(sum(numbers)))
        return statistics.fmean(totals) if totals else None


def ways(found: Sequence[Group]) -> list[Way]:
    """How the models of some runs were made personal: by their own method, and afterwards; only what has ended."""
    return [way for group in found for way in _ways(group)]


def _ways(group: Group) -> list[Way]:
    own = tuple(run for run in group.runs if run.personal and run.end)
    made = [Way(group, OWN, own[0].method, {}, None, own)] if own else []
    after: dict[str, list[Record]] = {}
    for record in (record for run in group.runs for record in personalised(run.folder)):
        if record.personal and record.end:
            after.setdefault(record.folder.name, []).append(record)
    for records in after.values():
        method = records[0].start["config"]["method"]
        chosen = _chosen(records[0])
        made.append(Way(group, label(records[0]), method["name"], chosen, method.get("epochs"), tuple(records)))
    return sorted(made, key=_place)


def _place(way: Way) -> tuple[Any, ...]:
    """The method's own first, then strategies in their order; of one strategy like settings, by size."""
    values = [(isinstance(v, str), 0.0 if isinstance(v, str) else float(v), str(v)) for v in way.settings.values()]
    number = ORDER.index(way.name) if way.name in ORDER else len(ORDER)
    return way.label != OWN, number, way.name, list(way.settings), values


def label(record: Record) -> str:
    """What personal models are called: the strategy with the settings that were chosen, or the method's own."""
    if not record.post_hoc:
        return OWN
    words = [f"{key}={value}" for key, value in _chosen(record).items()]
    words += [f"of {len(record.personal)} clients"] if Wish.behind(record).only else []
    return ", ".join([record.method, *words]) if record.folder.name.startswith(record.method) else record.folder.name


def _chosen(record: Record) -> dict[str, Any]:
    """The settings that were chosen: those that the folder is named after; others come from defaults and the run."""
    method = record.start["config"]["method"]
    return {key: method[key] for key in re.findall(r"_([a-z][a-z_]*)=", record.folder.name) if key in method}


def as_text(records: Sequence[Record], width: int | None = None) -> str:
    """What personal models of some runs have come to as plain text; nothing where there are none."""
    rows = [
        [way.group.method, way.group.partition, way.label,
         *(format_spread(*way.mean(number), digits=2) for number in SHOWN)]
        for way in ways(groups(records)) if way.label != OWN
    ]  # fmt: skip
    return columns(["Method", "Split", "Then", *SHOWN.values()], rows, 3, width) if rows else ""


def waiting(found: Sequence[Group]) -> list[str]:
    """A line for each attempt to personalise a run that has not ended, with the command that continues it."""
    every = [record for group in found for run in group.runs for record in personalised(run.folder)]
    return [f"{label(record)}: {unfinished(record)}" for record in every if record.end is None]


def mean_and_deviation(values: Iterable[float | None], factor: float = 100) -> tuple[float | None, float | None]:
    """Mean and, from two on, sample deviation of what is known."""
    known = [factor * value for value in values if value is not None]
    return (statistics.fmean(known) if known else None), (statistics.stdev(known) if len(known) > 1 else None)
