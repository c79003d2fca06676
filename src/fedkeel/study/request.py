"""What is asked of a recipe: which of its grids, with which seeds, data and settings, and what is missing for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.data.presence import Lack
from fedkeel.models.presence import lack_of_encoder
from fedkeel.runs.config import assignment
from fedkeel.study.labels import NAMED, Asked
from fedkeel.study.recipe import Grid, Plan, Recipe, Scale, find


class Need(NamedTuple):
    """A dataset or an encoder that a grid needs."""

    name: str
    where: str
    """how a configuration says it"""
    lack: Lack | None
    give: str
    """how the user says where it is"""
    place: str = ""
    """the file or folder, of what is one and is here"""

    @property
    def missing(self) -> bool:
        """Whether it is not here and cannot be fetched."""
        return self.lack is not None and not self.lack.fetched

    @property
    def told(self) -> str:
        """What is missing, and what to do."""
        if self.lack is None:
            return f"here, {self.place}" if self.place else "here"
        return f"{self.lack.what}{f'; give it with {self.give}' if self.missing and self.lack.elsewhere else ''}"


@dataclass(frozen=True)
class Request:
    name: str
    recipe: Recipe
    scale: Scale
    folder: Path
    grids: Sequence[str]
    """by name; none = all"""
    seeds: Sequence[int]
    """none = the recipe's own"""
    data: Mapping[str, str]
    """files or folders of datasets that lie elsewhere than the recipe has them"""
    texts: Sequence[str]

    @classmethod
    def of(
        cls,
        name: str,
        scale: Scale,
        grids: Sequence[str] | None,
        seeds: Sequence[int] | None,
        data: Mapping[str, str | Path] | None,
        out: str | Path | None,
        texts: Iterable[str],
    ) -> Request:
        """Checked: mistakes are told before any cell runs."""
        recipe, folder = find(name), Path(out or f"runs/reproduce/{name}-{scale}")
        if scale not in recipe.scales:
            raise unknown(f"scale of {name}", scale, recipe.scales)
        places = {dataset: str(place) for dataset, place in (data or {}).items()}
        request = cls(name, recipe, scale, folder, list(grids or ()), list(seeds or ()), places, list(texts))
        request._must_name_what_there_is()
        _ = request.asked
        return request

    @property
    def plan(self) -> Plan:
        return self.recipe.scales[self.scale]

    @cached_property
    def asked(self) -> list[Asked]:
        """The grids that were chosen, in the order of the recipe."""
        chosen = [grid for grid in self.plan.grids if not self.grids or grid.name in self.grids]
        return [self.of_grid(grid, self.seeds_of(grid)) for grid in chosen]

    @property
    def takes(self) -> str:
        """A line about time, data and encoders, as the recipe says; empty where it is given others."""
        other = any(key in one.changes for one in self.asked for key in NAMED)
        return "" if other else f"{self.name} at the {self.scale} scale needs: {self.plan.needs}"

    def seeds_of(self, grid: Grid) -> Sequence[int]:
        return self.seeds or grid.seeds or self.plan.seeds

    def of_grid(self, grid: Grid, seeds: Sequence[int], *, plain: bool = False) -> Asked:
        """A grid with the settings that were asked for or, ``plain``, with the recipe's own."""
        to_models = [text for text in self.texts if text.strip().startswith("personal.")]
        to_runs = [text for text in self.texts if text not in to_models]
        return Asked.of(grid, seeds, () if plain else to_runs, () if plain else to_models, self.data)

    @property
    def command(self) -> str:
        """The command that asks for this, in its default folder."""
        words = ["fedkeel", "reproduce", self.name, "--scale", self.scale]
        words += ["--grid", ",".join(self.grids)] if self.grids else []
        words += ["--seeds", ",".join(map(str, self.seeds))] if self.seeds else []
        words += [word for name, place in self.data.items() for word in ("--data", f"{name}={place}")]
        words += ["--set", *self.texts] if self.texts else []
        return shlex.join(words)

    def _must_name_what_there_is(self) -> None:
        grids, texts = self.plan.grids, self.texts
        names, where = [grid.name for grid in grids], f"{self.name} at the {self.scale} scale"
        for got in self.grids:
            if got not in names:
                raise FedkeelError(f"{where} has no grid {got!r}: {_listed(names)}")
        if texts and not grids:
            raise FedkeelError(f"{self.name} has no runs: --set {texts[0]} can change nothing there, leave --set out")
        to_models = [text for text in texts if text.strip().startswith("personal.")]
        if to_models and not any(grid.personal for grid in grids):
            raise FedkeelError(f"--set {to_models[0]}: this recipe has no personal models, leave it out")
        if self.data and any(assignment(text)[0] == "data.source" for text in texts):
            raise FedkeelError("--set data.source=... replaces the data of every grid: leave it or --data out")
        known = {grid.source.dataset: grid for grid in grids}
        for got, place in self.data.items():
            if got not in known:
                raise FedkeelError(f"--data {got}={place}: {where} uses no dataset {got!r}: {_listed(list(known))}")
            lack = known[got].at(self.data).source.missing()
            if lack is not None and not lack.fetched:
                raise FedkeelError(f"--data {got}={place}: {lack.what}")


def _listed(names: Sequence[str]) -> str:
    return f"it has {', '.join(names)}" if names else "it has none"


def needs(one: Asked) -> list[Need]:
    """What the cells of a grid read, each thing once."""
    found: dict[str, Need] = {}
    for cell, named in zip(one.cells, one.named, strict=True):
        data, name = cell.experiment.data, named.experiment.data.dataset
        if data.source not in found:
            place = str(data.path.absolute()) if data.reference and data.path.exists() else ""
            found[data.source] = Need(name, data.source, data.missing(), f"--data {name}=PATH", place)
        if data.encoder not in found:
            where = f"encoder {data.encoder}"
            found[data.encoder] = Need(where, where, lack_of_encoder(data.encoder), "--set data.encoder=hf:FOLDER")
    return list(found.values())


def lacks(one: Asked) -> list[Need]:
    """What keeps a grid from being run."""
    return [need for need in needs(one) if need.missing]
