"""Figures of personal models: client by client before and after, on whose test set, and how far features moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.reporting import canvas
from fedkeel.reporting.canvas import FAINT, HEIGHT, INK, MUTED, Picture
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.personalised import Way

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_WAYS = 7
"""More dots than this on one line are too many."""
MOST_CLIENTS, MOST_NAMES, MOST_NUMBERS, MOST_MAPPED = 30, 30, 12, 60


def at_home(ways: Sequence[Way], where: str) -> Picture | None:
    """Each client on its own test set: a dot for the global model before, one for each way after."""
    return _dots(
        ways, lambda personal: personal.own, lambda personal: _of(personal, personal.before),
        f"Own test set, client by client: before and after{where}",
        "Before: the global model on the client's own test set. After: the client's personal model on the same.",
    )  # fmt: skip


def everywhere(ways: Sequence[Way], where: str) -> Picture | None:
    """Each client's model on the test sets of all clients, likewise; None where it was tested at home only."""
    if not all(personal.abroad for way in ways for personal in way.seeds):
        return None
    return _dots(
        ways, lambda personal: _row_means(personal.matrix), _everywhere_before,
        f"All test sets, client by client: before and after{where}",
        "Before: the global model, mean over the test sets of all clients. After: the client's personal model on the "
        "same.",
    )  # fmt: skip


def heat_map(way: Way, where: str) -> Picture | None:
    """The matrix of accuracies, mean over the seeds; None with more clients than can be told apart."""
    alike = _alike(way.seeds)
    matrix = 100 * np.mean([personal.matrix for personal in alike], axis=0)
    names, owners = alike[0].names, alike[0].clients
    if len(names) > MOST_MAPPED or len(names) < 2 or not alike[0].abroad:
        return None

    def paint(axes: Axes) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        colours = LinearSegmentedColormap.from_list("accuracy", ["#f3f8fc", "#4a9bcb", "#08306b"], N=64)
        axes.set_facecolor("#e7e9ec")
        image = axes.imshow(np.ma.masked_invalid(matrix), aspect="auto", cmap=colours, vmin=0, vmax=100)
        every = -(-len(names) // MOST_NAMES)
        axes.set_yticks(range(0, len(owners), every), [canvas.short(names[k], 14) for k in owners[::every]])
        below = [canvas.short(name, 14) for name in names[::every]]
        axes.set_xticks(range(0, len(names), every), below)
        axes.tick_params(axis="x", rotation=0 if len("".join(below)) <= 26 else 90, length=0, labelcolor=INK)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.spines["bottom"].set_visible(False)
        axes.set_xlabel("test set of the client")
        axes.set_title("personal model of the client")
        if len(names) <= MOST_NUMBERS:
            for (i, j), value in np.ndenumerate(matrix):
                if not np.isnan(value):
                    axes.text(j, i, f"{value:.0f}", ha="center", va="center", color="white" if value > 55 else INK)
        bar = canvas.figure_of(axes).colorbar(image, ax=axes, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)

    title = f"Whose model on whose test set, %: {way.label}{where}"
    note = "The diagonal is Local: a client's own model on its own test set." + _seeds(alike)
    return Picture(title, canvas.draw(title, 1.7 + 0.3 * min(len(owners), 24), paint), note)


def distortion(ways: Sequence[Way], where: str) -> Picture | None:
    """Feature distortion against the loss of global accuracy (LP-FT, Figure 3a), a point per way; for two or more."""
    points = []
    for way in ways:
        x, y = way.mean("distortion_mean", 1)[0], way.mean("drop_in_global")[0]
        if x is not None and y is not None:
            points.append((way, x, y))
    if len(points) < 2:
        return None
    shades = shade([way.label if len(points) <= MOST_WAYS else way.name for way, _, _ in points])

    def paint(axes: Axes) -> None:
        axes.axhline(0, color=MUTED, linewidth=1)
        seen = set()
        for way, x, y in points:
            key = way.label if way.label in shades else way.name
            colour, marker = shades[key]
            for personal in way.seeds if len(way.seeds) > 1 else ():
                drop, moved = personal.drop_in_global, personal.distortion_mean
                if drop is not None and moved is not None:
                    axes.plot([moved], [100 * drop], marker, color=colour, markersize=4, alpha=0.35)
            axes.plot([x], [y], marker, color=colour, markersize=9, label=None if key in seen else key)
            seen.add(key)
        axes.grid(axis="both")
        axes.set_xlabel("feature distortion (l2), own training rows")
        axes.set_title("drop in global accuracy (all test sets), points")
        canvas.legend(axes, True)

    title = f"Distorted features and lost global accuracy{where}"
    note = "Further right: personal features are further from the global ones. Higher: more accuracy on the test sets "
    note += "of all clients was lost, against the global model; below 0 it was gained."
    note += " Small points: single seeds." if any(len(way.seeds) > 1 for way in ways) else ""
    return Picture(title, canvas.draw(title, HEIGHT, paint), note)


def shade(keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each key."""
    return {key: (canvas.colour(k), canvas.marker(k)) for k, key in enumerate(dict.fromkeys(keys))}


def _dots(
    ways: Sequence[Way],
    after: Callable[[Personal], np.ndarray],
    before: Callable[[Personal], np.ndarray],
    title: str,
    note: str,
) -> Picture | None:
    """A line per client: where it stood before, and where each way has brought it."""
    found = [(way.label, _alike(way.seeds)) for way in ways]
    first = found[0][1][0]
    found = [(label, seeds) for label, seeds in found if _who(seeds[0]) == _who(first)]
    start = 100 * np.mean([before(personal) for personal in found[0][1]], axis=0)
    ends = [(label, 100 * np.mean([after(personal) for personal in seeds], axis=0)) for label, seeds in found]
    table = np.array([start, *(values for _, values in ends)])
    known = np.flatnonzero(~np.isnan(table).all(axis=0))
    if not len(known):
        return None
    by = start if not np.isnan(start[known]).any() else ends[0][1]
    rows = known[np.argsort(by[known], kind="stable")][:MOST_CLIENTS]
    names = [first.names[first.clients[k]] for k in rows]
    shades = shade([label for label, _ in ends])

    def paint(axes: Axes) -> None:
        places = np.arange(len(rows))
        axes.hlines(places, np.nanmin(table[:, rows], axis=0), np.nanmax(table[:, rows], axis=0), color=FAINT, lw=4)
        if not np.isnan(start).all():
            axes.plot(start[rows], places, "o", color=INK, markerfacecolor="white", markersize=9, label="before")
        for number, (label, values) in enumerate(ends):
            colour, marker = shades[label]
            beside = places + 0.5 * ((number + 0.5) / len(ends) - 0.5)  # equal numbers are both seen
            axes.plot(values[rows], beside, marker, color=colour, markersize=7, alpha=0.9, label=label)
        axes.set_yticks(places, [canvas.short(name) for name in names])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.set_xlabel("accuracy, %")
        canvas.legend(axes, True)

    part = f" The {len(rows)} of {len(known)} clients that were served worst before." if len(rows) < len(known) else ""
    svg = canvas.draw(title, 1.0 + (0.45 if len(rows) <= 10 else 0.3) * len(rows), paint)
    return Picture(title, svg, note + part + _seeds(found[0][1]))


def _of(personal: Personal, values: np.ndarray | None) -> np.ndarray:
    """The values of the clients that have a model; unknown where there are none."""
    return np.full(len(personal.clients), np.nan) if values is None else values[list(personal.clients)]


def _everywhere_before(personal: Personal) -> np.ndarray:
    mean = personal.global_before
    return np.full(len(personal.clients), np.nan if mean is None else mean)


def _row_means(matrix: np.ndarray) -> np.ndarray:
    return np.array([np.nan if np.isnan(row).all() else np.nanmean(row) for row in matrix])


def _who(personal: Personal) -> Any:
    return personal.names, personal.clients


def _alike(seeds: Sequence[Personal]) -> list[Personal]:
    """The seeds that have the clients of the first: only these can be averaged client by client."""
    return [personal for personal in seeds if _who(personal) == _who(seeds[0])]


def _seeds(seeds: Sequence[Personal]) -> str:
    return f" Mean over {len(seeds)} seeds." if len(seeds) > 1 else ""
