"""``fedkeel compare``: a grid of runs and one page of them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fedkeel.commands.experiment import Config, held, plain
from fedkeel.commands.pace import Job, Pace
from fedkeel.commands.page import DRAWING, REPORT, build_page
from fedkeel.commands.result import Result
from fedkeel.commands.run import carry_out
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.runs.config import build, given, laid
from fedkeel.runs.events import EVENTS, Record, read
from fedkeel.runs.folder import check, finished
from fedkeel.runs.provenance import Stale, must_agree, must_be_of_now
from fedkeel.runs.summary import SUMMARY
from fedkeel.study.grid import Cell, cells, shared


def compare(
    config: Config = None,
    *,
    methods: Sequence[str],
    partitions: Sequence[str],
    seeds: Sequence[int] = (0,),
    out: str | Path = "runs/compare",
    set: Iterable[str] = (),
    watch: Watch = SILENT,
    **sections: Any,
) -> list[Result]:
    """Run every method on every partition with every seed, and one report of them all; finished cells are kept.

    The page shows all finished cells in the folder, those of earlier comparisons too. A method or partition may carry
    settings: ``ova-lp:stages=1``, ``dirichlet:alpha=0.1``. ``config``, ``set`` and the sections are those of ``run``,
    and hold for every cell; each is a run folder in ``out``. R is the share of the accuracy on the iid partition that a
    run retains, so include ``iid``.
    """
    texts, folder, sections = list(set), Path(out), held(sections)
    base = laid(given(config, texts), plain(sections))
    build({}, base=shared(given(config)), where=str(config))  # mistakes are told with where they were made
    build({}, base=shared(base), where="--set")
    grid = cells(base, methods, partitions, seeds)
    results = carry_out_all(grid, folder, watch, pages=True, pace=Pace(map(job, open_runs(grid, folder))))
    watch.notice(DRAWING)
    build_page(_in_folder(folder, [result.record for result in results], watch), folder / REPORT, watch)
    return results


def open_runs(grid: Sequence[Cell], folder: Path) -> list[Cell]:
    """The cells of a grid that are still to be done."""
    return [cell for cell in grid if not (folder / cell.label / SUMMARY).exists()]


def job(cell: Cell) -> Job:
    return "run", str(cell.method)


def carry_out_all(grid: Sequence[Cell], folder: Path, watch: Watch, pages: bool, pace: Pace) -> list[Result]:
    """Run or continue the cells of a grid, each in its folder; with a page for each of them if asked."""
    watch = replace(watch, notice=lru_cache(maxsize=None)(watch.notice))  # what holds for every cell is told once

    @lru_cache(maxsize=1)  # read once for the cells that share it
    def rows(data: Source) -> Dataset:
        dataset = load(data, notice=watch.notice)
        pace.begun()
        return dataset

    _must_be_of_now(grid, folder, rows)
    results = []
    for number, cell in enumerate(grid, 1):
        kept = finished(folder / cell.label)
        if not kept:
            watch.begun(number, len(grid), cell.label)
            pace.begun()
        its_rows = partial(rows, cell.experiment.data)
        try:
            result = carry_out(cell.experiment, folder / cell.label, True, pace.of_runs(watch), its_rows, pages)
        except Stopped:
            raise Stopped(f"stopped in {cell.label}: the same command continues there") from None
        if not kept:
            pace.ended(job(cell))
        outcome = f"{cell.label}: {100 * result.accuracy:.2f} %{', kept' if kept else ''}"
        watch.ended(number, len(grid), outcome, pace.left())
        results.append(result)
    return results


def _must_be_of_now(grid: Sequence[Cell], folder: Path, rows: Callable[[Source], Dataset]) -> None:
    """Before any cell runs: those that are there already have the same settings, and come from what is there now."""
    there = [cell for cell in grid if (folder / cell.label / EVENTS).exists()]
    stale: list[Stale] = []
    for cell in there:
        check(folder / cell.label, cell.experiment, resume=True)
        try:
            must_be_of_now(folder / cell.label, cell.experiment, partial(rows, cell.experiment.data))
        except Stale as found:
            stale.append(found)
    if stale:
        what = folder if len(stale) == len(there) else ", ".join(str(one.folder) for one in stale)
        raise FedkeelError(
            f"{stale[0].what} since {stale[0].folder} was run: delete {what} and the same command runs it again, or "
            "choose another --out"
        )


def _in_folder(folder: Path, asked: Sequence[Record], watch: Watch) -> list[Record]:
    """The runs that were asked for, and all other finished ones in the folder that are of the same data and code."""
    found, data = {record.folder.name: record for record in asked}, asked[0].start["data"]["source"]
    for path in sorted(folder.glob(f"*/{SUMMARY}")):
        if path.parent.name in found:
            continue
        try:
            record = read(path.parent)
            must_agree([*asked, record])
        except FedkeelError as error:
            watch.notice(f"left out of the page: {error}")
            continue
        if record.end is not None and record.start["data"]["source"] == data:
            found[path.parent.name] = record
    return list(found.values())
