"""``fedkeel reproduce``: the runs of a recipe, and the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from markupsafe import Markup

from fedkeel.commands.compare import carry_out_all, job, open_runs
from fedkeel.commands.pace import Job, Pace
from fedkeel.commands.page import DRAWING, REPORT
from fedkeel.commands.result import Result
from fedkeel.commands.there import made, shown
from fedkeel.core.errors import FedkeelError, Missing, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.core.wrap import wrapped
from fedkeel.data.loading import load
from fedkeel.papers import PAPERS
from fedkeel.papers import RECIPES as PUBLISHED
from fedkeel.papers.claims import Source
from fedkeel.papers.commentary import COMMENTARY
from fedkeel.papers.comparison import section
from fedkeel.papers.comparison import text as beside_text
from fedkeel.papers.figures import FIGURES
from fedkeel.papers.measures import Ran
from fedkeel.personal.models import personalize
from fedkeel.personal.plan import Wish
from fedkeel.reporting import personalised
from fedkeel.reporting.grouping import iid_twin
from fedkeel.reporting.html import About, Part, book, write
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.tables import as_text
from fedkeel.runs.federation import assemble
from fedkeel.runs.variant import Variant
from fedkeel.study.labels import Asked, changed, columns, titles
from fedkeel.study.recipe import Scale
from fedkeel.study.request import Request, lacks, needs

OTHER = "The paper's numbers are for its own data and settings, not for these."


@dataclass(frozen=True)
class Reproduction:
    """A recipe that was run: its page, and what it has beside the paper, or its results."""

    page: Path
    results: list[Result]
    parts: Sequence[Part]
    runs: Sequence[Ran]
    sources: Sequence[Source]
    figures: Sequence[Callable[[int | None], str]]
    """figures that need no runs, as text of some width"""
    changed: str
    """settings that are not the recipe's"""

    @property
    def text(self) -> str:
        """The same as plain text, in whole lines."""
        return self.told(None)

    def told(self, width: int | None) -> str:
        """As plain text so many columns wide."""
        parts = [text for part in self.parts for text in _numbers(part, width)]
        results = beside_text(self.sources, self.runs, width) or "\n\n".join(filter(None, parts))
        other = f"With other settings than the recipe's: {self.changed}." if self.changed else ""
        other += f" {OTHER}" if self.changed and self.sources else ""
        whole = [*(figure(width) for figure in self.figures), wrapped(other, width), results]
        return "\n\n".join(filter(None, whole))


def _numbers(part: Part, width: int | None) -> list[str]:
    """Of a part what its runs have come to, and their personal models."""
    return [f"{wrapped(part.title, width)}\n{as_text(part.records, width)}", personalised.as_text(part.records, width)]


def reproduce(
    name: str,
    *,
    scale: Scale = "laptop",
    grids: Sequence[str] | None = None,
    data: Mapping[str, str | Path] | None = None,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    set: Iterable[str] = (),
    watch: Watch = SILENT,
) -> Reproduction:
    """Run a recipe, and set the paper's numbers beside ours on one page; finished cells are kept.

    ``grids`` are those to run, by name, by default all. ``data`` says where datasets are that lie elsewhere than the
    recipe has them: ``{"digit5": "folders/digit5"}``. A grid whose data are missing is skipped, with a notice. The page
    shows all finished runs of the recipe in the folder, those of earlier calls too. ``plan`` tells all that beforehand.
    """
    request = Request.of(name, scale, grids, seeds, data, out, set)
    plan = request.plan
    if request.takes:
        watch.notice(request.takes)
    done = _carry_out(request, watch)
    parts, ran, found = [], [], shown(request, done, watch)
    asked = [one for one, _ in found]
    for (one, records), title, column in zip(found, titles(asked), columns(asked), strict=True):
        parts.append(Part(title, records))
        runs = [
            Ran(column, str(cell.method), str(cell.partition), record, iid_twin(record, records), named)
            for cell, record, named in zip(one.cells, records, one.datasets, strict=True)
        ]
        ran += [*runs, *(own for run in runs for own in _own(run, one))]
    watch.notice(DRAWING)
    claimed, other = PUBLISHED.get(name, ()), changed(asked)
    drawn = [FIGURES[figure](seeds or plan.seeds) for figure in plan.figures]
    opening = Markup().join(page for page, _ in drawn)
    recipe = request.recipe
    if recipe.paper is not None:
        opening = section(PAPERS[recipe.paper], recipe.shows, claimed, ran, OTHER if other else "") + opening
    about = About(recipe.title, recipe.about, recipe.notes, request.command, other)
    page = write(book(about, opening, parts, COMMENTARY), request.folder / REPORT)
    results = [result for some in done.values() for result in some]
    return Reproduction(page, results, parts, ran, claimed, [words for _, words in drawn], other)


def _own(run: Ran, one: Asked) -> list[Ran]:
    """The finished personal models of a run, as the recipe calls them."""
    there = made(run.record.folder, one.strategies)
    called = [text for text, variant in zip(one.grid.personal, one.strategies, strict=True) if variant in there]
    return run.personalised([str(variant) for variant in there], called)


def _carry_out(request: Request, watch: Watch) -> dict[str, list[Result]]:
    """Run and personalise the grids whose data are there: their runs by the grid's name."""
    asked = request.asked
    skipped = {one.grid.name: "; ".join(f"{need.where}: {need.told}" for need in lacks(one)) for one in asked}
    pace = Pace(job for one in asked if not skipped[one.grid.name] for job in _open_jobs(one, request.folder))
    done: dict[str, list[Result]] = {}
    for grid in (name for name, why in skipped.items() if why and not all(skipped.values())):
        watch.notice(f"{grid} is skipped: {skipped[grid]}")
    for one, title in zip(asked, titles(asked), strict=True):
        grid, folder = one.grid.name, request.folder / one.grid.name
        if skipped[grid]:
            continue
        watch.notice(f"{title}:")
        left = list(_open_jobs(one, request.folder))
        try:
            runs = carry_out_all(one.cells, folder, watch, pages=False, pace=pace)
            _personalize_all(one, runs, watch, pace)
            done[grid] = runs
        except Missing as error:  # what only fetching could tell
            ways = [need.give for need in needs(one) if need.lack]
            skipped[grid] = f"{error}{'; give it with ' if ways else ''}{' and '.join(ways)}"
            pace.without(left)
            watch.notice(f"{grid} is skipped: {skipped[grid]}")
    if asked and not done:
        why = "; ".join(f"{grid}: {text}" for grid, text in skipped.items())
        raise FedkeelError(f"nothing of {request.name} can be run here, all that it needs is missing. {why}")
    return done


def _open_jobs(one: Asked, folder: Path) -> Iterator[Job]:
    """What is still to be done of a grid."""
    runs = folder / one.grid.name
    yield from map(job, open_runs(one.cells, runs))
    for cell in one.cells:
        there = made(runs / cell.label, one.strategies)
        yield from (_job(variant) for variant in one.strategies if variant not in there)


def _job(variant: Variant) -> Job:
    return "personalise", str(variant)


def _personalize_all(one: Asked, runs: Sequence[Result], watch: Watch, pace: Pace) -> None:
    """Personalise every run of a grid in every way, as far as that was not done."""
    rows = lru_cache(maxsize=1)(lambda data: load(data, notice=watch.notice))
    for number, (cell, run) in enumerate(zip(one.cells, runs, strict=True), 1):
        there = made(run.folder, one.strategies)
        for variant in (variant for variant in one.strategies if variant not in there):
            name = f"{cell.label}: {variant}"
            watch.begun(number, len(one.cells), name)
            dataset = rows(cell.experiment.data)
            pace.begun()
            try:
                models = personalize(
                    run.folder, variant, partial(assemble, dataset=dataset, watch=watch), Wish.of(str(variant)), watch
                )
            except KeyboardInterrupt:
                raise Stopped(f"stopped in {cell.label}, {variant}: the same command continues there") from None
            pace.ended(_job(variant))
            local = Personal.of(models).local
            outcome = "" if local is None else f", {100 * local:.2f} % at home"
            watch.ended(number, len(one.cells), f"{name}{outcome}", pace.left())
