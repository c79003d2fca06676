"""A grid of experiments: every method on every partition with every seed, each cell with a folder name of its own.

A method or a partition may carry settings, ``ova-lp:stages=1`` or ``dirichlet:alpha=0.1``, and there may be one more
axis of any keys. All mistakes are told before the first cell runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedkeel.core.atomic import safe_name
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import METHODS
from fedkeel.data.partition import known
from fedkeel.reporting.tables import IID
from fedkeel.runs.config import Experiment, Said, build, laid, nested, value_of


@dataclass(frozen=True)
class Variant:
    """A name with settings that are not the usual ones."""

    name: str
    settings: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Variant:
        """``name`` or ``name:key=value:key=value``; values are read as --set reads them."""
        name, *parts = (part.strip() for part in text.split(":"))
        settings = {}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or not key.strip() or not name:
                raise FedkeelError(f"{text!r}: expected name:key=value, e.g. ova-lp:stages=1")
            settings[key.strip()] = value_of(value)
        return cls(name, settings)

    def __str__(self) -> str:
        return ":".join([self.name, *_pairs(self.settings)])

    @property
    def label(self) -> str:
        """For the name of a folder, e.g. ova-lp_stages=1."""
        return safe_name("_".join([self.name, *_pairs(self.settings)]))


@dataclass(frozen=True)
class Cell:
    """One run of a grid, and where in the grid it stands."""

    experiment: Experiment
    method: Variant
    partition: Variant
    point: Mapping[str, Any]
    """The values of the extra axis, by dotted key."""

    @property
    def label(self) -> str:
        """The name of its folder, e.g. ova-lp_stages=1-shard-1-seed0."""
        point = {key.rpartition(".")[2]: value for key, value in self.point.items()}
        along = [safe_name(pair) for pair in _pairs(point)]
        return "-".join([self.method.label, self.partition.label, *along, f"seed{self.experiment.run.seed}"])


def cells(
    base: Said,
    methods: Sequence[str],
    partitions: Sequence[str],
    seeds: Sequence[int],
    vary: Mapping[str, Sequence[Any]] | None = None,
    iid: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells of a grid in the order in which they run: the IID ones first, the others are set against them.

    A setting that only some of the methods have goes to those. ``vary`` adds an axis: each of its keys takes each of
    its values. On the IID partition the keys in ``iid`` keep the values given there.
    """
    for what, given in (("methods", methods), ("partitions", partitions), ("seeds", seeds)):
        if not given:
            raise FedkeelError(f"a comparison needs at least one of each, got no {what}")
    axes = [[(key, value) for value in values] for key, values in (vary or {}).items()]
    splits = sorted(map(Variant.parse, partitions), key=lambda split: split.name != IID)
    variants = [Variant.parse(text) for text in methods]
    fields = {key for variant in variants for key in METHODS[variant.name].model_fields}
    found: dict[str, Cell] = {}
    for along in product(*axes):
        for split, method, seed in product(splits, variants, seeds):
            point = {**dict(along), **(iid or {})} if split.name == IID else dict(along)
            own = METHODS[method.name].model_fields
            shared = {
                key: value for key, value in (base.get("method") or {}).items() if key in own or key not in fields
            }
            cell = Cell(_experiment({**base, "method": shared}, method, split, point, seed), method, split, point)
            found.setdefault(cell.label, cell)
    return list(found.values())


def _experiment(base: Said, method: Variant, split: Variant, point: Mapping[str, Any], seed: int) -> Experiment:
    """Laid over one after the other, so that a mistake is told with where it was made."""
    sections = dict(base)
    for changes, where in (
        ({"method": {"name": method.name, **method.settings}}, f"method {method}"),
        ({"partition": {"kind": known(split.name), **split.settings}}, f"partition {split}"),
        (nested(point), "axis"),
        ({"run": {"seed": seed}}, "seeds"),
    ):
        sections = laid(sections, changes)
        experiment = build({}, base=sections, where=where)
    return experiment


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]
