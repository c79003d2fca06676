"""What a run's numbers come from: its data, its encoder and the code that matters, each as a fingerprint on record.

A finished run is only taken for what it was run on. Where the rows, the weights or a method's file have changed since,
it is refused, and what has changed is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, from_settings
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.runs.code import code_of
from fedkeel.runs.config import Experiment
from fedkeel.runs.events import Record, begun

RESULTS = 1
"""Raised by whoever changes the numbers of existing runs, wherever in fedkeel: see CONTRIBUTING.md."""


class Stale(FedkeelError):
    """A run that is not what it would be now; ``what`` says why, and the whole line what to do."""

    def __init__(self, folder: Path, what: str) -> None:
        again = f"fedkeel run {folder / 'config.toml'} --out ANOTHER runs it on what is there now"
        super().__init__(f"{what} since {folder} was run: restore that, or {again}")
        self.folder, self.what = folder, what


@dataclass(frozen=True)
class Provenance:
    data: str
    """of rows, labels, clients, attributes and names, as they were loaded"""
    encoder: str
    """of its name, its weights and what else it does to a row"""
    method: str
    source: str
    split: str
    """of the code of each: the files of the class and of those that it derives from, and what they import there"""
    results: int

    @classmethod
    def of(cls, experiment: Experiment, dataset: Dataset, encoder: tuple[str, str, str]) -> Provenance:
        """That of a run which begins now; of the encoder the name, the weights and the transform."""
        return cls(**_of_rows(dataset, encoder), **_of_code(experiment))


PARTS = tuple(field.name for field in fields(Provenance))


def _of_rows(dataset: Dataset, encoder: tuple[str, str, str]) -> dict[str, Any]:
    return {"data": content(dataset), "encoder": digest(encoder)}


def _of_code(experiment: Experiment) -> dict[str, Any]:
    return {
        "method": code_of(*kinds_of(from_settings(experiment.method))),
        "source": code_of(type(experiment.data)),
        "split": code_of(type(experiment.partition)),
        "results": RESULTS,
    }


def kinds_of(method: AnyMethod) -> list[type]:
    """The classes whose code is the method's: its own, and that of the module with which it adapts a dual encoder."""
    return [type(method), *([type(method.module)] if hasattr(method, "module") else [])]


def content(dataset: Dataset) -> str:
    """All that a source gives. Its own fingerprint is of the rows, and needs not know of labels and clients."""
    columns = [
        dataset.train_labels, dataset.test_labels, dataset.train_client, dataset.test_client,
        dataset.train_attribute, dataset.test_attribute,
    ]  # fmt: skip
    names = repr((dataset.class_names, dataset.attribute_names, dataset.superclasses, dataset.superclass_names))
    return digest([dataset.fingerprint, *("" if column is None else column for column in columns), names])


def must_be_of_now(folder: Path, experiment: Experiment, rows: Callable[[], Dataset]) -> None:
    """Refuse what is on record in a folder if the same run would come from something else now.

    Rows that are named by their own fingerprint cannot have changed, and a finished run needs them no more.
    """
    record = begun(folder)
    if record is None:
        return
    now = _of_code(experiment)
    if record.end is None or not experiment.data.by_content:
        from fedkeel.runs.opening import encoder_of  # with it comes torch

        dataset = rows()
        now |= _of_rows(dataset, encoder_of(experiment.data, dataset, from_settings(experiment.method)))
    before = _of(record)
    for part in PARTS:
        if part in now and before[part] != now[part]:
            raise Stale(folder, _changed(part, record))


def must_agree(records: Sequence[Record]) -> None:
    """Refuse to set runs side by side that name the same data, encoder or method and mean different ones."""
    first: dict[str, Record] = {}
    for record in records:
        for part, value in _of(record).items():
            other = first.setdefault(f"{part} {_named(part, record)}", record)
            if _of(other)[part] != value:
                elder = record if "provenance" in other.start else other
                raise FedkeelError(
                    f"{_changed(part, elder)} between the runs {other.folder} and {record.folder}: they cannot stand "
                    "side by side; run one of them again, or leave it out"
                )


def _of(record: Record) -> dict[str, Any]:
    """As it is on record; a run of an older fedkeel comes from nothing that is known."""
    return {**dict.fromkeys(PARTS), **record.start.get("provenance", {})}


def _named(part: str, record: Record) -> Any:
    """What a configuration calls it."""
    config = record.start["config"]
    data = {key: value for key, value in config["data"].items() if key not in NOT_ROWS}
    match part:
        case "data":
            return data
        case "encoder":
            return data, record.start["data"]["encoder"], config["data"].get("pooling")
        case "method":
            return config["method"]["name"], config["method"].get("peft")
        case "source":
            return str(config["data"]["source"]).partition(":")[0]
        case "split":
            return config["partition"]["kind"]
    return ""


NOT_ROWS = ("encoder", "pooling", "features", "dtype", "cache", "duplicates")
"""Settings of [data] on which the rows as they are loaded do not depend."""


def _changed(part: str, record: Record) -> str:
    if "provenance" not in record.start:
        return "fedkeel has begun to keep fingerprints of data and code"
    config = record.start["config"]
    return {
        "data": f"the data of {config['data']['source']} have changed",
        "encoder": f"the encoder {record.start['data']['encoder']} has changed, its weights or settings",
        "method": f"the code of method {config['method']['name']} has changed",
        "source": f"the code of source {config['data']['source']} has changed",
        "split": f"the code of partition {config['partition']['kind']} has changed",
        "results": f"fedkeel's numbers have changed (version {record.start['version']} there)",
    }[part]
