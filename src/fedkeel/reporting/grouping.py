"""Runs that belong together: grouped over seeds, named after what tells them apart, set against their IID twins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from fedkeel.core.method import METHODS
from fedkeel.data.ownership import IID
from fedkeel.data.shifts import Shift
from fedkeel.data.splits.base import SPLITS, Split
from fedkeel.runs.events import Record

# These every split has, the IID one too: an IID twin shares them. All others belong to one kind of split alone.
COMMON_SETTINGS = {f"partition.{key}" for key in Split.model_fields if key != "kind"}
# These change no result: runs that differ only here are the same experiment.
IDLE_SETTINGS = {"data.cache", "run.threads", "run.seed", "run.drift", "run.lost"}


@dataclass(frozen=True)
class Group:
    """The runs that differ in nothing but the seed, each with its IID twin or None."""

    method: str
    partition: str
    runs: tuple[Record, ...]
    twins: tuple[Record | None, ...]

    @property
    def shown(self) -> list[tuple[Record, Record | None]]:
        """The finished runs with their twins; all of them where none has finished."""
        pairs = list(zip(self.runs, self.twins, strict=True))
        return [(run, twin) for run, twin in pairs if run.end] or pairs

    @property
    def is_iid(self) -> bool:
        return self.runs[0].partition == IID

    def per_class(self) -> np.ndarray:
        """Accuracy of each class in percent, mean over the finished runs; NaN where a class has no test rows."""
        ends = [run.end["per_class"] for run in self.runs if run.end]
        table = np.array([[np.nan if accuracy is None else accuracy for accuracy in end] for end in ends])
        return np.asarray(100 * table.mean(axis=0))

    def per_client(self, model: Literal["per_client", "personal"] = "per_client") -> np.ndarray:
        """Accuracy of the global or the personal model at each client that was measured, in percent, run after run."""
        ends = [run.end.get(model, []) for run in self.runs if run.end]
        return np.array([100 * accuracy for end in ends for accuracy in end if accuracy is not None])

    def traffic(self) -> np.ndarray:
        """Bytes sent up to each round, up and down, mean over the runs shown."""
        totals = []
        for run in (run for run, _ in self.shown if run.rounds):
            rounds = np.array([event["round"] for event in run.traffic], dtype=int)
            sent = [event["bytes_up"] + event["bytes_down"] for event in run.traffic]
            each = np.bincount(rounds, sent, minlength=len(run.rounds) + 1)  # a round may send nothing
            totals.append(np.cumsum(each)[1 : len(run.rounds) + 1])
        return np.asarray(np.mean([total[: min(map(len, totals))] for total in totals], axis=0))


def groups(records: Sequence[Record]) -> list[Group]:
    """Runs grouped over seeds, in order of first appearance; a run given twice counts once, the finished one."""
    methods, partitions = _method_labels(records), _partition_labels(records)
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for record, method, partition in zip(records, methods, partitions, strict=True):
        seeds = found.setdefault((method, partition), {})
        if record.end or record.seed not in seeds:
            seeds[record.seed] = record
    order = list(dict.fromkeys(methods))
    return [
        Group(method, partition, tuple(runs.values()), tuple(iid_twin(run, records) for run in runs.values()))
        for (method, partition), runs in sorted(found.items(), key=lambda item: order.index(item[0][0]))
    ]


def iid_twin(record: Record, records: Sequence[Record]) -> Record | None:
    """The run with the same data, method, settings and seed whose partition is IID; None for an IID run itself.

    Where there is none with the same participation, the one in which all clients take part.
    """
    if record.partition == IID:
        return None
    iid = [other for other in records if other.partition == IID]
    twins = [other for other in iid if _twin_key(other) == _twin_key(record)]
    twins = twins or [other for other in iid if _twin_key(other) == _twin_key(record, participation=1.0)]
    return next((twin for twin in twins if twin.end), twins[0] if twins else None)


def _settings(record: Record, *sections: str) -> dict[str, Any]:
    config = record.start["config"]
    flat = {f"{section}.{key}": value for section in sections for key, value in config.get(section, {}).items()}
    return {key: value for key, value in flat.items() if key not in IDLE_SETTINGS}


def _split(record: Record) -> dict[str, Any]:
    settings = _settings(record, "partition")
    return (
        _common(settings) if record.partition == IID else {k: v for k, v in settings.items() if k != "partition.kind"}
    )


def _twin_key(record: Record, **changed: Any) -> tuple[int, str]:
    around = _settings(record, "data", "shift", "method", "run")
    around |= {f"method.{key}": value for key, value in changed.items()}
    origin = {part: value for part, value in record.start.get("provenance", {}).items() if part != "split"}
    return record.seed, json.dumps([around, origin, _common(_settings(record, "partition"))], sort_keys=True)


def _common(split: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in split.items() if key in COMMON_SETTINGS}


def _method_labels(records: Sequence[Record]) -> list[str]:
    own = [_settings(record, "method") for record in records]
    around = [_settings(record, "data", "run") for record in records]
    labels = []
    for k, record in enumerate(records):
        same = [own[j] for j, other in enumerate(records) if other.method == record.method]
        named = _unusual(_differing(own[k], same), same, _method_defaults(record.method))
        labels.append(_label(record.method, {**named, **_differing(around[k], around)}))
    return labels


def _partition_labels(records: Sequence[Record]) -> list[str]:
    """A split is who holds which rows and with which labels: a long tail or label noise belongs to it."""
    splits, shifts = [_split(record) for record in records], [_settings(record, "shift") for record in records]
    labels = []
    for k, record in enumerate(records):
        same = [splits[j] for j, other in enumerate(records) if other.partition == record.partition]
        named = _unusual(_differing(splits[k], same), same, _defaults("partition", SPLITS.get(record.partition, Split)))
        shifted = _unusual(_differing(shifts[k], shifts), shifts, _defaults("shift", Shift))
        labels.append(_label(record.partition, {**named, **shifted}))
    return labels


def _differing(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of mine that another run does not share; a setting a run leaves out is not named for it."""
    return {k: v for k, v in mine.items() if any(k not in other or other[k] != v for other in others)}


def _unusual(
    differing: Mapping[str, Any], among: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Without the settings at their default, where a run has either that or one other value: the plain name is it.

    In a sweep of three values or more each is named.
    """

    def plain(key: str) -> bool:
        everywhere = all(key in other for other in among)
        values = {json.dumps(other.get(key)) for other in among}
        return everywhere and len(values) == 2 and differing[key] == defaults.get(key, ...)

    return {key: value for key, value in differing.items() if not plain(key)}


def _method_defaults(name: str) -> dict[str, Any]:
    """Of a method that this fedkeel knows; a user's own is named with all its settings."""
    return _defaults("method", METHODS[name]) if name in METHODS else {}


def _defaults(section: str, model: type[BaseModel]) -> dict[str, Any]:
    return {f"{section}.{key}": field.default for key, field in model.model_fields.items()}


def _label(name: str, settings: Mapping[str, Any]) -> str:
    parts = [
        f"{key.split('.', 1)[1]}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]
    return ", ".join([name, *parts])
