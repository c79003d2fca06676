"""Round by round as a mean over several splits, beside the IID run: of each seed first, then over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.data.ownership import IID
from fedkeel.metrics.convergence import retained
from fedkeel.reporting import canvas
from fedkeel.reporting.canvas import HEIGHT, MUTED, Picture
from fedkeel.reporting.plots import IID_LINE
from fedkeel.runs.events import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Runs = Mapping[str, Sequence[tuple[str, Record, Record | None]]]
"""By the name of their method: the split, the run, its IID twin."""
Values = Callable[[Record, Record | None], list[float]]


def accuracy_curves(runs: Runs, splits: Sequence[str], where: str) -> Picture | None:
    """Accuracy of each method: solid the mean over the splits, dotted the IID run; None without a whole seed."""

    def accuracies(run: Record, _: Record | None) -> list[float]:
        return [100 * accuracy for accuracy in run.accuracy_curve]

    return _drawn("Accuracy", "accuracy on the test rows, %", runs, splits, accuracies, where, iid=True)


def retained_curves(runs: Runs, splits: Sequence[str], where: str) -> Picture | None:
    """R(t) of each method, mean over the splits; 100 is the IID run."""

    def kept(run: Record, twin: Record | None) -> list[float]:
        return retained(run.accuracy_curve, twin.accuracy_curve) if twin else []

    return _drawn("R(t)", "R(t), % of the accuracy of the IID twin", runs, splits, kept, where, iid=False)


def means(runs: Runs, method: str, splits: Sequence[str], values: Values) -> np.ndarray:
    """A row for each seed that has finished on all of the splits, over the rounds that all of them have."""
    by_seed: dict[int, dict[str, list[float]]] = {}
    for split, run, twin in runs[method]:
        if split in splits and run.end and (curve := values(run, twin)):
            by_seed.setdefault(run.seed, {})[split] = curve
    whole = [list(curves.values()) for curves in by_seed.values() if len(curves) == len(splits)]
    rounds = min((len(curve) for curves in whole for curve in curves), default=0)
    found = [np.mean([curve[:rounds] for curve in curves], axis=0) for curves in whole]
    return np.array(found).reshape(len(whole), rounds)


def _drawn(
    what: str, axis: str, runs: Runs, splits: Sequence[str], values: Values, where: str, *, iid: bool
) -> Picture | None:
    lines = {method: means(runs, method, splits, values) for method in runs}
    lines = {method: curves for method, curves in lines.items() if curves.size}
    if not lines or max(curves.shape[1] for curves in lines.values()) < 2:
        return None
    several = any(len(curves) > 1 for curves in lines.values())

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        if not iid:
            axes.axhline(100, color=MUTED, linewidth=1.2, zorder=1)
        for method, curves in lines.items():
            k = list(runs).index(method)
            shape: dict[str, Any] = {"color": canvas.colour(k), "marker": canvas.marker(k), "markersize": 4.5}
            _line(axes, curves, linestyle="-", label=method, **shape)
            if iid and (reference := means(runs, method, [IID], values)).size:
                _line(axes, reference, linestyle=IID_LINE, **shape)
        if iid:
            axes.plot([], [], color=MUTED, linestyle=IID_LINE, label="with IID clients")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        axes.set_xlabel("round")
        axes.set_title(axis)
        canvas.legend(axes, True)

    title = f"{what}, averaged over {len(splits)} non-IID splits: {where}"
    note = f"Mean over {', '.join(splits[:-1])} and {splits[-1]}" + (", then over the seeds" if several else "")
    note += f"; {'dotted: IID' if iid else '100 = the IID run'}."
    note += " Band: lowest to highest seed." if several else ""
    return Picture(title, canvas.draw(title, HEIGHT, paint), note)


def _line(axes: Axes, curves: np.ndarray, **shape: Any) -> None:
    """The mean over the seeds in a band from the lowest to the highest."""
    x = np.arange(1, curves.shape[1] + 1)
    axes.plot(x, curves.mean(axis=0), markevery=max(1, len(x) // 12), **shape)
    if len(curves) > 1:
        axes.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=shape["color"], alpha=0.14, linewidth=0)
