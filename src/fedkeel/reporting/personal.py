"""Personal models on the page: which model was tested on which data stands beside every number.

The names are those of ``personal_numbers``; columns are those of LP-FT's tables (arXiv 2511.12695), and what its text
defines instead has a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedkeel.core.wrap import wrapped
from fedkeel.reporting import personal_plots as draw
from fedkeel.reporting import sweeps
from fedkeel.reporting.canvas import Picture
from fedkeel.reporting.columns import columns
from fedkeel.reporting.commentary import Commentary
from fedkeel.reporting.grouping import Group
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.personalised import Way, label, mean_and_deviation, waiting, ways
from fedkeel.reporting.tables import NOTHING, Table, format_seconds, format_spread
from fedkeel.runs.events import Record

BEFORE = "global model (before)"
MOST_MAPS = 12
"""More heat maps than this are left to the pages of single runs."""
TABULATED = {
    "local": "Local: own test set",
    "global_incl": "Global: all test sets",
    "worst": "Worst of the other clients' test sets",
    "c_std": "C-Std over all test sets",
    "average_lgw": "Average of Local, Global, Worst",
}
PRINTED = {
    "local": "Local: own test set",
    "global_excl": "Global: other clients' test sets",
    "worst_text": "Worst of the own test sets",
    "c_std_text": "C-Std of the own test sets",
    "average_lg": "Average of Local, Global (others')",
}


@dataclass(frozen=True)
class PersonalSection:
    """How well the models serve that clients have for themselves."""

    basis: str
    """what the test set of a client is"""
    tabulated: Table
    seeds: int
    waiting: Sequence[str]
    """attempts that have not ended"""
    remarks: Sequence[str]
    figures: Sequence[Sequence[Picture]]
    mapped: bool
    """whether the figures say which model does how well on whose test set"""
    moved: Table | None
    printed: Table | None
    """both None where no model was tested elsewhere"""


def section(found: Sequence[Group], commentary: Commentary) -> PersonalSection | None:
    """Tables, remarks and figures of the personal models of some runs; None where there are none."""
    grouped = [made for group in found if (made := ways([group]))]
    if not grouped:
        return None
    several, every = len(grouped) > 1, [way for made in grouped for way in made]
    named = [(made, f" ({made[0].group.method}, {made[0].group.partition})" if several else "") for made in grouped]
    remarks = [line for made, where in named for line in commentary.on_personal(made, where)]
    mapped = sum(len(_typical(made)) for made in grouped) <= MOST_MAPS
    drawn = [_pictures(made, where, mapped) for made, where in named]
    alone = all(len(pictures) == 1 for pictures in drawn)
    # A method's own models are not tested elsewhere.
    tested = [away for made in grouped if (away := [way for way in made if way.mean("global_incl")[0] is not None])]
    return PersonalSection(
        basis=" / ".join(dict.fromkeys(personal.basis for way in every for personal in way.seeds)),
        tabulated=_table(grouped, TABULATED, several),
        seeds=max(len(way.records) for way in every),
        waiting=waiting(found),
        remarks=[*remarks, *(line for made in grouped for line in _probing(made))],
        figures=[[picture for pictures in drawn for picture in pictures]] if alone else drawn,
        mapped=mapped,
        moved=_moved(tested, several) if tested else None,
        printed=_table(tested, PRINTED, several) if tested else None,
    )


def as_text(records: Sequence[Record], width: int | None = None) -> str:
    """The tabulated numbers of some personal models as plain text, in whole lines or so many columns wide."""
    found = [(label(record), Personal.of(record)) for record in records if record.personal]
    before = next((personal.unchanged for _, personal in found if personal.unchanged), None)
    rows = []
    for name, personal in ([(BEFORE, before)] if before else []) + found:
        numbers = [mean_and_deviation([getattr(personal, metric)]) for metric in TABULATED]
        rows.append([name, *(format_spread(*number, digits=2) for number in numbers)])
    basis = " / ".join(dict.fromkeys(personal.basis for _, personal in found))
    note = (
        f"Personal models, mean over clients. Local: on the own test set ({basis}). Global: on all clients' test sets. "
        "Worst: on the worst of the others'. C-Std: over all test sets. Average: of Local, Global, Worst."
    )
    head = ["Accuracy, %", "Local", "Global", "Worst", "C-Std", "Average"]
    return f"{columns(head, rows, 1, width)}\n{wrapped(note, width)}"


def _pictures(made: Sequence[Way], where: str, mapped: bool) -> list[Picture]:
    """Of one group of runs."""
    few = _typical(made)
    pictures = [draw.at_home(few, where), draw.everywhere(few, where), draw.distortion(made, where)]
    pictures += [sweeps.curves(panel, where) for panel in sweeps.panels(made)]
    pictures += [sweeps.flooding(made, where)]
    pictures += [draw.heat_map(way, where) for way in few] if mapped else []
    return [picture for picture in pictures if picture is not None]


def _typical(made: Sequence[Way]) -> list[Way]:
    """All ways, or where they are too many for one figure of each strategy the one with the best Average."""
    if len(made) <= draw.MOST_WAYS:
        return list(made)
    best: dict[str, Way] = {}
    for way in made:
        if way.name not in best or _rank(way) > _rank(best[way.name]):
            best[way.name] = way
    return list(best.values())


def _rank(way: Way) -> float:
    average, local = way.mean("average_lgw")[0], way.mean("local")[0]
    return average if average is not None else local if local is not None else -1.0


def _table(grouped: Sequence[Sequence[Way]], columns: Mapping[str, str], several: bool) -> Table:
    """Before, and each way after; group by group."""
    head = [*(["Method", "Split"] if several else []), "Model", *(f"{words}, %" for words in columns.values())]
    rows = []
    for mine in grouped:
        names = [mine[0].group.method, mine[0].group.partition] if several else []
        before = _before(mine)
        lines = [(BEFORE, [mean_and_deviation([getattr(b, key) for b in before]) for key in columns])] if before else []
        lines += [(way.label, [way.mean(key) for key in columns]) for way in mine]
        rows += [[*names, label, *(format_spread(*number, digits=2) for number in numbers)] for label, numbers in lines]
    return Table(head, rows, words=3 if several else 1)


def _before(made: Sequence[Way]) -> list[Personal]:
    """Of each seed, the global model in the place of every personal one."""
    found: dict[int, Personal] = {}
    for record in (record for way in made for record in way.records):
        unchanged = Personal.of(record).unchanged
        if unchanged is not None:
            found.setdefault(record.seed, unchanged)
    return list(found.values())


def _moved(grouped: Sequence[Sequence[Way]], several: bool) -> Table:
    head = [*(["Method", "Split"] if several else []), "Model", "Feature distortion", "Drop in Global, points"]
    head += ["Seconds per client", "FLOPs per client"]
    rows = [
        [*([way.group.method, way.group.partition] if several else []), way.label,
         format_spread(*way.mean("distortion_mean", 1), digits=3), format_spread(*way.mean("drop_in_global"), digits=2),
         format_seconds(way.spent("seconds")), format_flops(way.spent("flops"))]
        for mine in grouped
        for way in mine
    ]  # fmt: skip
    return Table(head, rows, words=3 if several else 1)


def _probing(made: Sequence[Way]) -> list[str]:
    """What linear probing costs on top of fine-tuning: of the first way that has both phases."""
    for way in made:
        probe, tune = ([way.spent(what, phase) for what in ("seconds", "flops")] for phase in ("probe", "tune"))
        if probe[0] is None or not tune[0]:
            continue
        share = f"{100 * probe[0] / tune[0]:.3g} % of the seconds"
        if probe[1] is not None and tune[1]:
            share += f" and {100 * probe[1] / tune[1]:.2g} % of the FLOPs"
        return [
            f"Extra cost of the linear probing of {way.label} on {way.group.partition}: {format_seconds(probe[0])} and "
            f"{format_flops(probe[1])} FLOPs per client (phase probe), {share} of the fine-tuning after it (phase "
            f"tune: {format_seconds(tune[0])}, {format_flops(tune[1])} FLOPs)."
        ]
    return []


def format_flops(count: float | None) -> str:
    """A count of operations: 1234567 -> '1.23 M'."""
    if count is None:
        return NOTHING
    for unit in ("", " k", " M", " G", " T"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} P"
