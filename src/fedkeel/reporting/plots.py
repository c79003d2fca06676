"""Figures of every report: accuracy round by round and for bytes, by class, by client, and who holds what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.metrics.convergence import retained
from fedkeel.reporting import canvas
from fedkeel.reporting.canvas import FAINT, HEIGHT, INK, LINES, MUTED, Picture
from fedkeel.reporting.grouping import Group
from fedkeel.reporting.tables import format_bytes
from fedkeel.runs.events import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IID_LINE: Any = (0, (1, 1.6))
MOST_CLASSES, MOST_CLIENTS = 30, 300
MOST_LINES = 6
"""More lines than this are too many for one figure: then each split has curves of its own."""
Values = Callable[[Record, Record | None], list[float]]


@dataclass(frozen=True)
class Look:
    """A colour and a marker for each method and a line for each partition, the same in every figure of a page.

    On a page of one method the colours go to the partitions, which lines alone would hardly tell apart. Where each
    split has figures of its own, lines go to the methods, of which there may be more than colours.
    """

    methods: tuple[str, ...]
    partitions: tuple[str, ...]
    """all but IID, which is the reference and has a dotted line of its own"""
    apart: bool = False
    """whether each split has figures of its own"""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Look:
        methods = dict.fromkeys(group.method for group in groups)
        partitions = dict.fromkeys(group.partition for group in groups if not group.is_iid)
        return cls(tuple(methods), tuple(partitions), len(groups) > MOST_LINES)

    def colour(self, group: Group) -> str:
        if len(self.methods) > 1 or not self.partitions:
            return canvas.colour(self.methods.index(group.method))
        return MUTED if group.is_iid else canvas.colour(self.partitions.index(group.partition))

    def marker(self, method: str) -> str:
        return canvas.marker(self.methods.index(method))

    def line(self, group: Group) -> Any:
        if self.apart:
            return self.own_line(group.method)
        return IID_LINE if group.is_iid else LINES[self.partitions.index(group.partition) % len(LINES)]

    def own_line(self, method: str) -> Any:
        """In a figure of one split."""
        return canvas.line(self.methods.index(method))


def accuracy_curves(groups: Sequence[Group], look: Look, among: Sequence[Group]) -> Picture:
    """Test accuracy by round, one line per group: the mean over seeds in a band from the lowest to the highest.

    The figure has the scale of all groups ``among`` which it stands, so that figures can be compared.
    """
    title = f"Accuracy, round by round{where(groups)}"
    curves = Curves(groups, look, _accuracies, _rounds, _scale(among, _accuracies))
    svg = canvas.draw(title, HEIGHT, lambda axes: curves.paint(axes, "accuracy on the test rows, %", "round"))
    return Picture(title, svg, band_note(groups))


def retained_curves(groups: Sequence[Group], look: Look, among: Sequence[Group]) -> Picture:
    """R(t) by round for groups that have IID twins; 100 is the twin. ``among`` as in ``accuracy_curves``."""
    low, high = _scale(among, _retained)
    curves = Curves(groups, look, _retained, _rounds, (min(low, 94), max(high, 102)))

    def paint(axes: Axes) -> None:
        axes.axhline(100, color=MUTED, linewidth=1.2, zorder=1)
        curves.paint(axes, "R(t), % of the accuracy of the IID twin", "round")

    title = f"What is kept of the IID accuracy, round by round{where(groups)}"
    mean = _band(groups[0], _retained)[0]
    if len(groups) == 1 and len(mean):
        title = f"{groups[0].method} keeps {mean[-1]:.1f} % of its IID accuracy{where(groups)}"
    note = f"100 = as accurate as with IID clients. {band_note(groups)}"
    return Picture(title, canvas.draw(title, HEIGHT, paint), note.strip())


def traffic_curves(groups: Sequence[Group], look: Look, among: Sequence[Group]) -> Picture:
    """Test accuracy over the bytes sent so far: which method buys accuracy cheapest. ``among`` as above."""
    curves = Curves(groups, look, _accuracies, Group.traffic, _scale(among, _accuracies))

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_xscale("log", base=2)
        curves.paint(axes, "accuracy on the test rows, %", "bytes sent so far, up and down, all clients together")
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: format_bytes(count).replace(".0", "")))

    title = f"Accuracy for the bytes sent{where(groups)}"
    note = f"Up and to the left is better; each step of the bytes axis multiplies. {band_note(groups)}"
    return Picture(title, canvas.draw(title, HEIGHT, paint), note.strip())


def class_accuracy(groups: Sequence[Group], look: Look) -> Picture | None:
    """Accuracy of each class, weakest at the top: bars for one method, dots for several; None without test rows."""
    names = groups[0].runs[0].start["data"]["classes"]
    table = np.array([group.per_class() for group in groups])
    known = np.flatnonzero(~np.isnan(table).all(axis=0))
    if not len(known):
        return None
    worst = known[np.argsort(np.nanmean(table[:, known], axis=0), kind="stable")][:MOST_CLASSES]

    def paint(axes: Axes) -> None:
        places = np.arange(len(worst))
        if len(groups) == 1:
            values = table[0, worst]
            axes.barh(places, values, height=0.66, color=look.colour(groups[0]))
            for place, value in zip(places, values, strict=True):
                axes.annotate(f"{value:.0f}", (value, place), (4, 0), textcoords="offset points", va="center", size=12)
        else:
            ends = np.nanmin(table[:, worst], axis=0), np.nanmax(table[:, worst], axis=0)
            axes.hlines(places, *ends, color=FAINT, linewidth=4)
            for group, row in zip(groups, table, strict=True):
                colour, marker = look.colour(group), look.marker(group.method)
                axes.plot(row[worst], places, marker, color=colour, markersize=8, alpha=0.9, label=group.method)
        axes.set_yticks(places, [canvas.short(names[k]) for k in worst])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(worst) - 0.4, -0.6)
        axes.set_xlim(0, 104)
        axes.grid(axis="x")
        axes.set_xlabel("accuracy, %")
        canvas.legend(axes, len(groups) > 1)

    weakest = canvas.short(names[worst[0]])
    part = f"The {len(worst)} weakest of {len(known)} classes. " if len(worst) < len(known) else ""
    lost = f"{len(names) - len(known)} classes have no test rows. " if len(known) < len(names) else ""
    several = "Mean over the seeds." if any(len(group.shown) > 1 for group in groups) else ""
    svg = canvas.draw(f"classes{where(groups)}", 1.0 + 0.28 * len(worst), paint)
    return Picture(f"By class: {weakest} is the hardest", svg, f"{part}{lost}{several}".strip())


def client_accuracy(groups: Sequence[Group], look: Look) -> Picture | None:
    """Accuracy of each client, from worst to best served, all seeds together; None where it was not measured."""
    groups = [group for group in groups if len(group.per_client())]
    if not groups:
        return None
    clients = [np.sort(group.per_client()) for group in groups]

    def paint(axes: Axes) -> None:
        for group, values in zip(groups, clients, strict=True):
            share = 100 * (np.arange(len(values)) + 0.5) / len(values)
            marks: dict[str, Any] = {"marker": look.marker(group.method), "markevery": max(1, len(values) // 40)}
            shape = {"color": look.colour(group), "linestyle": look.own_line(group.method), **marks}
            axes.plot(share, values, markersize=4.5, linewidth=1.4, label=group.method, **shape)
            if len(own := np.sort(group.per_client("personal"))):
                shape |= {"linestyle": ":", "markerfacecolor": "white", "label": f"{group.method}, own models"}
                axes.plot(share, own, markersize=4.5, linewidth=1.8, **shape)
        axes.set_xlim(0, 100)
        axes.set_ylim(-3, 103)
        axes.grid(axis="y")
        axes.set_xlabel("clients, from worst to best served, %")
        axes.set_title("accuracy of the client, %")
        canvas.legend(axes, len(axes.lines) > 1)

    lowest = min(float(np.quantile(values, 0.1)) for values in clients)
    bases = sorted({run.end["per_client_basis"] for group in groups for run, _ in group.shown if run.end})
    start = groups[0].runs[0].start["clients"]
    part = f", {len(start['names'])} sampled of {start['count']}" if len(start["names"]) < start["count"] else ""
    title = f"By client: the worst served tenth is below {lowest:.0f} %"
    if len(groups) > 1:
        title = "By client: how evenly the methods serve"
    seeds = "; seeds together" if any(len(group.shown) > 1 for group in groups) else ""
    note = f"Measured on: {' / '.join(bases)}. Clients without rows are left out{part}{seeds}."
    return Picture(title, canvas.draw(f"clients{where(groups)}", HEIGHT, paint), note)


def label_map(record: Record, partition: str) -> Picture | None:
    """Rows of each class at each client, clients sorted by their main class; None where all clients are empty."""
    names, clients = record.start["data"]["classes"], record.start["clients"]
    counts = np.array(clients["label_counts"], dtype=float).reshape(-1, len(names))
    counts = counts[counts.sum(axis=1) > 0]
    if not len(counts):
        return None
    order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
    order = order[np.linspace(0, len(order) - 1, min(len(order), MOST_CLIENTS)).astype(int)]
    held = float(np.median((counts > 0).sum(axis=1)))

    def paint(axes: Axes) -> None:
        from matplotlib.colors import LinearSegmentedColormap, LogNorm
        from matplotlib.ticker import FuncFormatter, LogLocator

        colours = LinearSegmentedColormap.from_list("rows", ["#cfe4f3", "#4a9bcb", "#08306b"], N=48)
        grid = np.ma.masked_equal(counts[order].T, 0)
        axes.set_facecolor("#f4f5f7")
        scale = LogNorm(vmin=1, vmax=max(10, counts.max()))
        image = axes.imshow(grid, aspect="auto", interpolation="none", cmap=colours, norm=scale)
        every = -(-len(names) // MOST_CLASSES)
        axes.set_yticks(range(0, len(names), every), [canvas.short(name) for name in names[::every]])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_xlabel("clients, sorted by the class they hold most of")
        ticks: dict[str, Any] = {"ticks": LogLocator(), "format": FuncFormatter(lambda rows, _: f"{rows:,.0f}")}
        bar = canvas.figure_of(axes).colorbar(
            image, ax=axes, location="top", aspect=60, shrink=0.6, anchor=(0, 0), **ticks
        )
        bar.outline.set_visible(False)
        bar.ax.minorticks_off()
        bar.ax.tick_params(length=0, pad=2)
        bar.ax.set_title("training rows", fontsize=13)

    title = f"Who holds what: the median client has {held:g} of {len(names)} classes"
    full = clients["count"] - clients["empty"]
    note = f"{full:,} of {clients['count']:,} clients hold rows; seed {record.seed}."
    sample = f" {len(order)} of them are drawn." if len(order) < full else ""
    svg = canvas.draw(f"labels ({partition})", 1.6 + 0.25 * min(len(names), 36), paint)
    return Picture(title, svg, note + sample)


@dataclass(frozen=True)
class Curves:
    """One line per group: ``values`` of its runs over ``places``, in the given vertical scale."""

    groups: Sequence[Group]
    look: Look
    values: Values
    places: Callable[[Group], np.ndarray]
    scale: tuple[float, float]

    def paint(self, axes: Axes, what: str, over: str) -> None:
        from matplotlib.ticker import MaxNLocator

        for group in self.groups:
            mean, low, high = _band(group, self.values)
            x = self.places(group)[: len(mean)]
            shape: dict[str, Any] = {"color": self.look.colour(group), "linestyle": self.look.line(group)}
            every = max(1, len(mean) // 12)
            axes.plot(x, mean, marker=self.look.marker(group.method), markersize=4.5, markevery=every, **shape)
            if len(group.shown) > 1:
                axes.fill_between(x, low, high, color=shape["color"], alpha=0.14, linewidth=0)
            if len(mean) == 1:
                # A method of one round would be a lone dot: a thin line carries its level across the figure.
                axes.axhline(mean[0], linewidth=1, alpha=0.6, **shape)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(*self.scale)
        axes.grid(axis="y")
        axes.set_xlabel(over)
        axes.set_title(what)
        _curve_legend(axes, self.look, self.groups)


def _scale(groups: Sequence[Group], values: Values) -> tuple[float, float]:
    """From below the lowest to above the highest value of all groups, at multiples of five."""
    bands = [_band(group, values) for group in groups]
    points = [value for band in bands for part in band for value in part if not np.isnan(value)] or [0, 100]
    return 5 * np.floor((min(points) - 1) / 5), 5 * np.ceil((max(points) + 1) / 5)


def _curve_legend(axes: Axes, look: Look, groups: Sequence[Group]) -> None:
    """Colours name methods, lines name partitions; each is shown only where it tells something apart."""
    methods = {group.method: group for group in groups}
    partitions = {group.partition: group for group in groups}
    if len(methods) > 1:
        for method, group in methods.items():
            line = look.line(group) if look.apart else "-"
            mark: dict[str, Any] = {"marker": look.marker(method), "markersize": 4.5}
            axes.plot([], [], color=look.colour(group), linestyle=line, label=method, **mark)
    if len(partitions) > 1:
        for partition, group in partitions.items():
            colour = MUTED if len(methods) > 1 else look.colour(group)
            axes.plot([], [], color=colour, linestyle=look.line(group), label=partition)
    canvas.legend(axes, len(groups) > 1)


def _rounds(group: Group) -> np.ndarray:
    return np.arange(1, 1 + max(len(run.rounds) for run, _ in group.shown))


def _accuracies(run: Record, _: Record | None) -> list[float]:
    return [100 * accuracy for accuracy in run.accuracy_curve]


def _retained(run: Record, twin: Record | None) -> list[float]:
    return retained(run.accuracy_curve, twin.accuracy_curve) if twin else []


def _band(group: Group, values: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, lowest and highest value per round over the seeds, for the rounds that all of them have."""
    curves = [curve for run, twin in group.shown if (curve := values(run, twin))]
    rounds = min(map(len, curves), default=0)
    stack = np.array([curve[:rounds] for curve in curves]).reshape(len(curves) or 1, rounds)
    return stack.mean(axis=0), stack.min(axis=0), stack.max(axis=0)


def band_note(groups: Sequence[Group]) -> str:
    """What lines and bands are, if there are several seeds."""
    several = any(len(group.shown) > 1 for group in groups)
    return "Line: mean over the seeds; band: lowest to highest seed." if several else ""


def where(groups: Sequence[Group]) -> str:
    """For a title: the split, if there is but one."""
    partitions = {group.partition for group in groups}
    return f" ({partitions.pop()})" if len(partitions) == 1 else ""
