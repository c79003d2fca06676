"""Runs as rows: grouped over seeds, set against their IID twins, and printed for a terminal or a page."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel

from fedkeel.data.settings import Partition, Shift
from fedkeel.metrics.convergence import acc95_round, retained
from fedkeel.runs.events import Record

if TYPE_CHECKING:
    from rich.table import Table

IID = "iid"
NOTHING = "–"
# These decide who holds which row; an IID split ignores them, so an IID twin may differ in them.
SPLIT_SETTINGS = {"kind", "classes_per_client", "alpha", "p", "exponent"}
# These change no result: runs that differ only here are the same experiment.
IDLE_SETTINGS = {"data.cache", "run.threads", "run.seed", "run.drift"}
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
class Group:
    """The runs that differ in nothing but the seed, each with its IID twin or None."""

    method: str
    partition: str
    runs: tuple[Record, ...]
    twins: tuple[Record | None, ...]

    @property
    def shown(self) -> list[tuple[Record, Record | None]]:
        """The finished runs with their twins; all of them where none has finished."""
        pairs = list(zip(self.runs, self.twins, strict=True))
        return [(run, twin) for run, twin in pairs if run.end] or pairs

    @property
    def is_iid(self) -> bool:
        return self.runs[0].partition == IID

    def per_class(self) -> np.ndarray:
        """Accuracy of each class in percent, mean over the finished runs; NaN where a class has no test rows."""
        ends = [run.end["per_class"] for run in self.runs if run.end]
        table = np.array([[np.nan if accuracy is None else accuracy for accuracy in end] for end in ends])
        return np.asarray(100 * table.mean(axis=0))

    def per_client(self, model: Literal["per_client", "personal"] = "per_client") -> np.ndarray:
        """Accuracy of the global or the personal model at each client that was measured, in percent, run after run."""
        ends = [run.end.get(model, []) for run in self.runs if run.end]
        return np.array([100 * accuracy for end in ends for accuracy in end if accuracy is not None])

    def traffic(self) -> np.ndarray:
        """Bytes sent up to each round, up and down, mean over the runs shown."""
        totals = []
        for run in (run for run, _ in self.shown if run.rounds):
            rounds = np.array([event["round"] for event in run.exchanges], dtype=int)
            sent = [event["bytes_up"] + event["bytes_down"] for event in run.exchanges]
            each = np.bincount(rounds, sent, minlength=len(run.rounds) + 1)  # a round may send nothing
            totals.append(np.cumsum(each)[1 : len(run.rounds) + 1])
        return np.asarray(np.mean([total[: min(map(len, totals))] for total in totals], axis=0))


def groups(records: Sequence[Record]) -> list[Group]:
    """Runs grouped over seeds, in order of first appearance; a run given twice counts once, the finished one."""
    methods, partitions = _method_labels(records), _partition_labels(records)
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for record, method, partition in zip(records, methods, partitions, strict=True):
        seeds = found.setdefault((method, partition), {})
        if record.end or record.seed not in seeds:
            seeds[record.seed] = record
    order = list(dict.fromkeys(methods))
    return [
        Group(method, partition, tuple(runs.values()), tuple(iid_twin(run, records) for run in runs.values()))
        for (method, partition), runs in sorted(found.items(), key=lambda item: order.index(item[0][0]))
    ]


def iid_twin(record: Record, records: Sequence[Record]) -> Record | None:
    """The run with the same data, method, settings and seed whose partition is IID; None for an IID run itself.

    Where there is none with the same participation, the one in which all clients take part.
    """
    if record.partition == IID:
        return None
    iid = [other for other in records if other.partition == IID]
    twins = [other for other in iid if _twin_key(other) == _twin_key(record)]
    twins = twins or [other for other in iid if _twin_key(other) == _twin_key(record, participation=1.0)]
    return next((twin for twin in twins if twin.end), twins[0] if twins else None)


def summary_row(record: Record, iid: Record | None) -> dict[str, Any]:
    """One run in raw numbers: accuracy 0..1, retained in percent, bytes, seconds; None where there is no number.

    Costs up to Acc@95 follow OvA-LP Tables 3 and 5: clients work in parallel, so a round lasts one client's mean
    work plus the server's.
    """
    curve, exchanges = record.accuracy_curve, record.exchanges
    training = [event for event in exchanges if event["round"] >= 1]
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


def summary_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of ``summary_rows`` as a table for a terminal of 80 columns; what no row has gets no column."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("Method", overflow="fold")
    table.add_column("Split", overflow="fold")
    personal = ["Personal %"] if _has_personal(rows) else []
    numbers = [_summary_numbers(row, bool(personal)) for row in rows]
    heads = ["Accuracy %", *personal, "R(final) %", "Acc@95", "Up", "Down", "Time"]
    known = [k for k in range(len(heads)) if any(line[k] != NOTHING for line in numbers)]
    for k in known:
        table.add_column(heads[k], justify="right", no_wrap=True)
    for_method = 18 if len(known) < len(heads) else 11
    for_split = 20 if all(row["accuracy_std"] is None for row in rows) else 10  # without ± there is more room
    for row, line in zip(rows, numbers, strict=True):
        # Text is never read as markup.
        names = [_narrow(row["method"], for_method), _narrow(row["partition"], for_split)]
        table.add_row(*map(Text, [*names, *(line[k] for k in known)]))
    if not all(row["finished"] for row in rows):
        table.caption = "* not finished: the numbers are those of the last completed round"
    return table


def as_text(records: Sequence[Record]) -> str:
    """The summary of some runs as plain text, at most 80 columns wide."""
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=80, color_system=None).print(summary_table(summary_rows(records)))
    return out.getvalue().rstrip()


def summary_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of ``summary_rows`` as an HTML table."""
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
    return html_table(head, [[*mine, *cells] for mine, cells in zip(names, numbers, strict=True)])


def cost_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """What each method costs per round, in all, and until Acc@95, as an HTML table."""
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
    return html_table(head, cells)


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 2, above: Mapping[int, str] | None = None
) -> str:
    """A table in a box of its own that scrolls; the first ``words`` columns are text, the others numbers.

    ``above`` gives headings of some rows, by their number.
    """
    top = "".join(f'<th scope="col"{_align(k, words)}>{escape(text)}</th>' for k, text in enumerate(head))
    body = []
    for number, row in enumerate(rows):
        if above and number in above:
            heading = f'<th scope="rowgroup" colspan="{len(head)}">{escape(above[number])}</th>'
            body.append(f'<tr class="above">{heading}</tr>')
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        cells += [f"<td{_align(k, words)}>{escape(text)}</td>" for k, text in enumerate(row[1:], 1)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{table}</div>'


def _narrow(label: str, width: int) -> str:
    """Lines that break at hyphens and equals signs too, where Rich breaks at blanks only."""
    return "\n".join(textwrap.wrap(label.replace("=", "= "), width)).replace("= ", "=")


def _align(column: int, words: int) -> str:
    return "" if column < words else ' class="number"'


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


def _settings(record: Record, *sections: str) -> dict[str, Any]:
    config = record.start["config"]
    flat = {f"{section}.{key}": value for section in sections for key, value in config.get(section, {}).items()}
    return {key: value for key, value in flat.items() if key not in IDLE_SETTINGS}


def _split(record: Record) -> dict[str, Any]:
    drop = SPLIT_SETTINGS if record.partition == IID else {"kind"}
    return {k: v for k, v in _settings(record, "partition").items() if k.removeprefix("partition.") not in drop}


def _twin_key(record: Record, **changed: Any) -> tuple[int, str]:
    shared = {k: v for k, v in _settings(record, "partition").items() if k.split(".")[1] not in SPLIT_SETTINGS}
    around = _settings(record, "data", "shift", "method", "run")
    around |= {f"method.{key}": value for key, value in changed.items()}
    return record.seed, json.dumps([around, shared], sort_keys=True)


def _method_labels(records: Sequence[Record]) -> list[str]:
    own = [_settings(record, "method") for record in records]
    around = [_settings(record, "data", "run") for record in records]
    labels = []
    for k, record in enumerate(records):
        same = [own[j] for j, other in enumerate(records) if other.method == record.method]
        named = _unusual(_differing(own[k], same), same, _method_defaults(record.method))
        labels.append(_label(record.method, {**named, **_differing(around[k], around)}))
    return labels


def _partition_labels(records: Sequence[Record]) -> list[str]:
    """A split is who holds which rows and with which labels: a long tail or label noise belongs to it."""
    splits, shifts = [_split(record) for record in records], [_settings(record, "shift") for record in records]
    labels = []
    for k, record in enumerate(records):
        same = [splits[j] for j, other in enumerate(records) if other.partition == record.partition]
        named = _unusual(_differing(splits[k], same), same, _defaults("partition", Partition))
        shifted = _unusual(_differing(shifts[k], shifts), shifts, _defaults("shift", Shift))
        labels.append(_label(record.partition, {**named, **shifted}))
    return labels


def _differing(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of mine that another run does not share; a setting a run leaves out is not named for it."""
    return {k: v for k, v in mine.items() if any(k not in other or other[k] != v for other in others)}


def _unusual(
    differing: Mapping[str, Any], among: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Without the settings at their default, where a run has either that or one other value: the plain name is it.

    In a sweep of three values or more each is named.
    """

    def plain(key: str) -> bool:
        everywhere = all(key in other for other in among)
        values = {json.dumps(other.get(key)) for other in among}
        return everywhere and len(values) == 2 and differing[key] == defaults.get(key, ...)

    return {key: value for key, value in differing.items() if not plain(key)}


def _method_defaults(name: str) -> dict[str, Any]:
    """Of a method that this fedkeel knows; a user's own is named with all its settings."""
    from fedkeel.core.method import METHODS

    return _defaults("method", METHODS[name]) if name in METHODS else {}


def _defaults(section: str, model: type[BaseModel]) -> dict[str, Any]:
    return {f"{section}.{key}": field.default for key, field in model.model_fields.items()}


def _label(name: str, settings: Mapping[str, Any]) -> str:
    parts = [
        f"{key.split('.', 1)[1]}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]
    return ", ".join([name, *parts])
