"""Figures of frequent and rare classes: who is served how well, by which branch, and how that went round by round.

They are like those of FedPuReL (arXiv 2605.02247): Figures 5b, 7 and 9, and the drift from zero-shot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.reporting import canvas
from fedkeel.reporting.balance_numbers import GROUPS, Balance, Moment, Scores
from fedkeel.reporting.canvas import COLOURS, HEIGHT, INK, MUTED, Picture
from fedkeel.reporting.grouping import Group
from fedkeel.reporting.personalised import mean_and_deviation
from fedkeel.reporting.plots import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 30
"""More classes than this are drawn as means of neighbours."""
MOST_TOGETHER = 3
"""Of more methods than this, global and personal models have figures of their own."""
ZERO_SHOT_LINE: Any = (0, (1, 1.6))
DASHED: Any = (0, (5, 2))
GLOBAL, PERSONAL = "global model", "personal models"
MODELS = {GLOBAL: "gm", PERSONAL: "pm"}
MEASURED = {GLOBAL: "global model on all test rows", PERSONAL: "personal models, each on its own client's test rows"}
POOLED = ", by class all clients' rows together"
Value = Callable[[Moment], float | None]
Line = tuple[Value, str]
"""What is drawn, and a note on it."""


@dataclass(frozen=True)
class Served:
    """A group of runs, and seed by seed what its events say of frequent and rare classes."""

    group: Group

    @cached_property
    def seeds(self) -> list[Balance]:
        return [Balance.of(run) for run, _ in self.group.shown]

    def by_seed(self, model: str, what: str) -> dict[int, float]:
        """Of gm, pm or zero_shot its overall, head, mid, tail or beta in percent, where it is known."""
        runs = (run for run, _ in self.group.shown)
        found = ((run.seed, getattr(balance, model)) for run, balance in zip(runs, self.seeds, strict=True))
        values = ((seed, None if scores is None else getattr(scores, what)) for seed, scores in found)
        return {seed: 100 * value for seed, value in values if value is not None}

    def mean(self, model: str, what: str) -> tuple[float | None, float | None]:
        """Mean and deviation over the seeds."""
        return mean_and_deviation(self.by_seed(model, what).values(), 1)

    def setting(self, key: str) -> Any:
        return self.group.runs[0].start["config"]["method"].get(key)


def by_frequency(served: Sequence[Served], look: Look, where: str) -> list[Picture]:
    """Accuracy of each class over its training rows: the global and the personal models of each, and zero-shot."""
    title = "Accuracy from frequent to rare classes"
    if len(served) > MOST_TOGETHER:
        apart = [_ranked(f"{title}: {model}{where}", served, [model], look) for model in MODELS]
        return [picture for picture in apart if picture is not None]
    together = _ranked(f"{title}{where}", served, list(MODELS), look)
    return [] if together is None else [together]


def _ranked(title: str, served: Sequence[Served], models: Sequence[str], look: Look) -> Picture | None:
    lines = [
        (one, model, curve) for one in served for model in models if (curve := _by_rank(one, MODELS[model])) is not None
    ]
    if not lines:
        return None
    zero_shot = next((curve for one in served if (curve := _by_rank(one, "zero_shot")) is not None), None)
    rows = _binned(np.mean([-np.sort(-balance.class_rows) for balance in served[0].seeds], axis=0))
    sizes = {name: len(served[0].seeds[0].groups[name]) for name in GROUPS}
    classes = sum(sizes.values())
    places = (np.arange(len(rows)) + 0.5) * classes / len(rows)

    def paint(axes: Axes) -> None:
        begin = 0
        for name, size in sizes.items():
            if begin and size:
                axes.axvline(begin, color=MUTED, linewidth=1)
            if size:
                axes.text(begin + size / 2, 108, name, ha="center", va="center", color=MUTED)
            begin += size
        if zero_shot is not None:
            axes.plot(places, zero_shot, color=INK, linestyle=ZERO_SHOT_LINE, label="zero-shot, all test rows")
        for one, model, curve in lines:
            axes.plot(places, curve, color=look.colour(one.group), linestyle=_line(one, model, models, look),
                      marker=look.marker(one.group.method), markersize=4.5, linewidth=1.7,
                      label=_name(one, model, len(served), len(models)))  # fmt: skip
        every = max(1, len(rows) // 7)
        axes.set_xticks(places[::every], [f"{count:,.0f}" for count in rows[::every]])
        axes.set_xlim(0, classes)
        axes.set_ylim(-3, 115)
        axes.set_yticks(range(0, 101, 20))
        axes.grid(axis="y")
        axes.set_xlabel("training rows of the class, all clients together")
        axes.set_title("accuracy of the class, %")
        canvas.legend(axes, len(axes.get_legend_handles_labels()[0]) > 1)

    note = _pair([f"{MEASURED[model]}{POOLED if model == PERSONAL else ''}" for model in models])
    note += f" Each point: mean of about {classes / len(rows):.0f} classes." if len(rows) < classes else ""
    note += " Mean over the seeds." if any(len(one.seeds) > 1 for one in served) else ""
    return Picture(title, canvas.draw(title, HEIGHT, paint), note)


def _line(one: Served, line: str, lines: Sequence[str], look: Look) -> Any:
    """Dashed for the second of two kinds of lines; where there is one kind, each method has its own."""
    return look.own_line(one.group.method) if len(lines) == 1 else "-" if line == lines[0] else DASHED


def _name(one: Served, line: str, methods: int, lines: int) -> str:
    """Of a line in a legend: what tells it apart."""
    return ": ".join(([one.group.method] if methods > 1 else []) + ([line] if lines > 1 else [])) or line


def _pair(notes: Sequence[str]) -> str:
    """What the solid and the dashed lines are, where there are both."""
    if len(notes) == 1:
        return f"{notes[0][:1].upper()}{notes[0][1:]}." if notes[0] else ""
    return f"Solid: {notes[0]}. Dashed: {notes[1]}."


def _by_rank(one: Served, model: str) -> np.ndarray | None:
    """Accuracies from the most frequent class to the rarest, mean over the seeds: each may have another order."""
    curves = []
    for balance in one.seeds:
        scores: Scores | None = getattr(balance, model)
        if scores is not None and not np.isnan(scores.per_class).all():
            curves.append(_binned(100 * scores.per_class[np.argsort(-balance.class_rows, kind="stable")]))
    return _mean_of_known(np.array(curves)) if curves else None


def _binned(values: np.ndarray) -> np.ndarray:
    return np.array([_mean_of_known(part) for part in np.array_split(values, min(len(values), MOST_POINTS))])


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """Over the first axis; NaN where nothing is known, without a warning."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    return np.asarray(np.where(count > 0, np.where(known, values, 0).sum(axis=0) / np.maximum(count, 1), np.nan))


def branches(one: Served, where: str) -> Picture | None:
    """Which branch the right answers are due to, by group (Figure 5b); None where models have one branch only."""
    found = [shares for balance in one.seeds if (shares := balance.branch_by_group) is not None]
    means = {name: mean_and_deviation(shares[name] for shares in found)[0] for name in GROUPS}
    known = {name: share for name, share in means.items() if share is not None}
    if not known:
        return None

    def paint(axes: Axes) -> None:
        left = np.array(list(known.values()))
        places = np.arange(len(known), dtype=float)
        parts = (("global branch", left, 0 * left, COLOURS[0]), ("personal branch", 100 - left, left, COLOURS[1]))
        for label, wide, begin, colour in parts:
            axes.barh(places, wide, left=begin, height=0.66, color=colour, label=label)
            for place, share, start in zip(places, wide, begin, strict=True):
                if share >= 8:
                    axes.text(start + share / 2, place, f"{share:.0f}", ha="center", va="center", color="white")
        axes.set_yticks(places, list(known))
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(known) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the right answers, %")
        canvas.legend(axes, True)

    title = f"Which branch right answers are due to: {one.group.method}{where}"
    note = "Right answers of the personal models on the clients' own test rows; each is put down to the branch with "
    note += "the higher logit of the true class." + (" Mean over the seeds." if len(found) > 1 else "")
    return Picture(title, canvas.draw(title, 1.2 + 0.5 * len(known), paint), note)


def rounds(served: Sequence[Served], look: Look, where: str) -> list[Picture]:
    """Convergence (Figure 9), the angle between the two gradients (Figure 7) and the drift from zero-shot."""

    def draw(title: str, axis: str, lines: Mapping[str, Line], reference: tuple[str, float] | None = None) -> Any:
        return _over_rounds(served, look, title, where, axis, lines, reference)

    called = "test rows that the global model calls as zero-shot does"
    away = "mean over the test rows of KL(zero-shot || model)"
    same = f"TKL, {away} with both brought to the same entropy, so that more confidence alone does not count"
    angle = (
        "before any projection, mean over one batch of each of the clients; above 90° the task works against zero-shot"
    )
    step = "steps on the shared module, on one batch of each of the clients, after projection where there is one"
    return [
        *draw("Accuracy over the rounds", "accuracy, %", _both("overall"), _reference(served, "overall")),
        *draw("Accuracy on tail classes over the rounds", "accuracy, mean over the tail classes, %", _both("tail"),
              _reference(served, "tail")),
        *draw("Angle between task and alignment gradient", "angle, degrees", {"angle": (lambda m: m.angle, angle)},
              ("90°", 90.0)),
        *draw("Client drift", "deviation of the clients' steps, in lengths of their mean",
              {"drift": (lambda m: m.client_drift, step)}),
        *draw("Drift from zero-shot", "divergence of the global model, nats",
              {"TKL": (lambda m: m.tkl, same), "KL": (lambda m: m.kl, f"KL, {away}")}),
        *draw("Agreement with zero-shot", "test rows, %",
              {"agreement": (lambda m: _percent(m.agreement), called)}),
    ]  # fmt: skip


def _over_rounds(
    served: Sequence[Served],
    look: Look,
    title: str,
    where: str,
    axis: str,
    lines: Mapping[str, Line],
    reference: tuple[str, float] | None,
) -> list[Picture]:
    """One figure, or where there are too many methods for that one for each of the lines; none without numbers."""
    if len(served) > MOST_TOGETHER and len(lines) > 1:
        apart = [(f"{title}: {name}", {name: line}) for name, line in lines.items()]
        return [p for text, one in apart for p in _over_rounds(served, look, text, where, axis, one, reference)]
    curves = [
        (one, name, curve)
        for one in served
        for name, (value, _) in lines.items()
        if not np.isnan(curve := _curves(one, value)).all()
    ]
    if not curves or max(curve.shape[1] for *_, curve in curves) < 2:
        return []

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        if reference is not None:
            axes.axhline(reference[1], color=INK, linestyle=ZERO_SHOT_LINE, linewidth=1.6, label=reference[0])
        for one, name, curve in curves:
            measured = next(balance.moments for balance in one.seeds if balance.moments)
            x = [moment.round for moment in measured][: curve.shape[1]]
            colour = look.colour(one.group)
            axes.plot(x, _mean_of_known(curve), color=colour, linestyle=_line(one, name, list(lines), look),
                      marker=look.marker(one.group.method), markersize=4.5, markevery=max(1, len(x) // 12),
                      label=_name(one, name, len(served), len(lines)))  # fmt: skip
            if len(curve) > 1:
                low, high = (
                    np.where(np.isnan(curve).any(axis=0), np.nan, of(curve, axis=0)) for of in (np.min, np.max)
                )
                axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        axes.set_xlabel("round")
        axes.set_title(axis)
        canvas.legend(axes, len(axes.get_legend_handles_labels()[0]) > 1)

    note = _pair([note for _, note in lines.values()])
    note += " Line: mean over the seeds; band: lowest to highest seed." if any(len(c) > 1 for *_, c in curves) else ""
    return [Picture(f"{title}{where}", canvas.draw(f"{title}{where}", HEIGHT, paint), note)]


def _curves(one: Served, value: Value) -> np.ndarray:
    """A row for each seed that was measured, over the rounds that all of them have."""
    found = [[value(moment) for moment in balance.moments] for balance in one.seeds if balance.moments]
    rounds = min(map(len, found), default=0)
    return np.array([curve[:rounds] for curve in found], dtype=float).reshape(len(found) or 1, rounds)


def _reference(served: Sequence[Served], what: str) -> tuple[str, float] | None:
    level = next((mean for one in served if (mean := one.mean("zero_shot", what)[0]) is not None), None)
    return None if level is None else ("zero-shot, all test rows", level)


def _both(what: str) -> dict[str, Line]:
    """The global and the personal models: overall, or in one of the groups."""
    pooled = ", mean over the clients" if what == "overall" else POOLED
    return {
        GLOBAL: (lambda moment: _percent(getattr(moment.gm, what)), MEASURED[GLOBAL]),
        PERSONAL: (lambda moment: _percent(getattr(moment.pm, what, None)), f"{MEASURED[PERSONAL]}{pooled}"),
    }


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
