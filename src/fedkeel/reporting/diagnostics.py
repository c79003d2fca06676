"""Why a run went as it did, drawn and in plain words: how clients pull apart, and how the features lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedkeel.reporting import plots
from fedkeel.reporting.plots import HEIGHT, Look, Picture
from fedkeel.reporting.tables import NOTHING, Group, html_table
from fedkeel.runs.events import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COMMON = 0.5
"""A larger share of the features' energy in their mean is worth a warning."""


class Measure(NamedTuple):
    """One curve of drift."""

    key: str
    title: str
    axis: str
    note: str


MEASURES = (
    Measure(
        "decision_bias",
        "Local bias: how far clients pull apart",
        "typical local bias, in lengths of the common gradient",
        "1 = a typical client is as far off the common gradient as that is long. The part that all classes share is "
        "left out: it changes no decision.",
    ),
    Measure(
        "variance",
        "Variance V of the averaged gradient",
        "V with one row per client, squared length",
        "It grows where few clients hold most rows. The loss of a method sets its scale: compare splits and rounds, "
        "not methods.",
    ),
    Measure(
        "cross_class_local",
        "Cross-class covariance within clients",
        "sum off the diagonal over sum on it",
        "0 = the gradients of the classes vary independently. Softmax cannot fall below 1, one-vs-all can; but a push "
        "that all classes share counts too.",
    ),
)
GEOMETRY_NOTE = (
    "Of the training features as the heads see them; all distances are squared. Good features have a small alignment "
    "(two rows of a class are close), a small intra (rows are close to the centre of their class), a large inter "
    "(centres of classes are far apart) and so a small ratio of the two: below 1, a row is on average nearer to its "
    "own centre than centres are to each other. Compare encoders by the ratio: where all rows share one mean, "
    "alignment and intra are small as well. The energy in that mean is of the features as encoded: near 0 % is good; "
    "above 50 %, leave the features centred."
)


def common_mean(energy: float | None, source: str, features: str) -> str | None:
    """What to know about features whose energy is mostly one common mean that is left in; None if there is nothing."""
    if not energy or energy <= MOST_COMMON or features == "centred":
        return None
    return (
        f"{100 * energy:.0f} % of the energy of the features of {source} is one mean that all rows share, and "
        f'data.features = "{features}" leaves it in. Heads trained on such features drift apart on clients that hold '
        'few classes, so the published recipe is expected to fail here. Set data.features = "centred".'
    )


def drift_note(found: Sequence[Group]) -> str:
    """How to read the curves of drift."""
    note = (
        "Gradients at the heads after each round (0 = before training), of the loss that the next round trains, over "
        "all rows of all clients."
    )
    return f"{note} {plots._band_note(found)}".strip()


def drift_curves(part: Sequence[Group], found: Sequence[Group], look: Look) -> list[Picture]:
    """Bias, variance and covariance by round for some of the groups, in the scale of all that measured them."""
    among = [group for group in found if any(run.drift for run, _ in group.shown)]
    mine = [group for group in among if group in part]
    return [_curve(measure, mine, among, look) for measure in MEASURES] if mine else []


def _curve(measure: Measure, groups: Sequence[Group], among: Sequence[Group], look: Look) -> Picture:
    def values(run: Record, _: Record | None) -> list[float]:
        return [np.nan if event[measure.key] is None else event[measure.key] for event in run.drift]

    scale = _log_scale(among, values)
    curves = plots._Curves(groups, look, values, _rounds, scale)

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_yscale("log")
        curves.paint(axes, measure.axis, "round")
        times = scale[1] / scale[0]
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if times < 30 else (1, 3) if times < 1000 else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    title = f"{measure.title}{plots._where(groups)}"
    return Picture(title, plots._draw(title, HEIGHT, paint), measure.note)


def _rounds(group: Group) -> np.ndarray:
    return np.array(max(([event["round"] for event in run.drift] for run, _ in group.shown), key=len))


def _log_scale(groups: Sequence[Group], values: Callable[[Record, Record | None], list[float]]) -> tuple[float, float]:
    """From below the lowest to above the highest value above zero of all groups."""
    points = [value for group in groups for run, twin in group.shown for value in values(run, twin) if value > 0]
    return (min(points) / 1.25, max(points) * 1.25) if points else (0.1, 1.0)


def geometry_table(found: Sequence[Group]) -> str:
    """One row per source, encoder and preparation; empty where no run has measured it."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for run in (run for group in found for run in group.runs if run.geometry):
        data, features = run.start["data"], run.start["config"]["data"].get("features", "centred")
        assert run.geometry
        numbers = [_number(run.geometry[key]) for key in ("alignment", "intra", "inter", "ratio")]
        energy = data.get("mean_energy")
        numbers.append(NOTHING if energy is None else f"{100 * energy:.1f} %")
        rows.setdefault((str(data["source"]), str(data["encoder"]), features), numbers)
    head = ["Data", "Encoder", "Features", "Alignment", "Intra", "Inter", "Ratio", "Energy in the mean"]
    return html_table(head, [[*key, *numbers] for key, numbers in rows.items()], words=3) if rows else ""


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"
