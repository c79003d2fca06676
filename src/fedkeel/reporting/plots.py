"""Figures of a report as SVG text to be set into a page: the same records give the same bytes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.metrics.convergence import retained
from fedkeel.reporting.tables import Group, format_bytes
from fedkeel.runs.events import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours without black and yellow: told apart by every kind of colour vision, and seen on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P")
IID_LINE: Any = (0, (1, 1.6))
DASHES = ((5, 2), (7, 2, 1.5, 2), (3, 1.5), (9, 3), (4, 1.5, 1, 1.5, 1, 1.5))
LINES: tuple[Any, ...] = ("-", *((0, dash) for dash in DASHES))
INK, MUTED, FAINT = "#24292f", "#6a737d", "#e7e9ec"
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# 6.6 inches are 475 units of the SVG: text of 13 units is still read on a phone, where a figure is 350 pixels wide.
WIDTH, HEIGHT, LEGEND_LINE = 6.6, 3.9, 0.28
MOST_CLASSES, MOST_CLIENTS = 30, 300
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedkeel",
    "text.parse_math": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "text.color": INK,
    "font.size": 13,
    "axes.labelsize": 13,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 13,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": "#c4c9cf",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "xtick.color": "#c4c9cf",
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.left": False,
    "grid.color": FAINT,
    "lines.linewidth": 2.2,
    "legend.frameon": False,
    "legend.fontsize": 13,
    "legend.borderpad": 0.7,
    "legend.handlelength": 2.4,
}
Values = Callable[[Record, Record | None], list[float]]


@dataclass(frozen=True)
class Picture:
    """A figure, its title in plain words, and a note on how to read it."""

    title: str
    svg: str
    note: str


@dataclass(frozen=True)
class Look:
    """A colour for each method and a line for each partition, the same in every figure of a page.

    On a page of one method the colours go to the partitions, which lines alone would hardly tell apart.
    """

    methods: tuple[str, ...]
    partitions: tuple[str, ...]
    """all but IID, which is the reference and has a dotted line of its own"""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Look:
        methods = dict.fromkeys(group.method for group in groups)
        return cls(tuple(methods), tuple(dict.fromkeys(group.partition for group in groups if not group.is_iid)))

    def colour(self, group: Group) -> str:
        if len(self.methods) > 1 or not self.partitions:
            return COLOURS[self.methods.index(group.method) % len(COLOURS)]
        return MUTED if group.is_iid else COLOURS[self.partitions.index(group.partition) % len(COLOURS)]

    def marker(self, method: str) -> str:
        return MARKERS[self.methods.index(method) // len(COLOURS) % len(MARKERS)]

    def line(self, group: Group) -> Any:
        return IID_LINE if group.is_iid else LINES[self.partitions.index(group.partition) % len(LINES)]


def accuracy_curves(groups: Sequence[Group], look: Look, among: Sequence[Group]) -> Picture:
    """Test accuracy by round, one line per group: the mean over seeds in a band from the lowest to the highest.

    The figure has the scale of all groups ``among`` which it stands, so that figures can be compared.
    """
    title = f"Accuracy, round by round{_where(groups)}"
    curves = _Curves(groups, look, _accuracies, _rounds, _scale(among, _accuracies))
    svg = _draw(title, HEIGHT, lambda axes: curves.paint(axes, "accuracy on the test rows, %", "round"))
    return Picture(title, svg, _band_note(groups))


def retained_curves(groups: Sequence[Group], look: Look, among: Sequence[Group]) -> Picture:
    """R(t) by round for groups that have IID twins; 100 is the twin. ``among`` as in ``accuracy_curves``."""
    low, high = _scale(among, _retained)
    curves = _Curves(groups, look, _retained, _rounds, (min(low, 94), max(high, 102)))

    def paint(axes: Axes) -> None:
        axes.axhline(100, color=MUTED, linewidth=1.2, zorder=1)
        curves.paint(axes, "R(t), % of the accuracy of the IID twin", "round")

    title = f"What is kept of the IID accuracy, round by round{_where(groups)}"
    mean = _band(groups[0], _retained)[0]
    if len(groups) == 1 and len(mean):
        title = f"{groups[0].method} keeps {mean[-1]:.1f} % of its IID accuracy{_where(groups)}"
    note = f"100 = as accurate as with IID clients. {_band_note(groups)}"
    return Picture(title, _draw(title, HEIGHT, paint), note.strip())


def traffic_curves(groups: Sequence[Group], look: Look, among: Sequence[Group]) -> Picture:
    """Test accuracy over the bytes sent so far: which method buys accuracy cheapest. ``among`` as above."""
    curves = _Curves(groups, look, _accuracies, Group.traffic, _scale(among, _accuracies))

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_xscale("log", base=2)
        curves.paint(axes, "accuracy on the test rows, %", "bytes sent so far, up and down, all clients together")
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: format_bytes(count).replace(".0", "")))

    title = f"Accuracy for the bytes sent{_where(groups)}"
    note = f"Up and to the left is better; each step of the bytes axis multiplies. {_band_note(groups)}"
    return Picture(title, _draw(title, HEIGHT, paint), note.strip())


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
        axes.set_yticks(places, [_short(names[k]) for k in worst])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(worst) - 0.4, -0.6)
        axes.set_xlim(0, 104)
        axes.grid(axis="x")
        axes.set_xlabel("accuracy, %")
        _legend(axes, len(groups) > 1)

    weakest = _short(names[worst[0]])
    part = f"The {len(worst)} weakest of {len(known)} classes. " if len(worst) < len(known) else ""
    lost = f"{len(names) - len(known)} classes have no test rows. " if len(known) < len(names) else ""
    several = "Mean over the seeds." if any(len(group.shown) > 1 for group in groups) else ""
    svg = _draw(f"classes{_where(groups)}", 1.0 + 0.28 * len(worst), paint)
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
            colour = look.colour(group)
            axes.plot(share, values, markersize=4.5, linewidth=1.4, color=colour, label=group.method, **marks)
            if len(own := np.sort(group.per_client("personal"))):
                axes.plot(share, own, linestyle=":", linewidth=1.8, color=colour, label=f"{group.method}, own models")
        axes.set_xlim(0, 100)
        axes.set_ylim(-3, 103)
        axes.grid(axis="y")
        axes.set_xlabel("clients, from worst to best served, %")
        axes.set_title("accuracy of the client, %")
        _legend(axes, len(axes.lines) > 1)

    lowest = min(float(np.quantile(values, 0.1)) for values in clients)
    bases = sorted({run.end["per_client_basis"] for group in groups for run, _ in group.shown if run.end})
    start = groups[0].runs[0].start["clients"]
    part = f", {len(start['names'])} sampled of {start['count']}" if len(start["names"]) < start["count"] else ""
    title = f"By client: the worst served tenth is below {lowest:.0f} %"
    if len(groups) > 1:
        title = "By client: how evenly the methods serve"
    seeds = "; seeds together" if any(len(group.shown) > 1 for group in groups) else ""
    note = f"Measured on: {' / '.join(bases)}. Clients without rows are left out{part}{seeds}."
    return Picture(title, _draw(f"clients{_where(groups)}", HEIGHT, paint), note)


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
        axes.set_yticks(range(0, len(names), every), [_short(name) for name in names[::every]])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_xlabel("clients, sorted by the class they hold most of")
        ticks: dict[str, Any] = {"ticks": LogLocator(), "format": FuncFormatter(lambda rows, _: f"{rows:,.0f}")}
        bar = _figure(axes).colorbar(image, ax=axes, location="top", aspect=60, shrink=0.6, anchor=(0, 0), **ticks)
        bar.outline.set_visible(False)
        bar.ax.minorticks_off()
        bar.ax.tick_params(length=0, pad=2)
        bar.ax.set_title("training rows", fontsize=13)

    title = f"Who holds what: the median client has {held:g} of {len(names)} classes"
    full = clients["count"] - clients["empty"]
    note = f"{full:,} of {clients['count']:,} clients hold rows; seed {record.seed}."
    sample = f" {len(order)} of them are drawn." if len(order) < full else ""
    svg = _draw(f"labels ({partition})", 1.6 + 0.25 * min(len(names), 36), paint)
    return Picture(title, svg, note + sample)


@dataclass(frozen=True)
class _Curves:
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
            axes.plot([], [], color=look.colour(group), marker=look.marker(method), markersize=4.5, label=method)
    if len(partitions) > 1:
        for partition, group in partitions.items():
            colour = MUTED if len(methods) > 1 else look.colour(group)
            axes.plot([], [], color=colour, linestyle=look.line(group), label=partition)
    _legend(axes, len(groups) > 1)


def _legend(axes: Axes, wanted: bool) -> None:
    """A legend above the axes, where it can cover nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if wanted:
        columns = 1 if max(map(len, labels)) > 25 else 2 if max(map(len, labels)) > 14 else 3
        figure = _figure(axes)
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * -(-len(labels) // columns))
        figure.legend(
            handles, [_short(label, 52) for label in labels], loc="outside upper left", ncols=columns, columnspacing=1.4
        )


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


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


def _band_note(groups: Sequence[Group]) -> str:
    several = any(len(group.shown) > 1 for group in groups)
    return "Line: mean over the seeds; band: lowest to highest seed." if several else ""


def _where(groups: Sequence[Group]) -> str:
    partitions = {group.partition for group in groups}
    return f" ({partitions.pop()})" if len(partitions) == 1 else ""


def _short(name: str, most: int = 24) -> str:
    clean = "".join(c if c.isprintable() else "�" for c in str(name))
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def _draw(name: str, height: float, paint: Callable[[Axes], None]) -> str:
    """The SVG of what ``paint`` puts on the axes; figures of another name never share an id."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]), warnings.catch_warnings():
        # Text stays text, so it is the reader's fonts that must know a script, not the ones here.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure.add_subplot())
        buffer = StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """An SVG file as an element of a page: no prolog, no metadata, the reader's fonts, ids of its own."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    mark = "f" + blake2b(name.encode() + svg.encode(), digest_size=5).hexdigest()
    root = f'<svg role="img" font-family="{FONTS}"'

    def tag(match: re.Match[str]) -> str:
        text = re.sub(r" font-family: [^;\"]*;", "", match[0])
        text = re.sub(r'\bid="', f'id="{mark}-', text)
        text = re.sub(r'(url\(|href=")#', rf"\1#{mark}-", text)
        if text.startswith("<svg"):
            text = re.sub(r' (width|height)="[^"]*"', "", text).replace("<svg", root, 1)
        return text

    # Inside tags only: a class may be called anything, and its name must come out as it went in.
    return re.sub(r"<[^>]+>", tag, svg)
