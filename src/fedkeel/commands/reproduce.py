"""``fedkeel reproduce``: the runs of a recipe, and the paper's numbers beside ours."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from markupsafe import Markup

from fedkeel.commands.compare import carry_out_all, open_runs
from fedkeel.commands.pace import Job, Pace
from fedkeel.commands.page import DRAWING, REPORT
from fedkeel.commands.result import Result
from fedkeel.core.errors import FedkeelError, Stopped, unknown
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
from fedkeel.reporting.grouping import iid_twin
from fedkeel.reporting.html import About, Part, book, write
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.tables import as_text
from fedkeel.runs import events
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import Cell
from fedkeel.study.labels import Asked, changed, columns, titles
from fedkeel.study.recipe import Plan, Scale, find

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
        results = beside_text(self.sources, self.runs, width) or "\n\n".join(
            f"{wrapped(part.title, width)}\n{as_text(part.records, width)}" for part in self.parts
        )
        other = f"With other settings than the recipe's: {self.changed}." if self.changed else ""
        other += f" {OTHER}" if self.changed and self.sources else ""
        parts = [*(figure(width) for figure in self.figures), wrapped(other, width), results]
        return "\n\n".join(filter(None, parts))


def reproduce(
    name: str,
    *,
    scale: Scale = "laptop",
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    set: Iterable[str] = (),
    watch: Watch = SILENT,
) -> Reproduction:
    """Run a recipe, and set the paper's numbers beside ours on one page; finished cells are kept."""
    recipe, folder, texts = find(name), Path(out or f"runs/reproduce/{name}-{scale}"), list(set)
    if scale not in recipe.scales:
        raise unknown(f"scale of {name}", scale, recipe.scales)
    plan = recipe.scales[scale]
    if texts and not plan.grids:
        raise FedkeelError(f"{name} has no runs: --set {texts[0]} can change nothing there, leave --set out")
    # All cells before any of them runs: mistakes are told first.
    to_runs, to_models = _sorted_out(texts, plan)
    asked = [Asked.of(grid, seeds or grid.seeds or plan.seeds, to_runs, to_models) for grid in plan.grids]
    strategies = [grid.strategies(to_models) for grid in plan.grids]
    pace = Pace(_open_jobs(asked, strategies, folder))
    parts, ran, results = [], [], []
    for one, title, column, mine in zip(asked, titles(asked), columns(asked), strategies, strict=True):
        watch.notice(f"{title}:")
        done = carry_out_all(one.cells, folder / one.grid.name, watch, pages=False, pace=pace)
        _personalize_all(one.cells, done, mine, watch, pace)
        records = [result.record for result in done]
        parts.append(Part(title, records))
        runs = [
            Ran(column, str(cell.method), str(cell.partition), record, iid_twin(record, records))
            for cell, record in zip(one.cells, records, strict=True)
        ]
        results += done
        made = [str(variant) for variant in mine]
        ran += [*runs, *(own for run in runs for own in run.personalised(made, one.grid.personal))]
    watch.notice(DRAWING)
    claimed, other = PUBLISHED.get(name, ()), changed(asked)
    drawn = [FIGURES[figure](seeds or plan.seeds) for figure in plan.figures]
    opening = Markup().join(page for page, _ in drawn)
    if recipe.paper is not None:
        opening = section(PAPERS[recipe.paper], recipe.shows, claimed, ran, OTHER if other else "") + opening
    command = f"fedkeel reproduce {name} --scale {scale}"
    command += f" --seeds {','.join(map(str, seeds))}" if seeds else ""
    command += f" --set {shlex.join(texts)}" if texts else ""
    about = About(recipe.title, recipe.about, recipe.notes, command, other)
    page = write(book(about, opening, parts, COMMENTARY), folder / REPORT)
    return Reproduction(page, results, parts, ran, claimed, [words for _, words in drawn], other)


def _open_jobs(asked: Sequence[Asked], strategies: Sequence[Sequence[Variant]], folder: Path) -> Iterator[Job]:
    """What is still to be done of all grids."""
    for one, mine in zip(asked, strategies, strict=True):
        runs = folder / one.grid.name
        yield from open_runs(one.cells, runs)
        yield from (_job(v) for cell in one.cells for v in mine if not _made(runs / cell.label, v))


def _sorted_out(texts: Sequence[str], plan: Plan) -> tuple[list[str], list[str]]:
    """The settings of runs, and those of personal models."""
    to_models = [text for text in texts if text.strip().startswith("personal.")]
    if to_models and not any(grid.personal for grid in plan.grids):
        raise FedkeelError(f"--set {to_models[0]}: this recipe has no personal models, leave it out")
    return [text for text in texts if text not in to_models], to_models


def _job(variant: Variant) -> Job:
    return "personalise", str(variant)


def _made(run: Path, variant: Variant) -> bool:
    """Whether all clients of a run have models of this kind."""
    made = (record for record in events.personalised(run) if record.folder.name == variant.label)
    return any(record.end and not Wish.behind(record).only for record in made)


def _personalize_all(
    grid: Sequence[Cell], runs: Sequence[Result], strategies: Sequence[Variant], watch: Watch, pace: Pace
) -> None:
    """Personalise every run of a grid in every way, as far as that was not done."""
    rows = lru_cache(maxsize=1)(lambda data: load(data, notice=watch.notice))
    for number, (cell, run) in enumerate(zip(grid, runs, strict=True), 1):
        for variant in strategies:
            if _made(run.folder, variant):
                continue
            name = f"{cell.label}: {variant}"
            watch.begun(number, len(grid), name)
            dataset = rows(cell.experiment.data)
            pace.begun()
            try:
                made = personalize(run.folder, variant, dataset, Wish.of(str(variant)), watch)
            except KeyboardInterrupt:
                raise Stopped(f"stopped in {cell.label}, {variant}: the same command continues there") from None
            pace.ended(_job(variant))
            local = Personal.of(made).local
            outcome = "" if local is None else f", {100 * local:.2f} % at home"
            watch.ended(number, len(grid), f"{name}{outcome}", pace.left())
