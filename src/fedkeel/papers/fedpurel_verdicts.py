"""Whether FedPuReL's story holds in runs: what its paper expects of it, and its sweep of lambda (Figure 8)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedkeel.reporting import canvas
from fedkeel.reporting.balance import ZERO_SHOT
from fedkeel.reporting.balance_numbers import GROUPS
from fedkeel.reporting.balance_plots import Served
from fedkeel.reporting.canvas import COLOURS, FAINT, HEIGHT, INK, MARKERS, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAMILIES = {
    "prompt": ("promptfl", "promptfolio", "fedotp", "fedpgp"),
    "lora": ("clip-lora", "fedsa-clip-lora"),
    "adapter": ("fedclip",),
}
"""What FedPuReL is set against, by what it trains: the first is the same tuning without purification."""
METHOD = "fedpurel"
STAR = "#d62728"
Check = tuple[bool, str]
"""Whether something came out, and in words how."""


def verdicts(served: Sequence[Served], where: str) -> Iterable[str]:
    """For every FedPuReL of one split what was expected of it, and whether that came out; then TKL against KL."""
    ours = [one for one in served if one.group.runs[0].method == METHOD]
    for one in ours:
        family = FAMILIES.get(str(one.setting("peft")), ())
        rivals = [other for other in served if other.group.runs[0].method in family]
        if one.setting("alignment") not in (None, "tkl", "kl") or not rivals:
            continue
        plain = [r for r in rivals if r.group.runs[0].method == family[0] and r.setting("balance") in (None, "none")]
        checks = [
            _above(one, plain[:1], "gm", "overall", "global accuracy"),
            _above(one, plain[:1], "gm", "beta", "global balancedness"),
            _tail(one),
            _above(one, rivals, "pm", "overall", "personal accuracy"),
        ]
        yield from _told(f"{one.group.method}{where}", checks)
    for one in ours:
        kl = [other for other in ours if one.setting("alignment") == "tkl" and _only_kl(one, other)]
        if kl:
            words = {"overall": "accuracy", "beta": "balancedness"}
            models = {"gm": "global", "pm": "personal"}
            checks = [_above(one, kl, m, w, f"{models[m]} {words[w]}") for w in words for m in models]
            yield from _told(f"{one.group.method}: TKL against KL{where}", checks)


def _told(who: str, checks: Iterable[Check | None]) -> Iterable[str]:
    known = [check for check in checks if check is not None]
    right, wrong = ([text for came_out, text in known if came_out is wanted] for wanted in (True, False))
    if not known:
        return
    told = [f"As the paper has it: {'; '.join(right)}."] if right else []
    told += [f"NOT as the paper has it: {'; '.join(wrong)}."] if wrong else []
    yield " ".join([f"{who}.", *told])


def _above(one: Served, others: Sequence[Served], model: str, what: str, words: str) -> Check | None:
    """Whether the mean over the seeds is above that of the best of some others; None where numbers are missing."""
    mine = one.mean(model, what)[0]
    scores = [(mean, other) for other in others if (mean := other.mean(model, what)[0]) is not None]
    if mine is None or not scores:
        return None
    rival = max(scores, key=lambda item: item[0])[1]
    named = f"{rival.group.method}, the best of {len(scores)} baselines" if len(scores) > 1 else rival.group.method
    return _compared(words, named, one.by_seed(model, what), rival.by_seed(model, what))


def _tail(one: Served) -> Check | None:
    """Whether the global model is not below zero-shot on tail classes."""
    mine, before = one.by_seed("gm", "tail"), one.by_seed("zero_shot", "tail")
    return _compared("tail accuracy", ZERO_SHOT, mine, before, equal=True) if mine and before else None


def _compared(
    words: str, whom: str, mine: Mapping[int, float], other: Mapping[int, float], equal: bool = False
) -> Check:
    """Whether the mean over the seeds is above (or ``equal``), to two digits; and in how many of the seeds it is."""
    first, second = statistics.fmean(mine.values()), statistics.fmean(other.values())

    def above(a: float, b: float) -> bool:
        return round(a - b, 2) > 0 or (equal and round(a - b, 2) == 0)

    both = [seed for seed in mine if seed in other]
    wins = sum(above(mine[seed], other[seed]) for seed in both)
    counted = f", in {wins} of {len(both)} seeds" if len(both) > 1 else ""
    told = f"{words} {first:.2f} % against {second:.2f} % of {whom} ({first - second:+.2f}{counted})"
    return above(first, second), told


def _only_kl(one: Served, other: Served) -> bool:
    """The same settings, with KL in the place of TKL."""
    mine, theirs = (served.group.runs[0].start["config"]["method"] for served in (one, other))
    return bool({**mine, "alignment": "kl"} == theirs)


def sweeps(served: Sequence[Served], where: str) -> list[Picture]:
    """Personal models over lambda, by group, the best point of each starred (Figure 8); for three values or more."""
    found: dict[str, dict[float, Served]] = {}
    for one in served:
        others = {key: value for key, value in one.group.runs[0].start["config"]["method"].items() if key != "lam"}
        if one.setting("lam") is not None:
            found.setdefault(json.dumps(others, sort_keys=True), {})[float(one.setting("lam"))] = one
    return [_sweep(dict(sorted(points.items())), where) for points in found.values() if len(points) > 2]


def _sweep(points: Mapping[float, Served], where: str) -> Picture:
    lines = {"overall": "overall", **{name: name for name in GROUPS}}
    values = {
        label: np.array([one.mean("pm", what)[0] for one in points.values()], dtype=float)
        for label, what in lines.items()
    }
    x = np.array(list(points))

    def paint(axes: Axes) -> None:
        axes.set_facecolor("none")
        for number, (label, curve) in enumerate(values.items()):
            if np.isnan(curve).all():
                continue
            colour = INK if label == "overall" else COLOURS[number - 1]
            axes.plot(x, curve, color=colour, marker=MARKERS[number], markersize=5, label=label)
            best = int(np.nanargmax(curve))
            axes.plot(x[best], curve[best], "*", color=STAR, markersize=16, markeredgecolor="white", zorder=5)
        axes.plot([], [], "*", color=STAR, markersize=12, linestyle="none", label="best")
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.grid(axis="y", color=FAINT)
        axes.set_xlabel("lambda")
        axes.set_title("accuracy of the personal models, %")
        canvas.legend(axes, True)

    method = next(iter(points.values())).group.runs[0].method
    peft = next(iter(points.values())).setting("peft")
    title = f"What lambda does to whom: {method}{f' ({peft})' if peft else ''}{where}"
    note = "Weight of the personal branch's own loss against that of both branches together. Overall: mean over the "
    note += "clients; head, mid and tail: mean over their classes, all clients' test rows together."
    note += " Mean over the seeds." if any(len(one.seeds) > 1 for one in points.values()) else ""
    return Picture(title, canvas.draw(title, HEIGHT, paint), note)
