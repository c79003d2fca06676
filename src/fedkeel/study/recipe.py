"""Recipes: a paper's figures and tables as grids of experiments, at a laptop's scale and at the paper's.

A recipe is a TOML file in ``recipes/`` of this package, which its folder and name identify: ``ova-lp/ablation``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.settings import Section
from fedkeel.data.sources.base import Source
from fedkeel.personal.strategy import STRATEGIES
from fedkeel.runs.config import assignment, build, checked, given, laid, nested
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import Cell, cells, shared

Scale = Literal["laptop", "paper"]
SECTIONS = ("data", "shift", "partition", "method", "run", "report")


class Grid(Section):
    """Every method on every partition: a part of the page of its own."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """of its folder"""
    title: str
    methods: tuple[str, ...] = Field(min_length=1)
    partitions: tuple[str, ...] = Field(min_length=1)
    personal: tuple[str, ...] = ()
    """strategies that every finished run is personalised with, e.g. lp-ft:probe=10"""
    vary: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """one more axis: dotted keys and their values"""
    column: str | None = None
    """grids of the same column are one federation: its heading beside the paper, by default the title"""
    seeds: tuple[int, ...] | None = Field(None, min_length=1)
    """instead of the scale's"""
    iid: dict[str, Any] = Field(default_factory=dict)
    """dotted keys of ``vary`` that have one value on the iid partition: that of the run R is taken against"""
    follow: dict[str, str] = Field(default_factory=dict)
    """dotted keys that have the value of another one: co-teaching forgets as many rows as are labelled wrongly"""
    data: dict[str, Any] = Field(default_factory=dict)
    shift: dict[str, Any] = Field(default_factory=dict)
    partition: dict[str, Any] = Field(default_factory=dict)
    method: dict[str, Any] = Field(default_factory=dict)
    run: dict[str, Any] = Field(default_factory=dict)
    report: dict[str, Any] = Field(default_factory=dict)

    def cells(self, seeds: Sequence[int], overrides: Iterable[str] = ()) -> list[Cell]:
        """Its cells; a key that is overridden is no axis any more."""
        sections = {name: values for name in SECTIONS if (values := getattr(self, name))}
        texts = list(overrides)
        said = laid(sections, given(None, texts))
        build({}, base=shared(said), where="--set" if texts else self.name)
        taken = {text.partition("=")[0].strip() for text in texts}
        vary = {key: values for key, values in self.vary.items() if key not in taken}
        iid = {key: value for key, value in self.iid.items() if key not in taken}
        follow = {key: other for key, other in self.follow.items() if key not in taken}
        return cells(said, self.methods, self.partitions, seeds, vary, iid, follow)

    @property
    def source(self) -> Source:
        """Where its rows come from, as the recipe has it."""
        return Source.of(source=self.data.get("source", Source.usual))

    def at(self, places: Mapping[str, str]) -> Grid:
        """The same with its dataset in another file or folder, if its name is among those that are elsewhere."""
        place = places.get(self.source.dataset)
        if place is None:
            return self
        source = f"{self.source.source.partition(':')[0]}:{place}"
        return self.model_copy(update={"data": {**self.data, "source": source}})

    def strategies(self, overrides: Iterable[str] = ()) -> list[Variant]:
        """What its runs are personalised with; ``personal.key=value`` goes to the strategies that have such a key."""
        said = nested(dict(assignment(text) for text in overrides)).get("personal", {})
        found = []
        for variant in map(Variant.parse, self.personal):
            fields = STRATEGIES[variant.name].model_fields
            own = {key: value for key, value in said.items() if key in fields}
            found.append(Variant(variant.name, {**variant.settings, **own}))
            checked(STRATEGIES[variant.name], found[-1].settings, f"{self.name}: {found[-1]}", prefix="personal.")
        return found


class Plan(Section):
    """A recipe at one scale."""

    seeds: tuple[int, ...] = Field(min_length=1)
    needs: str
    """time, data and encoders that it takes, in a few words"""
    grids: tuple[Grid, ...] = ()
    figures: tuple[Literal["theory"], ...] = ()
    """keys of ``reporting.figures.FIGURES``: what needs no runs"""
    features: Literal["raw", "l2", "centred"] | None = None
    """``data.features`` of all its grids that say nothing else"""

    @model_validator(mode="after")
    def _has_features(self) -> Self:
        for grid in self.grids if self.features else ():
            grid.data.setdefault("features", self.features)
        return self

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        if not self.grids and not self.figures:
            raise ValueError("there should be grids or figures")
        return self


class Recipe(Section):
    title: str
    about: str
    shows: str
    """which figures and tables, in a few words"""
    paper: str | None = None
    """a key of ``reporting.papers.PAPERS``"""
    notes: tuple[str, ...] = ()
    scales: dict[Scale, Plan]


def recipes() -> dict[str, Recipe]:
    """Every recipe by name."""
    found = {}
    for folder in _sorted(files("fedkeel.study").joinpath("recipes")):
        for file in _sorted(folder):
            found[f"{folder.name}/{file.name.removesuffix('.toml')}"] = parse(file.read_text("utf-8"), file.name)
    return found


def find(name: str) -> Recipe:
    known = recipes()
    if name not in known:
        raise unknown("recipe", name, known)
    return known[name]


def parse(text: str, where: str) -> Recipe:
    """The recipe of a TOML text; what is wrong with it is told in one line that names ``where`` it stands."""
    try:
        return Recipe.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FedkeelError(f"{where} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise FedkeelError(f"{where}: {unknown('key', key, _keys(first['loc']))}") from None
        wrong = first["msg"]
        raise FedkeelError(f"{where}: {key}: {wrong[0].lower()}{wrong[1:]}") from None


def _keys(path: Sequence[int | str]) -> list[str]:
    """The keys that could stand where a wrong one does."""
    models: dict[int, type[Section]] = {1: Recipe, 3: Plan}
    model = models.get(len(path), Grid)
    return [".".join(map(str, [*path[:-1], field])) for field in model.model_fields]


def _sorted(folder: Traversable) -> list[Traversable]:
    return sorted((entry for entry in folder.iterdir() if not entry.name.startswith((".", "_"))), key=lambda e: e.name)
