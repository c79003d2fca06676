"""Figures as SVG text to be set into a page, all in one style: the same numbers give the same bytes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from io import StringIO
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from fedkeel.core.wrap import folded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours without black and yellow: told apart by every kind of colour vision, and seen on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ((5, 2), (7, 2, 1.5, 2), (3, 1.5), (9, 3), (4, 1.5, 1, 1.5, 1, 1.5))
LINES: tuple[Any, ...] = ("-", *((0, dash) for dash in DASHES))
HATCHES = ("", "///", "...", "xxx", "---", "ooo")
INK, MUTED, FAINT = "#24292f", "#6a737d", "#e7e9ec"
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# 6.6 inches are 475 units of the SVG: text of 13 units is still read on a phone, where a figure is 350 pixels wide.
WIDTH, HEIGHT, LEGEND_LINE = 6.6, 3.9, 0.28
LONGEST_NAME = 260
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
    "legend.handlelength": 3.2,
    "hatch.color": "white",
}


@dataclass(frozen=True)
class Picture:
    """A figure, its title in plain words, and a note on how to read it."""

    title: str
    svg: str
    note: str

    def markup(self, mark: str = "") -> Markup:
        """For a page, with the title as its label; ``mark`` goes before its ids, where a page may draw it twice."""
        svg = self.svg.replace("<svg ", f'<svg aria-label="{escape(self.title)}" ', 1)
        return Markup(re.sub(r'(\bid="|url\(#|href="#)(f[0-9a-f]{10}-)', rf"\1{mark}\2", svg))


def draw(name: str, height: float, paint: Callable[[Axes], None]) -> str:
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


def colour(k: int) -> str:
    """Of the k-th of things that are drawn together: its marker, line or hatch then tells it from the 41 before it."""
    return COLOURS[k % len(COLOURS)]


def marker(k: int) -> str:
    """Neighbours differ in it too, for eyes and paper without colours."""
    return MARKERS[(k % len(COLOURS) + k // len(COLOURS)) % len(MARKERS)]


def line(k: int) -> Any:
    return LINES[k // len(COLOURS) % len(LINES)]


def hatch(k: int) -> str:
    return HATCHES[k // len(COLOURS) % len(HATCHES)]


def legend(axes: Axes, wanted: bool) -> None:
    """A legend above the axes, where it can cover nothing; long names take several lines, none is cut."""
    handles, names = axes.get_legend_handles_labels()
    if wanted:
        longest = max(map(len, names))
        columns, room = (3, 12) if longest <= 12 else (2, 24) if longest <= 24 or len(names) > 6 else (1, 52)
        labels = ["\n".join(folded(short(name, LONGEST_NAME), room)) for name in names]
        rows = -(-len(labels) // columns)
        high = [max(label.count("\n") + 1 for label in labels[row::rows]) for row in range(rows)]
        figure = figure_of(axes)
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * sum(high))
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.4)


def figure_of(axes: Axes) -> Figure:
    """The figure that the axes stand in."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def short(name: str, most: int = 24) -> str:
    """A name that fits and can be drawn, whatever it holds."""
    clean = "".join(c if c.isprintable() else "�" for c in str(name))
    return clean if len(clean) <= most else clean[: most - 1] + "…"


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
