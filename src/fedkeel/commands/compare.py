"""``fedkeel compare``: a grid of runs and one page of them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fedkeel.commands.experiment import Config, held, plain
from fedkeel.commands.page import REPORT, report
from fedkeel.commands.result import Result
from fedkeel.commands.run import carry_out
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.runs.config import build, given, laid
from fedkeel.runs.events import EVENTS
from fedkeel.runs.folder import check
from fedkeel.runs.provenance import Stale, must_be_of_now
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

    A method or partition may carry settings: ``ova-lp:stages=1``, ``dirichlet:alpha=0.1``. ``config``, ``set`` and the
    sections are those of ``run``, and hold for every cell; each is a run folder in ``out``. R is the share of the
    accuracy on the iid partition that a run retains, so include ``iid``.
    """
    texts, folder, sections = list(set), Path(out), held(sections)
    base = laid(given(config, texts), plain(sections))
    build({}, base=shared(given(config)), where=str(config))  # mistakes are told with where they were made
    build({}, base=shared(base), where="--set")
    results = carry_out_all(cells(base, methods, partitions, seeds), folder, watch, pages=True)
    report([result.folder for result in results], out=folder / REPORT, watch=watch)
    return results


def carry_out_all(grid: Sequence[Cell], folder: Path, watch: Watch, pages: bool) -> list[Result]:
    """Run or continue the cells of a grid, each in its folder; with a page for each of them if asked."""
    watch = replace(watch, notice=lru_cache(maxsize=None)(watch.notice))  # what holds for every cell is told once
    rows = lru_cache(maxsize=1)(lambda data: load(data, notice=watch.notice))  # read once for the cells that share it
    _must_be_of_now(grid, folder, rows)
    results = []
    for number, cell in enumerate(grid, 1):
        watch.notice(f"{number}/{len(grid)} {cell.label}")
        data = cell.experiment.data
        try:
            results.append(carry_out(cell.experiment, folder / cell.label, True, watch, partial(rows, data), pages))
        except Stopped:
            raise Stopped(f"stopped in {cell.label}: the same command continues there") from None
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
