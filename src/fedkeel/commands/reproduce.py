"""``fedkeel reproduce``: the runs of a recipe, and the paper's numbers beside ours."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
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
from fedkeel.data.loading import load
from fedkeel.papers import PAPERS
from fedkeel.papers import RECIPES as PUBLISHED
from fedkeel.papers.commentary import COMMENTARY
from fedkeel.papers.comparison import section
from fedkeel.papers.comparison import text as beside_text
from fedkeel.papers.figures import FIGURES
from fedkeel.papers.measures import Ran
from fedkeel.personal.models import personalize
from fedkeel.personal.plan import Wish
from fedkeel.reporting.grouping import iid_twin
from fedkeel.reporting.html import Part, book, write
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.tables import as_text
from fedkeel.runs import events
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import Cell
from fedkeel.study.recipe import Plan, Scale, find


@dataclass(frozen=True)
class Reproduction:
    """A recipe that was run: its page, and as plain text what it has beside the paper, or its results."""

    page: Path
    text: str
    results: list[Result]


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
    grids = [
        (grid, grid.cells(seeds or grid.seeds or plan.seeds, to_runs), grid.strategies(to_models))
        for grid in plan.grids
    ]
    pace = Pace(
        job
        for grid, cells_of_it, strategies_of_it in grids
        for job in [
            *open_runs(cells_of_it, folder / grid.name),
            *(_job(v) for c in cells_of_it for v in strategies_of_it if not _made(folder / grid.name / c.label, v)),
        ]
    )
    parts, ran, results = [], [], []
    for grid, cells_of_it, strategies_of_it in grids:
        watch.notice(f"{grid.title}:")
        done = carry_out_all(cells_of_it, folder / grid.name, watch, pages=False, pace=pace)
        _personalize_all(cells_of_it, done, strategies_of_it, watch, pace)
        records = [result.record for result in done]
        parts.append(Part(grid.title, records))
        ran += [
            Ran(grid.column or grid.title, str(cell.method), str(cell.partition), record, iid_twin(record, records))
            for cell, record in zip(cells_of_it, records, strict=True)
        ]
        results += done
        made = [str(one) for one in strategies_of_it]
        ran += [own for run in ran[-len(done) :] for own in run.personalised(made, grid.personal)]
    watch.notice(DRAWING)
    claimed = PUBLISHED.get(name, ())
    drawn = [FIGURES[figure](seeds or plan.seeds) for figure in plan.figures]
    opening = Markup().join(page for page, _ in drawn)
    if recipe.paper is not None:
        opening = section(PAPERS[recipe.paper], recipe.shows, claimed, ran) + opening
    command = f"fedkeel reproduce {name} --scale {scale}"
    command += f" --seeds {','.join(map(str, seeds))}" if seeds else ""
    command += f" --set {shlex.join(texts)}" if texts else ""
    page = write(book(recipe.title, recipe.about, command, recipe.notes, opening, parts, COMMENTARY), folder / REPORT)
    text = beside_text(claimed, ran) or "\n\n".join(f"{part.title}\n{as_text(part.records)}" for part in parts)
    text = "\n\n".join(filter(None, [*(words for _, words in drawn), text]))
    return Reproduction(page, text, results)


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
            outcome = "" if local is None else f"  {100 * local:.2f} % at home"
            watch.ended(number, len(grid), f"{name}{outcome}", pace.left())
