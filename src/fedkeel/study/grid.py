"""A grid of experiments: every method on every partition with every seed, each cell with a folder name of its own.

A method or a partition may carry settings, ``ova-lp:stages=1`` or ``dirichlet:alpha=0.1``, and there may be one more
axis of any keys. All mistakes are told before the first cell runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import BaseModel

from fedkeel.core.atomic import safe_name
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import METHODS
from fedkeel.data.ownership import IID
from fedkeel.data.splits.base import SPLITS, Split
from fedkeel.runs.config import Experiment, Said, build, laid, nested
from fedkeel.runs.variant import Variant, pairs


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
        along = [safe_name(pair) for pair in pairs(point)]
        return "-".join([self.method.label, self.partition.label, *along, f"seed{self.experiment.run.seed}"])


def cells(
    base: Said,
    methods: Sequence[str],
    partitions: Sequence[str],
    seeds: Sequence[int],
    vary: Mapping[str, Sequence[Any]] | None = None,
    iid: Mapping[str, Any] | None = None,
    follow: Mapping[str, str] | None = None,
) -> list[Cell]:
    """The cells of a grid in the order in which they run: the IID ones first, the others are set against them.

    A setting that only some of the methods or of the partitions have goes to those. ``vary`` adds an axis: each of its
    keys takes each of its values. On the IID partition the keys in ``iid`` keep the values given there. The keys in
    ``follow`` have the value of the key named there.
    """
    for what, given in (("methods", methods), ("partitions", partitions), ("seeds", seeds)):
        if not given:
            raise FedkeelError(f"a comparison needs at least one of each, got no {what}")
    axes = [[(key, value) for value in values] for key, values in (vary or {}).items()]
    splits = sorted(map(Variant.parse, partitions), key=lambda split: split.name != IID)
    variants = [Variant.parse(text) for text in methods]
    found: dict[str, Cell] = {}
    for along in product(*axes):
        for split, method, seed in product(splits, variants, seeds):
            alien = {
                "method": _of_others(METHODS, variants, method),
                "partition": _of_others(SPLITS, splits, split),
            }
            own = {
                name: {key: value for key, value in (base.get(name) or {}).items() if key not in keys}
                for name, keys in alien.items()
            }
            point = {**dict(along), **(iid or {})} if split.name == IID else dict(along)
            dotted = {f"{name}.{key}" for name, keys in alien.items() for key in keys}
            point |= {key: _said(base, point, other) for key, other in (follow or {}).items()}
            point = {key: value for key, value in point.items() if key not in dotted}
            cell = Cell(_experiment({**base, **own}, method, split, point, seed), method, split, point)
            found.setdefault(cell.label, cell)
    return list(found.values())


def shared(base: Said) -> Said:
    """What all cells of a grid have: without the method, and without what only some kinds of split have."""
    some = {key for kind in SPLITS.values() for key in kind.model_fields} - Split.model_fields.keys()
    split = base.get("partition", {})
    if isinstance(split, Mapping):
        split = {key: value for key, value in split.items() if key not in some}
    return {**base, "method": {}, "partition": split}


def _said(base: Said, point: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, on an axis or where all cells have the same."""
    section, _, name = key.partition(".")
    return point[key] if key in point else (base.get(section) or {}).get(name)


def _of_others(known: Mapping[str, type[BaseModel]], all: Sequence[Variant], one: Variant) -> set[str]:
    """The settings that others of the grid have, and this one does not."""
    return {key for other in all for key in known[other.name].model_fields} - known[one.name].model_fields.keys()


def _experiment(base: Said, method: Variant, split: Variant, point: Mapping[str, Any], seed: int) -> Experiment:
    """Laid over one after the other, so that a mistake is told with where it was made."""
    sections = laid(base, {"partition": {"kind": split.name, **split.settings}})
    build({}, base=sections | {"method": {}}, where=f"partition {split}")
    for changes, where in (
        ({"method": {"name": method.name, **method.settings}}, f"method {method}"),
        (nested(point), "axis"),
        ({"run": {"seed": seed}}, "seeds"),
    ):
        sections = laid(sections, changes)
        experiment = build({}, base=sections, where=where)
    return experiment
