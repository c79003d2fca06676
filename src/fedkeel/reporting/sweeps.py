"""Sweeps of a way to personalise that were run beside each other: over epochs and one more setting, or over flooding.

LP-FT (arXiv 2511.12695), Figures 2 and 3b. Nothing has to say that it is a sweep: settings that differ make one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.reporting import canvas
from fedkeel.reporting.canvas import HEIGHT, INK, MUTED, Picture
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.personal_plots import shade
from fedkeel.reporting.personalised import Way, mean_and_deviation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPOCHS, FLOOD = "epochs", "flood"


@dataclass(frozen=True)
class Panel:
    """A strategy over epochs, a curve for each value of one of its settings."""

    name: str
    key: str | None
    """None: one curve alone"""
    curves: Mapping[str, Sequence[Way]]
    """by the value, each from few epochs to many"""


def panels(ways: Sequence[Way]) -> list[Panel]:
    """The sweeps over epochs: of each strategy one panel for each setting that differs while the others do not."""
    found = []
    for name in dict.fromkeys(way.name for way in ways):
        curves = _curves([way for way in ways if way.name == name and way.epochs is not None])
        keys = list(dict.fromkeys(key for others, _ in curves for key in others))
        usual = {key: _most_common(others.get(key) for others, _ in curves) for key in keys}
        swept = [key for key in keys if len({json.dumps(others.get(key)) for others, _ in curves}) > 1]
        for key in swept:
            rest = [other for other in swept if other != key]
            mine = [(o, curve) for o, curve in curves if all(o.get(other) == usual[other] for other in rest)]
            if len(mine) > 1:
                mine.sort(key=lambda item: _order(item[0].get(key)))
                found.append(Panel(name, key, {_said(others.get(key)): curve for others, curve in mine}))
        if curves and not swept:
            found.append(Panel(name, None, {name: curves[0][1]}))
    return found


def _curves(ways: Sequence[Way]) -> list[tuple[dict[str, Any], list[Way]]]:
    """Ways that differ in their epochs alone, with the settings that they share."""
    found: dict[str, tuple[dict[str, Any], list[Way]]] = {}
    for way in ways:
        others = {key: value for key, value in way.settings.items() if key != EPOCHS}
        found.setdefault(json.dumps(others, sort_keys=True), (others, []))[1].append(way)
    ordered = [(others, sorted(curve, key=lambda way: way.epochs or 0)) for others, curve in found.values()]
    return [(others, curve) for others, curve in ordered if len({way.epochs for way in curve}) > 1]


def curves(panel: Panel, where: str) -> Picture:
    """Global (solid) and local (dashed) accuracy over epochs; 0 epochs is the global model before."""
    shades = shade(list(panel.curves))

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for value, ways in panel.curves.items():
            colour, marker = shades[value]
            for line, metric, before in (("-", "global_incl", "global_before"), ("--", "local", "local_before")):
                places = [0, *(way.epochs or 0 for way in ways)]
                points = [_mean_of(ways[0].seeds, before), *(_mean_of(way.seeds, metric) for way in ways)]
                axes.plot(places, points, line, color=colour, marker=marker, markersize=5)
        if panel.key is not None:
            for value in panel.curves:
                colour, marker = shades[value]
                axes.plot([], [], color=colour, marker=marker, label=f"{panel.key} = {value}")
        axes.plot([], [], "-", color=MUTED, label="global")
        axes.plot([], [], "--", color=MUTED, label="local")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        axes.set_xlabel("epochs")
        axes.set_title("accuracy of the personal models, %")
        canvas.legend(axes, True)

    by = f" by {panel.key}" if panel.key else ""
    title = f"{panel.name} over its epochs{by}{where}"
    note = "Solid: on the test sets of all clients (Global). Dashed: on the own test set (Local). At 0 epochs: the "
    note += "global model. Global that falls while Local rises is overfitting to the client."
    return Picture(title, canvas.draw(title, HEIGHT, paint), note + _seeds(panel.curves.values()))


def flooding(ways: Sequence[Way], where: str) -> Picture | None:
    """Global accuracy at each flooding level, a bar per strategy; None unless two strategies were flooded."""
    series: dict[str, dict[float, Way]] = {}
    for way in ways:
        others = {key: value for key, value in way.settings.items() if key != FLOOD}
        label = ", ".join([way.name, *(f"{key}={_said(value)}" for key, value in others.items())])
        series.setdefault(label, {})[float(way.settings.get(FLOOD, 0.0))] = way
    flooded = {label: levels for label, levels in series.items() if any(levels)}
    if len(flooded) < 2:
        return None
    levels = sorted({level for found in flooded.values() for level in found})

    def paint(axes: Axes) -> None:
        wide = 0.8 / len(flooded)
        for number, (label, found) in enumerate(flooded.items()):
            numbers = [found[level].mean("global_incl") if level in found else (None, None) for level in levels]
            at = np.arange(len(levels)) + (number - (len(flooded) - 1) / 2) * wide
            means, errors = ([np.nan if n is None else n for n in column] for column in zip(*numbers, strict=True))
            axes.bar(at, means, 0.94 * wide, color=canvas.colour(number), hatch=canvas.hatch(number), label=label)
            axes.errorbar(at, means, yerr=np.nan_to_num(errors), fmt="none", ecolor=INK, elinewidth=1)
            for place, mean in zip(at, means, strict=True):
                if not np.isnan(mean):
                    axes.annotate(f"{mean:.0f}", (place, 0), (0, 4), textcoords="offset points", ha="center",
                                  color="white", size=12)  # fmt: skip
        axes.set_xticks(range(len(levels)), [f"{level:g}" if level else "none" for level in levels])
        axes.set_xlabel("flooding level: the training loss is kept near it")
        axes.set_title("global accuracy (all test sets), %")
        axes.grid(axis="y")
        canvas.legend(axes, True)

    title = f"Global accuracy at the same training loss{where}"
    note = "Personal models on the test sets of all clients, trained on |L - b| + b with b the flooding level: what "
    note += "differs at one level is not how far the loss was driven down."
    return Picture(
        title, canvas.draw(title, HEIGHT, paint), note + _seeds([found.values() for found in flooded.values()])
    )


def _mean_of(seeds: Sequence[Personal], metric: str) -> float:
    mean = mean_and_deviation(getattr(personal, metric) for personal in seeds)[0]
    return np.nan if mean is None else mean


def _most_common(values: Any) -> Any:
    texts = Counter(json.dumps(value) for value in values)
    return json.loads(texts.most_common(1)[0][0])


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _said(value: Any) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _seeds(groups: Any) -> str:
    return " Mean over the seeds." if any(len(way.records) > 1 for ways in groups for way in ways) else ""
