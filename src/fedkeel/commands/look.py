"""What can be looked at without a run: a split, encoded features, what there is to choose from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkeel.commands.experiment import Config, experiment, held
from fedkeel.core.errors import unknown
from fedkeel.core.method import METHODS
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.describe import Figures, describe
from fedkeel.data.duplicates import Duplicates
from fedkeel.data.loading import load
from fedkeel.data.manifest import Manifest
from fedkeel.data.sources.base import SOURCES
from fedkeel.data.splits.base import SPLITS
from fedkeel.methods.dual.peft.module import MODULES
from fedkeel.models.cache import Encoded, features
from fedkeel.models.encoders import ENCODERS
from fedkeel.personal.strategy import STRATEGIES
from fedkeel.runs.federation import divide
from fedkeel.runs.observers.base import OBSERVERS


@dataclass(frozen=True)
class Split:
    """Who owns which row, and how skewed that is."""

    manifest: Manifest
    labels: np.ndarray
    class_names: tuple[str, ...]
    figures: Figures
    duplicates: Duplicates
    """test rows that are training rows as well"""


def partition(config: Config = None, *, set: Iterable[str] = (), watch: Watch = SILENT, **sections: Any) -> Split:
    """The split of an experiment, before anything is trained."""
    sections = held(sections)
    exp = experiment(config, set=set, **sections)
    dataset = load(exp.data, notice=watch.notice)
    manifest, labels, _, duplicates = divide(exp, dataset, watch)
    figures = describe(manifest, labels, dataset.class_names)
    return Split(manifest, labels, dataset.class_names, figures, duplicates)


def encode(config: Config = None, *, set: Iterable[str] = (), watch: Watch = SILENT, **sections: Any) -> Encoded:
    """Fill the feature cache, or find that it is full already."""
    sections = held(sections)
    exp = experiment(config, set=set, **sections)
    rows = load(exp.data, notice=watch.notice)
    return features(exp.data, rows, progress=watch.encoded, notice=watch.notice, keep=True)


def catalogue(what: str) -> dict[str, str]:
    """What exists of methods, strategies, partitions, sources, encoders, modules or observers: name -> one line."""
    match what:
        case "methods":
            return {name: method.paper for name, method in sorted(METHODS.items())}
        case "strategies":
            return {name: strategy.paper for name, strategy in sorted(STRATEGIES.items())}
        case "partitions":
            return {name: kind.about for name, kind in sorted(SPLITS.items())}
        case "sources":
            return {text: about for _, source in sorted(SOURCES.items()) for text, about in source.spellings.items()}
        case "encoders":
            return ENCODERS
        case "modules":
            return {name: _first_line(kind) for name, kind in sorted(MODULES.items())}
        case "observers":
            return {name: _first_line(kind) for name, kind in sorted(OBSERVERS.items())}
    raise unknown("list", what, ("methods", "strategies", "partitions", "sources", "encoders", "modules", "observers"))


def _first_line(kind: type) -> str:
    """What the file of a class says first."""
    return (sys.modules[kind.__module__].__doc__ or "").partition("\n")[0].replace("``", "")
