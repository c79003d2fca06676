"""What the grids of a recipe are called: as the recipe has it or, where ``--set`` changed it, after what is run."""

from __future__ import annotations

import json
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fedkeel.runs.config import assignment
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import Cell
from fedkeel.study.recipe import SECTIONS, Grid

NAMED = ("data.source", "data.encoder")
"""Keys that every label has without saying so."""
UNNAMED = ("auto", "none")
"""Encoders that say nothing."""
IDLE = ("data.cache", "run.threads")
"""Keys that change no result."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Asked:
    """A grid of a recipe, its cells as they will run, and in which keys they are not the recipe's.

    Where its data lie is no such key: runs on the same dataset in another place are the recipe's.
    """

    grid: Grid
    cells: Sequence[Cell]
    named: Sequence[Cell]
    """the same with their data where the recipe has them: by these they are called"""
    strategies: Sequence[Variant]
    """what their runs are personalised with"""
    changes: Mapping[str, tuple[list[str], list[str]]]
    """the values that a key has now, and those of the recipe"""

    @classmethod
    def of(
        cls,
        grid: Grid,
        seeds: Sequence[int],
        to_runs: Sequence[str],
        to_models: Sequence[str],
        places: Mapping[str, str] | None = None,
    ) -> Asked:
        """``places`` are those of datasets that lie elsewhere than the recipe has them, by name."""
        named = grid.cells(seeds, to_runs)
        cells = grid.at(places).cells(seeds, to_runs) if places else named
        plain = grid.cells(seeds) if to_runs else named
        keys = dict.fromkeys(key for key, _ in map(assignment, to_runs) if key not in IDLE)
        found = {key: (_values(named, key), _values(plain, key)) for key in keys}
        for key, value in map(assignment, to_models):
            before, after = (_personal(grid, texts, key) for texts in ((), to_models))
            if before != after:
                found[key] = ([_text(value)], before)
        changes = {key: values for key, values in found.items() if values[0] != values[1]}
        return cls(grid, cells, named, grid.strategies(to_models), changes)

    @property
    def datasets(self) -> list[str]:
        """Of each cell what its dataset is called."""
        return [cell.experiment.data.dataset for cell in self.named]

    def only(self, labels: Container[str]) -> Asked:
        """The same without its other cells."""
        cells, named = ([cell for cell in some if cell.label in labels] for some in (self.cells, self.named))
        return replace(self, cells=cells, named=named)


def titles(asked: Sequence[Asked]) -> list[str]:
    """Of each grid its part of the page: those that run on the same are told apart by what they run."""
    changed = {k: one for k, one in enumerate(asked) if one.changes}
    labels = {k: _with_changes(_label([one]), one) for k, one in changed.items()}
    what = {k: [", ".join(one.grid.methods), " and ".join(one.grid.partitions)] for k, one in changed.items()}
    made = _apart(labels, what, {k: _settings([one]) for k, one in changed.items()})
    return [made.get(k, one.grid.title) for k, one in enumerate(asked)]


def columns(asked: Sequence[Asked]) -> list[str]:
    """Of each grid the federation it belongs to: those of one name in the recipe keep one name."""
    names = [one.grid.column or one.grid.title for one in asked]
    members = {name: [one for one, mine in zip(asked, names, strict=True) if mine == name] for name in names}
    changed = {name: mine for name, mine in members.items() if any(one.changes for one in mine)}
    what = {name: [", ".join(mine[0].grid.methods)] for name, mine in changed.items()}
    labels = {name: _label(mine) for name, mine in changed.items()}
    made = _apart(labels, {name: _settings(mine) for name, mine in changed.items()}, what)
    return [made.get(name, name) for name in names]


def changed(asked: Sequence[Asked]) -> str:
    """All that ``--set`` changed, in words: data.source=digits instead of newsgroups20 / cifar10."""
    now: dict[str, list[str]] = {}
    before: dict[str, list[str]] = {}
    for key, values in ((key, values) for one in asked for key, values in one.changes.items()):
        now.setdefault(key, []).extend(values[0])
        before.setdefault(key, []).extend(values[1])
    return ", ".join(
        f"{key}={_either(now[key])}" + (f" instead of {_either(before[key])}" if before[key] else "") for key in now
    )


def _label(grids: Sequence[Asked]) -> str:
    """Source and encoder."""
    cells = [cell for one in grids for cell in one.named]
    sources, encoders = (_either(_values(cells, key)) for key in NAMED)
    return sources if encoders in UNNAMED else f"{sources} with {encoders}"


def _with_changes(label: str, one: Asked) -> str:
    said = [f"{key}={_either(now)}" for key, (now, _) in one.changes.items() if key not in NAMED]
    return f"{label} ({', '.join(said)})" if said else label


def _apart(labels: Mapping[Key, str], *facts: Mapping[Key, Sequence[str]]) -> dict[Key, str]:
    """Labels that are the same get the first facts in which they differ and, where none are left, a number."""
    made: dict[Key, str] = {}
    for label in dict.fromkeys(labels.values()):
        mine = [key for key in labels if labels[key] == label]
        if len(mine) > 1 and facts:
            own = {k: [f for f in facts[0][k] if any(f not in facts[0][other] for other in mine)] for k in mine}
            longer = {key: f"{label}: {', '.join(own[key])}" if own[key] else label for key in mine}
            made |= _apart(longer, *facts[1:])
        else:
            made |= {key: f"{label} ({number})" if number > 1 else label for number, key in enumerate(mine, 1)}
    return made


def _settings(grids: Sequence[Asked]) -> list[str]:
    """What the recipe says of all of these grids and ``--set`` did not change."""
    said = [
        {f"{section}.{key}": _text(value) for section in SECTIONS for key, value in getattr(one.grid, section).items()}
        for one in grids
    ]
    cells = [cell for one in grids for cell in one.cells]
    same = [key for key in said[0] if key not in NAMED and _values(cells, key) == [said[0][key]]]
    return [f"{key}={said[0][key]}" for key in same if not any(key in one.changes for one in grids)]


def _values(cells: Sequence[Cell], key: str) -> list[str]:
    """The values that some cells have, each once."""
    section, _, name = key.partition(".")
    found = (cell.experiment.model_dump(mode="json", include={section})[section].get(name) for cell in cells)
    return list(dict.fromkeys(_text(value) for value in found if value is not None))


def _personal(grid: Grid, texts: Sequence[str], key: str) -> list[str]:
    """The values that a key of the strategies has, where the recipe or the texts give it one."""
    values = (variant.settings.get(key.partition(".")[2]) for variant in grid.strategies(texts))
    return list(dict.fromkeys(_text(value) for value in values if value is not None))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _either(values: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(values))
