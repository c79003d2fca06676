"""Personal models on the page: which model was tested on which data stands beside every number.

The names are those of ``metrics.personal``; columns are those of LP-FT's tables (arXiv 2511.12695), and what its text
defines instead has a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import StringIO

from fedkeel.metrics.personal import Personal
from fedkeel.reporting import personal_plots as draw
from fedkeel.reporting import sweeps
from fedkeel.reporting.plots import Picture
from fedkeel.reporting.tables import NOTHING, Group, format_seconds, format_spread, html_table
from fedkeel.reporting.ways import ORDER, Way, label, mean_and_deviation, waiting, ways
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
MEANING = (
    "Local: each personal model on the test set of its own client. Global: each on the test sets of all clients, its "
    "own included. Worst: each on the one test set of another client that it does worst on. C-Std: the standard "
    "deviation of one model over the test sets of all clients (lower is better). All are means over the personal "
    "models. Average: (Local + Global + Worst) / 3. These are what the tables of LP-FT (arXiv 2511.12695) hold. The "
    "first row is the global model in the place of every personal one."
)
PRINTED_MEANING = (
    "The text of LP-FT defines four of them otherwise than its tables hold them: Global on the other clients' test "
    "sets only, Worst as the lowest of the local accuracies, C-Std as their standard deviation, Average as (Local + "
    "Global) / 2. Not to be set beside the paper's tables."
)
MOVED_MEANING = (
    "Distortion: mean distance (l2) between the features of the global and of the personal model, over the training "
    "rows of the model's own client. Drop: accuracy of the global model minus that of the personal models, both on the "
    "test sets of all clients. FLOPs are estimates."
)


def parts(found: Sequence[Group]) -> list[str | list[Picture]]:
    """Tables, notes and figures of the personal models of some runs; nothing where there are none."""
    made = ways(found)
    if not made:
        return []
    several = len({id(way.group) for way in made}) > 1
    shown: list[str | list[Picture]] = [
        _note(f"{_basis(made)} {MEANING}"),
        _table(made, TABULATED, several),
        _seeds_note(made, waiting(found)),
        *(_note(line) for line in _verdicts(made, several)),
        *(_note(line) for line in _probing(made)),
    ]
    mapped = sum(len(_typical(_of(made, group))) for group in _groups(made)) <= MOST_MAPS
    drawn = [
        _pictures(_of(made, group), f" ({group.method}, {group.partition})" if several else "", mapped)
        for group in _groups(made)
    ]
    alone = all(len(pictures) == 1 for pictures in drawn)
    shown += [[picture for pictures in drawn for picture in pictures]] if alone else drawn
    if not mapped:
        shown.append(_note("Which model does how well on whose test set is drawn on the page of each single run."))
    tested = [way for way in made if way.mean("global_incl")[0] is not None]  # a method's own models are not, elsewhere
    if tested:
        shown += ["<h3>What moved, and what it took</h3>", _note(MOVED_MEANING), _moved(tested, several)]
        shown += ["<h3>As the paper's text defines them</h3>", _note(PRINTED_MEANING), _table(tested, PRINTED, several)]
    return shown


def as_text(records: Sequence[Record]) -> str:
    """The tabulated numbers of some personal models as plain text, at most 80 columns wide."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = [(label(record), Personal.of(record)) for record in records if record.personal]
    before = next((personal.unchanged for _, personal in found if personal.unchanged), None)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("Accuracy, %", overflow="fold")
    for head in ("Local", "Global", "Worst", "C-Std", "Average"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, personal in ([(BEFORE, before)] if before else []) + found:
        numbers = [mean_and_deviation([getattr(personal, metric)]) for metric in TABULATED]
        table.add_row(*map(Text, [name, *(format_spread(*number, digits=2) for number in numbers)]))
    out = StringIO()
    console = Console(file=out, width=80, color_system=None)
    console.print(table)
    basis = " / ".join(dict.fromkeys(personal.basis for _, personal in found))
    console.print(
        f"Personal models, mean over clients. Local: on the own test set ({basis}). Global: on all clients' test sets. "
        "Worst: on the worst of the others'. C-Std: over all test sets. Average: of Local, Global, Worst.",
        highlight=False,
    )
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _verdicts(made: Sequence[Way], several: bool) -> Iterable[str]:
    """For every group of runs which of the paper's strategies is best, and whether that is LP-FT, as it claims."""
    for group in _groups(made):
        ranked = [way for way in _of(made, group) if way.name in ORDER]
        if len(ranked) < 2 or "lp-ft" not in {way.name for way in ranked}:
            continue
        found = []
        for metric, words in (("average_lgw", "Average"), ("global_incl", "Global")):
            means = [(way.mean(metric)[0], way) for way in ranked]
            scores = [(score, way) for score, way in means if score is not None]
            best, ours = max(score for score, _ in scores), max(score for score, way in scores if way.name == "lp-ft")
            winner = next(way for score, way in scores if score == best)
            behind = "" if winner.name == "lp-ft" else f", {best - ours:.1f} points above lp-ft"
            found.append(f"best {words}: {winner.label} ({best:.1f} %{behind})")
        where = f" ({group.method}, {group.partition})" if several else ""
        yield f"Of the paper's strategies{where}, {'; '.join(found)}. The paper finds LP-FT best in both on most data."


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


def _table(made: Sequence[Way], columns: Mapping[str, str], several: bool) -> str:
    """Before, and each way after; group by group."""
    head = [*(["Method", "Split"] if several else []), "Model", *(f"{words}, %" for words in columns.values())]
    rows = []
    for group in _groups(made):
        mine = _of(made, group)
        names = [group.method, group.partition] if several else []
        before = _before(mine)
        lines = [(BEFORE, [mean_and_deviation([getattr(b, key) for b in before]) for key in columns])] if before else []
        lines += [(way.label, [way.mean(key) for key in columns]) for way in mine]
        rows += [[*names, label, *(format_spread(*number, digits=2) for number in numbers)] for label, numbers in lines]
    return html_table(head, rows, words=3 if several else 1)


def _before(made: Sequence[Way]) -> list[Personal]:
    """Of each seed, the global model in the place of every personal one."""
    found: dict[int, Personal] = {}
    for record in (record for way in made for record in way.records):
        unchanged = Personal.of(record).unchanged
        if unchanged is not None:
            found.setdefault(record.seed, unchanged)
    return list(found.values())


def _moved(made: Sequence[Way], several: bool) -> str:
    head = [*(["Method", "Split"] if several else []), "Model", "Feature distortion", "Drop in Global, points"]
    head += ["Seconds per client", "FLOPs per client"]
    rows = [
        [*([way.group.method, way.group.partition] if several else []), way.label,
         format_spread(*way.mean("distortion_mean", 1), digits=3), format_spread(*way.mean("drop_in_global"), digits=2),
         format_seconds(way.spent("seconds")), format_flops(way.spent("flops"))]
        for way in made
    ]  # fmt: skip
    return html_table(head, rows, words=3 if several else 1)


def _probing(made: Sequence[Way]) -> Iterable[str]:
    """What linear probing costs on top of fine-tuning: of the first way in a group of runs that has both phases."""
    told: set[int] = set()
    for way in made:
        if id(way.group) in told:
            continue
        probe, tune = ([way.spent(what, phase) for what in ("seconds", "flops")] for phase in ("probe", "tune"))
        if probe[0] is None or not tune[0]:
            continue
        told.add(id(way.group))
        share = f"{100 * probe[0] / tune[0]:.3g} % of the seconds"
        if probe[1] is not None and tune[1]:
            share += f" and {100 * probe[1] / tune[1]:.2g} % of the FLOPs"
        yield (
            f"Extra cost of the linear probing of {way.label} on {way.group.partition}: {format_seconds(probe[0])} and "
            f"{format_flops(probe[1])} FLOPs per client (phase probe), {share} of the fine-tuning after it (phase "
            f"tune: {format_seconds(tune[0])}, {format_flops(tune[1])} FLOPs)."
        )


def format_flops(count: float | None) -> str:
    """A count of operations: 1234567 -> '1.23 M'."""
    if count is None:
        return NOTHING
    for unit in ("", " k", " M", " G", " T"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} P"


def _basis(made: Sequence[Way]) -> str:
    found = dict.fromkeys(personal.basis for way in made for personal in way.seeds)
    return f"Accuracy in %. The test set of a client: {' / '.join(found)}."


def _seeds_note(made: Sequence[Way], open_ones: int) -> str:
    seeds = any(len(way.records) > 1 for way in made)
    text = ["Means over the seeds, ± sample standard deviation."] if seeds else []
    if open_ones:
        text.append(f"{open_ones} not finished and left out: fedkeel personalize, with the same words, makes it whole.")
    return _note(" ".join(text)) if text else ""


def _groups(made: Sequence[Way]) -> list[Group]:
    return list({id(way.group): way.group for way in made}.values())


def _of(made: Sequence[Way], group: Group) -> list[Way]:
    return [way for way in made if way.group is group]


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
