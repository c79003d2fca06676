"""Frequent and rare classes on the page: zero-shot, global and personal models, and whether FedPuReL's story holds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from fedkeel.metrics.balance import GROUPS
from fedkeel.reporting import balance_plots as draw
from fedkeel.reporting.balance_plots import Served
from fedkeel.reporting.plots import Look, Picture
from fedkeel.reporting.tables import Group, format_spread, html_table
from fedkeel.runs.config import Report
from fedkeel.runs.events import Record

ZERO_SHOT = "zero-shot"
COLUMNS = {"overall": "All", **{name: name.capitalize() for name in GROUPS}, "beta": "β"}
FAMILIES = {
    "prompt": ("promptfl", "promptfolio", "fedotp", "fedpgp"),
    "lora": ("clip-lora", "fedsa-clip-lora"),
    "adapter": ("fedclip",),
}
"""What FedPuReL is set against, by what it trains: the first is the same tuning without purification."""
METHOD = "fedpurel"
Numbers = list[tuple[float | None, float | None]]
Check = tuple[bool, str]
"""Whether something came out, and in words how."""


def parts(found: Sequence[Group], look: Look) -> list[str | list[Picture]]:
    """Table, verdicts and figures of the runs that have a long tail or start from zero-shot; nothing without any."""
    shown = [Served(group) for group in found if any(map(concerned, group.runs))]
    if not shown:
        return []
    page: list[str | list[Picture]] = [_note(_meaning(shown)), _table(shown)]
    if any(len(one.seeds) > 1 for one in shown):
        page.append(_note("Means over the seeds, ± sample standard deviation."))
    several = len(_splits(shown)) > 1
    for split in _splits(shown):
        page += [_note(line) for line in verdicts(_of(shown, split), f" on {split}" if several else "")]
    for split in _splits(shown):
        mine, where = _drawn(_of(shown, split)), f" ({split})" if several else ""
        pictures = draw.sweeps(mine, where)
        swept = len(pictures) > 0 and len(mine) > draw.MOST_TOGETHER
        pictures += [] if swept else draw.by_frequency(mine, look, where)
        pictures += [picture for one in mine if not swept and (picture := draw.branches(one, where))]
        pictures += draw.rounds(mine, look, where)
        page += [pictures] if pictures else []
    return page


def concerned(record: Record) -> bool:
    """Whether a run has a long tail, or a model that knows the classes before it is trained."""
    data, shift = record.start["data"], record.start["config"].get("shift", {})
    return "zero_shot" in data or ("class_rows" in data and shift.get("long_tail", 1.0) > 1)


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


def _table(shown: Sequence[Served]) -> str:
    """Zero-shot and then each method, split by split: the global and the personal models."""
    rows: list[list[str]] = []
    above: dict[int, str] = {}
    for split in _splits(shown):
        above[len(rows)] = split
        for name, gm, pm in _lines(_of(shown, split)):
            rows.append([name, *(format_spread(*number, digits=1) for number in [*gm, *pm])])
    head = ["Method", *[f"{words}, %" for words in COLUMNS.values()] * 2]
    table = html_table(head, rows, 1, above if len(above) > 1 else {})
    over = "".join(
        f'<th scope="colgroup" colspan="{len(COLUMNS)}">{words}</th>'
        for words in ("Global model (GM)", "Personal models (PM)")
    )
    return table.replace("<thead>", f"<thead><tr><th></th>{over}</tr>", 1)


def _lines(mine: Sequence[Served]) -> Iterable[tuple[str, Numbers, Numbers]]:
    """Zero-shot as it was run, or as the others measured it before they began; then the others."""
    ran = [one for one in mine if one.group.runs[0].method == ZERO_SHOT]
    rest = [one for one in mine if one not in ran]
    if not ran:
        nothing: Numbers = [(None, None)] * len(COLUMNS)
        before = {tuple(n): one for one in rest if (n := _numbers(one, "zero_shot"))[0][0] is not None}
        for numbers, one in before.items():  # they differ where templates or encoders do
            yield (ZERO_SHOT if len(before) == 1 else f"{ZERO_SHOT} of {one.group.method}"), list(numbers), nothing
    for one in [*ran, *rest]:
        yield one.group.method, _numbers(one, "gm"), _numbers(one, "pm")


def _numbers(one: Served, model: str) -> Numbers:
    return [one.mean(model, what) for what in COLUMNS]


def _meaning(shown: Sequence[Served]) -> str:
    """What the columns are, with the settings of these runs."""
    configs = [run.start["config"].get("report", {}) for one in shown for run in one.group.runs]
    told = dict.fromkeys((r.head, r.tail, r.balance_scale) for r in (Report(**config) for config in configs))
    head, tail, scale = (" / ".join(dict.fromkeys(f"{values[k]:g}" for values in told)) for k in range(3))
    sizes = shown[0].seeds[0].groups
    counted = ", ".join(f"{len(sizes[name])} {name}" for name in GROUPS)
    return (
        "GM: the global model on all test rows. PM: each personal model on the test rows of its own client, mean over "
        "the clients, each counted once; by class, all clients' rows together. "
        f"Head: classes with more than {head} training rows over all clients; tail: with at most {tail}; mid: between "
        f"({counted} classes). The accuracy of a group is the mean over all of its classes; a class at 0 % counts. "
        f"Balancedness β = 1/C² Σᵢ Σⱼ exp(-{scale} |aᵢ - aⱼ|) over the accuracies a of the C classes, 100 % where all "
        "are alike. That is our reading: the paper's own definition could not be had; its numbers, 25 to 30 %, lie "
        "where this form does. Thresholds and scale are report.head, report.tail and report.balance_scale."
    )


def _splits(shown: Sequence[Served]) -> list[str]:
    return list(dict.fromkeys(one.group.partition for one in shown))


def _of(shown: Sequence[Served], split: str) -> list[Served]:
    return [one for one in shown if one.group.partition == split]


def _drawn(mine: Sequence[Served]) -> Sequence[Served]:
    """Without zero-shot, which every figure has as its reference, unless there is nothing else."""
    return [one for one in mine if one.group.runs[0].method != ZERO_SHOT] or mine


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
