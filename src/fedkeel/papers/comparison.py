"""A paper's numbers beside ours: each claim is set against the runs that were made for it, and against no others."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from fedkeel.core.wrap import wrapped
from fedkeel.metrics.convergence import decline_rate
from fedkeel.papers.claims import Claim, Paper, Source
from fedkeel.papers.measures import HEADLINE, METRICS, Ran
from fedkeel.reporting import averaged, canvas
from fedkeel.reporting.canvas import INK, MUTED, Picture
from fedkeel.reporting.columns import columns as as_columns
from fedkeel.reporting.render import render
from fedkeel.reporting.tables import NOTHING, Table, format_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Ours:
    mean: float
    std: float | None


@dataclass(frozen=True)
class Line:
    """A claim, or (``paper`` is None) what we ran besides, with our number in each column."""

    claim: Claim
    paper: float | None
    ours: tuple[Ours | None, ...]


def columns(runs: Sequence[Ran]) -> list[str]:
    """The federations that were run: each has a column."""
    return list(dict.fromkeys(ran.column for ran in runs))


def measured(claim: Claim, runs: Sequence[Ran]) -> Ours | None:
    """Our number for a claim: for each seed the mean over the claim's partitions, then mean and deviation over seeds.

    None where not a single seed has finished on all of the partitions.
    """
    values: dict[int, list[float]] = {}
    for ran in _made_for(claim, runs):
        value = _value(claim, ran, runs) if ran.record.end else None
        if value is not None:
            values.setdefault(ran.record.seed, []).append(value)
    means = [statistics.fmean(found) for found in values.values() if len(found) == max(1, len(claim.partitions))]
    return Ours(statistics.fmean(means), statistics.stdev(means) if len(means) > 1 else None) if means else None


def _made_for(claim: Claim, runs: Iterable[Ran]) -> list[Ran]:
    mine = [ran for ran in runs if ran.method == claim.method and ran.has(claim.where)]
    return [ran for ran in mine if not claim.partitions or ran.partition in claim.partitions]


def _value(claim: Claim, ran: Ran, runs: Sequence[Ran]) -> float | None:
    if claim.metric != "decline":
        return METRICS[claim.metric].of(ran)
    where = {**claim.where, **claim.against}
    for other in runs:
        same = (other.method, other.partition, other.record.seed) == (ran.method, ran.partition, ran.record.seed)
        if same and other.has(where) and other.record.end and ran.record.end:
            return decline_rate(ran.record.end["accuracy"], other.record.end["accuracy"])
    return None


def lines(source: Source, runs: Sequence[Ran]) -> list[Line]:
    """The claims of a figure or table, and after those of a bar plot what was run beyond its bars."""
    parts = [[ran for ran in runs if ran.column == name] for name in columns(runs)]
    found = [Line(claim, claim.value, tuple(measured(claim, part) for part in parts)) for claim in source.claims]
    for claim in _further(source, runs):
        ours = tuple(measured(claim, part) for part in parts)
        if any(ours):
            found.append(Line(claim, None, ours))
    return found


def _further(source: Source, runs: Sequence[Ran]) -> list[Claim]:
    """Like the claims of a bar plot, for the methods, partitions or settings that we ran and the paper did not."""
    if source.by is None:
        return []
    like = source.claims[0]
    if source.by == "method":
        known = {claim.method for claim in source.claims}
        return [Claim(like.metric, 0, method=name, partitions=like.partitions)
                for name in dict.fromkeys(ran.method for ran in runs) if name not in known]  # fmt: skip
    if source.by == "partition":
        known = {name for claim in source.claims for name in claim.partitions} | {"iid"}
        return [Claim(like.metric, 0, method=like.method, partitions=(name,))
                for name in dict.fromkeys(ran.partition for ran in runs) if name not in known]  # fmt: skip
    known = {claim.where[source.by] for claim in source.claims}
    return [Claim(like.metric, 0, method=like.method, partitions=like.partitions, where={source.by: value},
                  setting=str(value) if source.by == "data.encoder" else f"{source.by.partition('.')[2]} {value}")
            for value in dict.fromkeys(ran.value(source.by) for ran in runs) if value not in known]  # fmt: skip


def section(paper: Paper, name: str, sources: Sequence[Source], runs: Sequence[Ran], warning: str = "") -> Markup:
    """The part of a page that holds the paper's numbers next to ours, after a warning if there is one."""
    heads = columns(runs)
    several = any(len(claim.partitions) > 1 for source in sources for claim in source.claims)
    shown = []
    for source in sources:
        found = lines(source, runs)
        table = None if not found else _wide(found, heads) if source.wide else _table(found, heads)
        drawn = None if source.by is None else bars(source, found, heads)
        shown.append({"source": source, "table": table, "bars": drawn, "curves": curves(source, runs)})
    values = {"nothing": NOTHING, "averaged": several, "sources": shown, "settings": _settings(paper, runs, heads)}
    return render("beside.html", "fedkeel.papers", paper=paper, name=name, warning=warning, **values)


def curves(source: Source, runs: Sequence[Ran]) -> list[Picture]:
    """Ours round by round as the figure has them, one picture for each federation."""
    figure = source.averaged
    if figure is None:
        return []
    pictures = []
    for head in columns(runs):
        mine = [ran for ran in runs if ran.column == head]
        by_method = {
            name.replace(":", ", "): [(ran.partition, ran.record, ran.twin) for ran in mine if ran.method == name]
            for name in figure.methods
        }
        draw = averaged.retained_curves if figure.what == "retained" else averaged.accuracy_curves
        pictures.append(draw(by_method, figure.partitions, head))
    return [picture for picture in pictures if picture]


def text(sources: Sequence[Source], runs: Sequence[Ran], width: int | None = None) -> str:
    """The paper's accuracies next to ours as plain text, in whole lines or so many columns wide."""
    shown = []
    for source in sources:
        found = [line for line in lines(source, runs) if line.claim.metric in HEADLINE]
        if not found or (source.wide and not any(ours for line in found for ours in line.ours)):
            continue
        metrics, words = [METRICS[line.claim.metric].words for line in found], _words(found)
        several = len(set(metrics)) > 1
        heads = columns(runs)
        ran = _ran(found, heads) if source.wide else range(len(heads))
        found = [replace(line, ours=tuple(line.ours[k] for k in ran)) for line in found]
        head, rows = _cells(found, [heads[k] for k in ran], words | ({"What": metrics} if several else {}))
        title = f"{source.name}. {source.title if several else metrics[0]}"
        shown.append(f"{wrapped(title, width)}\n{as_columns(head, rows, head.index('Paper'), width)}")
    return "\n\n".join(shown)


def _table(found: Sequence[Line], heads: Sequence[str]) -> Table:
    """Where it has several metrics, each has a line of its own above its rows."""
    columns_of_words = _words(found)
    above = [METRICS[line.claim.metric].words for line in found]
    if "Method" in columns_of_words and "Setting" in columns_of_words:  # compare methods, one setting after the other
        above = [f"{words}: {line.claim.setting}" for words, line in zip(above, found, strict=True)]
        del columns_of_words["Setting"]
    starts = [k for k in range(len(found)) if k == 0 or above[k] != above[k - 1]]
    head, rows = _cells(found, heads, columns_of_words)
    return Table(head, rows, len(columns_of_words), {k: above[k] for k in starts} if len(starts) > 1 else {})


def _wide(found: Sequence[Line], heads: Sequence[str]) -> Table:
    """Its columns are metrics, each with the paper's number and ours where some were run."""
    ran = _ran(found, heads)
    metrics = list(dict.fromkeys(line.claim.metric for line in found))
    words = _words([line for line in found if line.claim.metric == metrics[0]])
    rows: list[list[str]] = [list(cells) for cells in zip(*words.values(), strict=True)]
    for metric in metrics:
        mine = [line for line in found if line.claim.metric == metric]
        for row, line in zip(rows, mine, strict=True):
            ours = [line.ours[k] for k in ran]
            digits = METRICS[metric].digits
            row += [_printed(line, digits), *(format_spread(o.mean, o.std, digits) if o else NOTHING for o in ours)]
    named = [f"Ours: {heads[k]}" for k in ran]
    alone = named[0] if len(named) == 1 else ""  # one name is said once
    head = [*words, *["Paper", *(["Ours"] if alone else named)] * len(metrics)]
    return Table(head, rows, len(words), corner=alone, over=[METRICS[metric].words for metric in metrics])


def _ran(found: Sequence[Line], heads: Sequence[str]) -> list[int]:
    """The federations of which some were run."""
    return [k for k in range(len(heads)) if any(line.ours[k] for line in found)]


def _words(found: Sequence[Line]) -> dict[str, list[str]]:
    """The columns of words that tell the lines apart."""
    words = {
        "Method": [_method(line.claim) for line in found],
        "Split": [_split(line.claim.partitions) for line in found],
        "Setting": [line.claim.setting for line in found],
    }
    return {head: column for head, column in words.items() if len(set(column)) > 1} or {"Method": words["Method"]}


def _cells(
    found: Sequence[Line], heads: Sequence[str], words: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table: columns of words, the paper's, ours."""
    rows = []
    for k, line in enumerate(found):
        digits = METRICS[line.claim.metric].digits
        paper = _printed(line, 0 if line.claim.metric == "acc95" else digits)
        ours = [format_spread(o.mean, o.std, digits) if o else NOTHING for o in line.ours]
        rows.append([*(column[k] or NOTHING for column in words.values()), paper, *ours])
    return [*words, "Paper", *(f"Ours: {head}" for head in heads)], rows


def _printed(line: Line, digits: int) -> str:
    """The paper's number, or what it has instead."""
    return line.claim.printed or format_spread(line.paper, line.claim.std, digits)


def _method(claim: Claim) -> str:
    return claim.called or claim.method.replace(":", ", ")


def _split(partitions: Sequence[str]) -> str:
    if not partitions:
        return "any"
    return partitions[0] if len(partitions) == 1 else "non\u2011IID"  # not to be broken at the hyphen


def bars(source: Source, found: Sequence[Line], heads: Sequence[str]) -> Picture:
    """The paper's bars next to ours, a group of them for each line; a number that is missing takes no room."""
    fills = [(MUTED, ""), *((canvas.colour(k), canvas.hatch(k)) for k in range(len(heads)))]
    labels = ["paper", *(f"ours: {head}" for head in heads)]
    drawn: list[list[tuple[float, float, float]]] = [[] for _ in labels]  # place, mean and deviation of each bar
    middles, place = [], 0.0
    for line in found:
        paper = None if line.paper is None else Ours(line.paper, line.claim.std)
        known = [(k, number) for k, number in enumerate((paper, *line.ours)) if number]
        for k, number in known:
            drawn[k].append((place, number.mean, number.std or 0.0))
            place += 1
        middles.append(place - (len(known) + 1) / 2)
        place += 0.8

    def paint(axes: Axes) -> None:
        highest = 100.0
        for label, (colour, hatch), numbers in zip(labels, fills, drawn, strict=True):
            places, means, errors = (list(column) for column in zip(*numbers, strict=True)) if numbers else ([], [], [])
            axes.barh(places, means, height=0.86, color=colour, hatch=hatch, label=label)
            if any(errors):
                axes.errorbar(means, places, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
            for at, mean, error in numbers:
                end = (mean + error, at)
                axes.annotate(f"{mean:.1f}", end, (4, 0), textcoords="offset points", va="center", size=12)
                highest = max(highest, mean + error)
        axes.set_yticks(middles, [canvas.short(_bar_name(source, line), 28) for line in found])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(place - 1.2, -0.8)
        axes.set_xlim(0, 1.12 * highest)
        axes.grid(axis="x")
        axes.set_xlabel(f"{METRICS[found[0].claim.metric].words} of the accuracy of the IID twin")
        canvas.legend(axes, True)

    title = f"{source.name}: the paper's bars and ours"
    svg = canvas.draw(f"{source.name} bars", 1.0 + 0.23 * place, paint)
    return Picture(title, svg, "Whiskers: standard deviation over the seeds." if _spread(found) else "")


def _bar_name(source: Source, line: Line) -> str:
    if source.by == "method":
        return _method(line.claim)
    return _split(line.claim.partitions) if source.by == "partition" else line.claim.setting


def _spread(found: Sequence[Line]) -> bool:
    return any(ours and ours.std is not None for line in found for ours in line.ours)


def _settings(paper: Paper, runs: Sequence[Ran], heads: Sequence[str]) -> Table | None:
    """What the paper says that a method was run with, and what ours were run with."""
    rows = []
    for where, settings in paper.settings.items():
        for setting in settings:
            mine = [ran for ran in runs if ran.method.partition(":")[0] == setting.method]
            if not mine:
                continue
            ours = [dict.fromkeys(_said(ran, setting.key) for ran in mine if ran.column == head) for head in heads]
            cells = [" / ".join(values) or NOTHING for values in ours]
            rows.append([setting.method, where, setting.words, setting.value, *cells])
    head = ["Method", "Source", "Setting", "Paper", *(f"Ours: {head}" for head in heads)]
    return Table(head, rows, words=3) if rows else None


def _said(ran: Ran, key: str) -> str:
    value = ran.record.start["data"]["encoder"] if key == "data.encoder" else ran.value(key)
    return NOTHING if value is None else f"{value:g}" if isinstance(value, float) else str(value)
