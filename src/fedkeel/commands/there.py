"""What is in a recipe's folder: finished runs of earlier commands, which its page shows beside those of this one.

So a part of a recipe, one grid or one seed, never takes the place of a page that shows more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedkeel.commands.result import Result
from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import Watch
from fedkeel.personal.plan import Wish
from fedkeel.runs import events
from fedkeel.runs.events import Record
from fedkeel.runs.folder import check, stored
from fedkeel.runs.provenance import must_agree
from fedkeel.runs.summary import SUMMARY
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import Cell
from fedkeel.study.labels import Asked
from fedkeel.study.recipe import Grid
from fedkeel.study.request import Request

SEED = re.compile(r"-seed(\d+)$")
"""How the folder of a run ends."""


def made(run: Path, variants: Sequence[Variant]) -> list[Variant]:
    """Those of the ways to personalise a run in which all of its clients have models."""
    records = {record.folder.name: record for record in events.personalised(run)} if variants else {}
    found = [(variant, records.get(variant.label)) for variant in variants]
    return [variant for variant, record in found if record and record.end and not Wish.behind(record).only]


def shown(request: Request, done: Mapping[str, Sequence[Result]], watch: Watch) -> list[tuple[Asked, list[Record]]]:
    """Of each grid its runs: those just carried out, by the grid's name, and the finished ones that stand beside them.

    These have the settings that were asked for (of a grid that was not run, the recipe's own will do), whatever their
    seed, and come from the same data and code. Where their dataset lay does not matter.
    """
    agreed = [result.record for results in done.values() for result in results]
    found, others = [], []
    for grid in request.plan.grids:
        mine = {result.folder.name: result.record for result in done.get(grid.name, ())}
        one, records = _of_grid(request, grid, mine, agreed, watch)
        if records:
            found.append((one.only(records), [records[cell.label] for cell in one.cells if cell.label in records]))
        if len(records) > len(mine):
            others.append(f"{len(records) - len(mine)} of {grid.name}")
    if others:
        watch.notice(f"the page also shows finished runs of earlier commands: {', '.join(others)}")
    return found


def _of_grid(
    request: Request, grid: Grid, mine: Mapping[str, Record], agreed: list[Record], watch: Watch
) -> tuple[Asked, dict[str, Record]]:
    """A grid with all seeds that are there, and its runs by the name of their folder."""
    folder = request.folder / grid.name
    ends = [SEED.search(path.parent.name) for path in folder.glob(f"*/{SUMMARY}")]
    there = {int(end[1]) for end in ends if end} | set(request.seeds_of(grid))
    usual = grid.seeds or request.plan.seeds
    seeds = [seed for seed in usual if seed in there] + sorted(there.difference(usual))
    for plain in (False,) if mine else (False, True):
        try:
            one = request.of_grid(grid, seeds, plain=plain)
        except FedkeelError:  # a setting that this grid cannot have
            continue
        records, left_out = dict(mine), []
        for cell in one.cells:
            run = folder / cell.label
            if cell.label in mine or not (run / SUMMARY).exists():
                continue
            try:
                records[cell.label] = _finished(run, cell, agreed)
                agreed.append(records[cell.label])
            except FedkeelError as error:
                left_out.append(str(error))
        if records or plain:
            break
    for why in left_out:
        watch.notice(f"left out of the page: {why}")
    return one, records


def _finished(run: Path, cell: Cell, agreed: Sequence[Record]) -> Record:
    """The record of a finished run, if it is one of this cell and can stand beside others."""
    experiment, data = cell.experiment, stored(run).data
    if data.source != experiment.data.source and data.dataset == experiment.data.dataset:
        experiment = experiment.with_values({"data.source": data.source})
    check(run, experiment, resume=True)
    record = events.read(run)
    must_agree([*agreed, record])
    return record
