"""What a split looks like: figures, a view for the terminal and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedkeel.data.manifest import Manifest

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

LINES = 40
"""At most this many clients are drawn in the terminal."""
CELLS = 50
"""Columns of the terminal's heat map: with names and row counts it then fits 80."""
# Shades differ without colour too: a piped or printed view still reads.
SHADES = ((0.5, "█", "bright_yellow"), (0.2, "▓", "green"), (0.05, "▒", "cyan"), (0.0, "░", "blue"))


@dataclass(frozen=True)
class Spread:
    least: float
    median: float
    mean: float
    most: float

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        if not len(values):
            return cls(0, 0, 0, 0)
        return cls(float(values.min()), float(np.median(values)), float(values.mean()), float(values.max()))


@dataclass(frozen=True)
class Figures:
    """A split in numbers. What is said per client is said of the clients that have training rows."""

    clients: int
    empty: int
    train_rows: int
    validation_rows: int
    test_rows: int
    rows: Spread
    """training rows per client"""
    tests: Spread
    """test rows per client, of all clients"""
    classes_per_client: Spread
    clients_per_class: Spread
    """over the classes that have training rows"""
    largest_share: float
    """share of all training rows that the largest client holds"""
    skew: float
    """mean total-variation distance between a client's label distribution and the federation's: 0 = alike"""
    effective_classes: float
    """mean over clients of exp(entropy of the client's labels)"""


def describe(manifest: Manifest, labels: np.ndarray, class_names: Sequence[str]) -> Figures:
    """The figures of a manifest's training rows; ``labels`` has one label per training row of the dataset."""
    counts = manifest.train.label_counts(labels, len(class_names))
    sizes = counts.sum(axis=1)
    total = int(sizes.sum())
    held = counts[sizes > 0]
    mix = held / held.sum(axis=1, keepdims=True)
    overall = counts.sum(axis=0) / max(1, total)
    logs = np.log(mix, out=np.zeros_like(mix), where=mix > 0)
    present = counts.any(axis=0)
    return Figures(
        clients=len(counts),
        empty=int((sizes == 0).sum()),
        train_rows=total,
        validation_rows=len(manifest.validation.rows),
        test_rows=len(manifest.test.rows),
        rows=Spread.of(sizes[sizes > 0]),
        tests=Spread.of(manifest.test.sizes),
        classes_per_client=Spread.of((held > 0).sum(axis=1)),
        clients_per_class=Spread.of((counts[:, present] > 0).sum(axis=0)),
        largest_share=int(sizes.max(initial=0)) / max(1, total),
        skew=float(0.5 * np.abs(mix - overall).sum(axis=1).mean()) if len(held) else 0.0,
        effective_classes=float(np.exp(-(mix * logs).sum(axis=1)).mean()) if len(held) else 0.0,
    )


def render(manifest: Manifest, labels: np.ndarray, class_names: Sequence[str]) -> Group:
    """The figures and a heat map (clients x classes), for a terminal of 80 columns or more."""
    from rich.console import Group

    figures = describe(manifest, labels, class_names)
    counts = manifest.train.label_counts(labels, len(class_names))
    return Group(*_table(manifest, figures), *_heat_map(counts, manifest.names, class_names))


def _table(manifest: Manifest, figures: Figures) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    told = {k: v for k, v in manifest.settings.items() if k != "kind" and not (k in ("validation", "test") and v == 0)}
    settings = ", ".join(f"{key} {value}" for key, value in told.items())
    rows = f"{figures.train_rows:,} train"
    rows += f", {figures.validation_rows:,} validation" if figures.validation_rows else ""
    rows += f", {figures.test_rows:,} test" if figures.test_rows else ""
    for name, value in (
        ("split", Text(f"{manifest.settings['kind']} ({settings})")),
        ("clients", Text(f"{figures.clients:,}, of which {figures.empty:,} without training rows")),
        ("rows", Text(rows)),
        ("largest client", Text(f"{figures.largest_share:.1%} of the training rows")),
        ("label skew", Text(f"{figures.skew:.3f} (0 = each client like the whole, 1 = nothing shared)")),
        ("effective classes", Text(f"{figures.effective_classes:.2f} per client (exp of the label entropy)")),
    ):
        facts.add_row(Text(name, style="bold"), value)
    spreads = Table(box=None, padding=(0, 2), pad_edge=False, header_style="bold")
    for heading in ("", "min", "median", "mean", "max"):
        spreads.add_column(heading, justify="right" if heading else "left")
    tests = [("test rows per client", figures.tests)] if figures.test_rows else []
    for name, spread in (
        ("rows per non-empty client", figures.rows),
        *tests,
        ("classes per non-empty client", figures.classes_per_client),
        ("clients per class", figures.clients_per_class),
    ):
        numbers = (f"{spread.least:,.0f}", f"{spread.median:,.1f}", f"{spread.mean:,.2f}", f"{spread.most:,.0f}")
        spreads.add_row(name, *numbers)
    return [facts, Text(), spreads, Text()]


def _heat_map(counts: np.ndarray, names: Sequence[str], class_names: Sequence[str]) -> list[Text]:
    """One line per client, largest first; a cell's shade is the class's share of the client's rows."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    sizes = counts.sum(axis=1)
    clients = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    if not len(clients):
        return [Text("no client has training rows")]
    shown = clients
    if len(clients) > LINES:
        shown = clients[np.linspace(0, len(clients) - 1, LINES).round().astype(int)]
    classes = len(class_names)
    per_cell = -(-classes // CELLS)
    starts = np.arange(0, classes, per_cell)
    wide = max(1, min(3, CELLS // len(starts)))
    shares = np.add.reduceat(counts[shown], starts, axis=1) / sizes[shown, None]
    label_width = min(16, max(cell_len(_printable(names[k])) for k in shown))
    lines = [_ruler(starts, wide, label_width)]
    for client, row in zip(shown, shares, strict=True):
        line = Text(set_cell_size(_printable(names[client]), label_width) + " ")
        for share in row:
            mark, style = next(((mark, style) for least, mark, style in SHADES if share > least), ("·", "bright_black"))
            line.append(mark * wide, style)
        lines.append(line.append(f" {sizes[client]:>9,}"))
    legend = Text("share of a client's rows: ")
    for (_, mark, style), meaning in zip(reversed(SHADES), ("to 5 %", "to 20 %", "to 50 %", "more"), strict=True):
        legend.append(mark * 2, style).append(f" {meaning}  ")
    lines += [legend.append("··", "bright_black").append(" none")]
    notes = []
    if len(shown) < len(clients):
        notes.append(f"{len(shown)} of {len(clients):,} non-empty clients, evenly over the order of size")
    if len(clients) < len(counts):
        notes.append(f"left out: {len(counts) - len(clients):,} without training rows")
    if per_cell > 1:
        notes.append(f"a cell stands for {per_cell} classes")
    if notes:
        lines.append(Text("; ".join(notes), style="italic"))
    if classes <= 30:
        named = ", ".join(f"{i}:{_printable(name)}" for i, name in enumerate(class_names))
        lines.append(Text(f"classes: {named}"))
    return lines


def _ruler(starts: np.ndarray, wide: int, label_width: int) -> Text:
    """Class numbers above the cells, as many as have room."""
    from rich.text import Text

    every = -(-(len(str(starts[-1])) + 1) // wide)
    every = next(step for step in (1, 2, 5, 10, 20, 50) if step >= every)
    marks = "".join(str(start).ljust(wide * every) for start in starts[::every].tolist())
    return Text(" " * (label_width + 1) + marks.rstrip(), style="bright_black")


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(name))


def heatmap_png(path: str | Path, counts: np.ndarray, names: Sequence[str], class_names: Sequence[str]) -> None:
    """Draw rows per client (down) and class (across) on a logarithmic colour scale; no rows = white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    figure = Figure(figsize=(float(np.clip(2.5 + 0.25 * classes, 6, 13)), float(np.clip(1.5 + 0.2 * clients, 4, 11))))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    norm = LogNorm(vmin=1, vmax=max(10, int(counts.max(initial=0))))
    # Many clients share a pixel: then average them instead of leaving some out.
    interpolation = "nearest" if max(clients, classes) <= 500 else "antialiased"
    shown = np.ma.masked_equal(counts, 0)
    image = axes.imshow(shown, aspect="auto", cmap="viridis_r", norm=norm, interpolation=interpolation)
    bar = figure.colorbar(image, ax=axes, label="training rows (log scale)", fraction=0.04, pad=0.02)
    bar.ax.yaxis.set_major_formatter(lambda rows, _: f"{rows:,.0f}")
    for axis, labels in ((axes.yaxis, names), (axes.xaxis, class_names)):
        step = -(-len(labels) // 60)
        axis.set_ticks(range(0, len(labels), step), [_short(label) for label in labels[::step]], fontsize=8)
        for text in axis.get_ticklabels():
            text.set_parse_math(False)  # a "$" in a name is a "$"
    axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel(f"class ({classes})")
    axes.set_ylabel(f"client ({clients})")
    figure.savefig(Path(path), dpi=120, format="png")


def _short(name: str) -> str:
    text = _printable(name)
    return text if len(text) <= 24 else text[:23] + "…"
