"""``fedkeel reproduce --dry-run``: what a recipe would run, what that needs and what of it is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkeel.commands.compare import open_runs
from fedkeel.commands.there import made
from fedkeel.core.wrap import wrapped
from fedkeel.reporting.columns import columns
from fedkeel.runs.events import EVENTS
from fedkeel.runs.folder import check
from fedkeel.study.labels import Asked
from fedkeel.study.recipe import Scale
from fedkeel.study.request import Need, Request, needs


@dataclass(frozen=True)
class Outlook:
    """A grid of a recipe before it runs: how much there is to do, and what it needs."""

    name: str
    cells: str
    """its methods, partitions, further axes and seeds"""
    runs: int
    open_runs: int
    rounds: int
    """of the runs that are not finished"""
    personal: int
    """times that a run is personalised"""
    open_personal: int
    needs: Sequence[Need]

    @classmethod
    def of(cls, one: Asked, folder: Path) -> Outlook:
        for cell in one.cells:
            if (folder / cell.label / EVENTS).exists():
                check(folder / cell.label, cell.experiment, resume=True)
        ahead = {cell.label for cell in open_runs(one.cells, folder)}
        rounds = sum(int(cell.experiment.method["rounds"]) for cell in one.cells if cell.label in ahead)
        personal = len(one.cells) * len(one.strategies)
        finished = sum(len(made(folder / cell.label, one.strategies)) for cell in one.cells)
        return cls(
            one.grid.name, _cells(one), len(one.cells), len(ahead), rounds, personal, personal - finished, needs(one)
        )

    @property
    def missing(self) -> list[Need]:
        """What keeps it from being run: with any of it, it is skipped."""
        return [need for need in self.needs if need.missing]


@dataclass(frozen=True)
class Outline:
    """What ``reproduce`` would do."""

    folder: Path
    about: str
    """a line about time, data and encoders, as the recipe says; empty where it is given others"""
    grids: Sequence[Outlook]

    @property
    def text(self) -> str:
        """The same as plain text, in whole lines."""
        return self.told(None)

    def told(self, width: int | None) -> str:
        """As plain text so many columns wide."""
        opening = wrapped(self.about, width)
        if not self.grids:
            return f"{opening}\n\nIt has no runs."
        rows = [[one.name, one.cells, *_counts(one)] for one in self.grids]
        head = ["Grid", "Cells", "Runs", "Done", "Rounds left", "Models left"]
        parts = [opening, columns(head, rows, 2, width), self._needs(width), self._sum(width)]
        return "\n\n".join(filter(None, parts))

    def _needs(self, width: int | None) -> str:
        using: dict[Need, list[str]] = {}
        for one in self.grids:
            for need in one.needs:
                using.setdefault(need, []).append(one.name)
        rows = [
            [need.where, ", ".join(names), f"{'missing: ' if need.missing else ''}{need.told}"]
            for need, names in using.items()
        ]
        return columns(["Data and encoders", "Of", "Where"], rows, 3, width)

    def _sum(self, width: int | None) -> str:
        runs, ahead, rounds, models = (
            sum(getattr(one, name) for one in self.grids) for name in ("runs", "open_runs", "rounds", "open_personal")
        )
        total = f"{ahead:,} of {runs:,} runs are to be done, {rounds:,} rounds"
        total += f", {models:,} sets of personal models" if models else ""
        lines = [wrapped(f"{total}; they are in {self.folder}.", width, 2)]
        skipped = [one.name for one in self.grids if one.missing]
        if skipped:
            words = f"{len(skipped)} of {len(self.grids)} grids would be skipped: {', '.join(skipped)}."
            lines.append(wrapped(words, width, 2))
        return "\n".join(lines)


def plan(
    name: str,
    *,
    scale: Scale = "laptop",
    grids: Sequence[str] | None = None,
    data: Mapping[str, str | Path] | None = None,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    set: Iterable[str] = (),
) -> Outline:
    """What ``reproduce`` would do with the same arguments: its runs, what is finished, what it needs, what is missing.

    No row is read and nothing is written.
    """
    request = Request.of(name, scale, grids, seeds, data, out, set)
    found = [Outlook.of(one, request.folder / one.grid.name) for one in request.asked]
    return Outline(request.folder, request.takes, found)


def _cells(one: Asked) -> str:
    """Its axes, each with all of its values, and what its runs are personalised with."""
    along = dict.fromkeys(key for cell in one.cells for key in cell.point)
    axes = [
        _each(str(cell.method) for cell in one.cells),
        _each(str(cell.partition) for cell in one.cells),
        *(f"{key} {_each(str(cell.point[key]) for cell in one.cells if key in cell.point)}" for key in along),
        f"seed {_each(str(cell.experiment.run.seed) for cell in one.cells)}",
    ]
    made = f"; personalised with {_each(map(str, one.strategies))}" if one.strategies else ""
    return f"{' × '.join(axes)}{made}"


def _each(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _counts(one: Outlook) -> list[str]:
    numbers = (one.runs, one.runs - one.open_runs, one.rounds, one.open_personal)
    return [f"{number:,}" for number in numbers]
