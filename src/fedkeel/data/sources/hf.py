"""A dataset of the Hugging Face hub, or one in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, overload

import numpy as np

from fedkeel.core.errors import FedkeelError, Missing
from fedkeel.data.dataset import Dataset, Kind, with_superclass_column
from fedkeel.data.files import digest, file_sha256, folder_or_id, index_labels, missing_column, with_attribute
from fedkeel.data.presence import Lack, lack_of_hub
from fedkeel.data.sources.base import Columns, register

TEST_SPLITS = ("test", "validation", "valid")
"""What the test rows of a hub dataset are called, the most fitting first."""


@register({"hf:ID-or-folder": "a dataset of the Hugging Face hub, or a folder of save_to_disk or parquet files"})
class Hub(Columns):
    general: ClassVar[bool] = True

    def missing(self) -> Lack | None:
        return lack_of_hub("datasets", self.reference)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """A dataset of the hub, one saved by ``save_to_disk`` or a folder of parquet files; never runs its code."""
        splits = _open(self)
        where = self.source
        if "train" not in splits and len(splits) > 1:
            raise FedkeelError(f"{where} has the splits {', '.join(splits)}: expected one named train")
        train = splits.get("train", next(iter(splits.values())))
        test = next((splits[name] for name in TEST_SPLITS if name in splits), None)
        content, kind = _content_column(train, self)
        columns = list(train.column_names)
        superclass = _optional(self, "superclass_column", columns)
        label = _label_column(train, content, self)
        client = _optional(self, "client_column", columns)
        attribute = _optional(self, "attribute_column", columns)
        parts = [train] if test is None else [train, test]
        for part in parts[1:]:
            keys = ("text_column", "label_column", "client_column", "attribute_column")
            for column, key in zip((content, label, client, attribute), keys, strict=True):
                if column is not None and column not in part.column_names:
                    raise missing_column(f"{where} (test rows)", column, key, list(part.column_names))
        labels, class_names = _labels(parts, label, where)
        rows = [_rows(part, content, kind, where) for part in parts]
        clients = [None if client is None else np.array([str(name) for name in part[client]]) for part in parts]
        hashes: list[list[str]] = [[] for _ in rows]
        dataset = Dataset(
            name=where,
            kind=kind,
            train=rows[0],
            train_labels=labels[: len(rows[0])],
            test=rows[1] if len(rows) > 1 else [],
            test_labels=labels[len(rows[0]) :],
            class_names=class_names,
            fingerprint=digest(
                chain([labels], *(_contents(split, into) for split, into in zip(rows, hashes, strict=True)))
            ),
            encoder="minilm" if kind == "texts" else "efficientnet-lite0",
            train_client=clients[0],
            test_client=clients[1] if len(clients) > 1 else None,
        )
        if kind == "images":
            test_sha256 = np.array(hashes[1], dtype="U64") if len(rows) > 1 else None
            dataset = replace(dataset, train_sha256=np.array(hashes[0]), test_sha256=test_sha256)
        if superclass is not None:
            told = f"{where} column {superclass!r}"
            dataset = with_superclass_column(dataset, dataset.train_labels, _names(train, superclass, told), told)
        if attribute is None:
            return dataset
        attributes = [np.array([str(value) for value in part[attribute]]) for part in parts]
        return with_attribute(dataset, attributes[0], attributes[1] if len(parts) > 1 else None, where)


@dataclass(frozen=True)
class StoredImages(Sequence[Any]):
    """The images of a ``datasets`` table, still encoded and read when they are asked for: bytes, or a path."""

    table: Any
    column: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> bytes | Path: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes | Path]: ...
    def __getitem__(self, at: int | slice) -> bytes | Path | list[bytes | Path]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        stored = self.table[int(self.rows[at])][self.column]
        return stored["bytes"] if stored["bytes"] is not None else Path(stored["path"])


def _optional(data: Hub, key: str, columns: list[str]) -> str | None:
    """The column that ``key`` names, if it is there; one that the user named must be."""
    name = str(getattr(data, key))
    if name not in columns and data.chosen(key):
        raise missing_column(data.source, name, key, columns)
    return name if name in columns else None


def _names(table: Any, column: str, where: str) -> list[str]:
    """The values of a column as text, none of them empty; numbers of a ClassLabel as the names they stand for."""
    names = getattr(table.features[column], "names", None)
    values = list(table[column])
    blank = (None, "") if names is None else (None, -1)
    empty = next((row for row, value in enumerate(values) if value in blank), None)
    if empty is not None:
        raise FedkeelError(f"{where} row {empty} is empty; fill it in or remove the row")
    return [str(value) if names is None else names[value] for value in values]


def _open(data: Hub) -> dict[str, Any]:
    folder = folder_or_id("hf", data.reference)
    try:
        import datasets
    except ImportError:
        raise FedkeelError(f'{data.source} needs the package datasets: pip install "fedkeel[hf]"') from None
    try:
        if folder is None:
            opened = datasets.load_dataset(data.reference)
        elif (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            opened = datasets.load_from_disk(str(folder))
        elif any(folder.rglob("*.parquet")):
            # The parquet reader by name: a loading script next to the files is then never looked at.
            opened = datasets.load_dataset("parquet", data_dir=str(folder))
        else:
            raise FedkeelError(f"{folder} holds neither a dataset saved by save_to_disk nor parquet files")
    except FedkeelError:
        raise
    except ConnectionError:
        raise Missing(
            f"{data.source}: the hub cannot be reached; give a folder (hf:FOLDER) saved by save_to_disk elsewhere"
        ) from None
    except Exception as error:  # the library raises many types for files it cannot read
        raise FedkeelError(f"{data.source} cannot be opened: {(str(error) or repr(error)).splitlines()[0]}") from None
    return dict(opened) if isinstance(opened, dict) else {"train": opened}


def _content_column(table: Any, data: Hub) -> tuple[str, Kind]:
    """The column to encode: the one data.text_column names, else the only image column, else the only text column."""
    columns = list(table.column_names)
    kinds: dict[str, Kind] = {}
    for name, feature in table.features.items():
        if type(feature).__name__ == "Image":
            kinds[name] = "images"
        elif getattr(feature, "dtype", None) in ("string", "large_string") and not hasattr(feature, "names"):
            kinds[name] = "texts"
    if data.text_column in kinds:
        return data.text_column, kinds[data.text_column]
    if data.chosen("text_column"):
        if data.text_column in columns:
            raise FedkeelError(f"{data.source}: column {data.text_column!r} holds neither images nor texts")
        raise missing_column(data.source, data.text_column, "text_column", columns)
    others = (data.label_column, data.client_column, data.attribute_column, data.superclass_column)
    for wanted in ("images", "texts"):
        names = [n for n, kind in kinds.items() if kind == wanted and n not in others]
        if len(names) == 1:
            return names[0], kinds[names[0]]
        if names:
            raise FedkeelError(
                f"{data.source} has several columns of {wanted} ({', '.join(names)}): set data.text_column"
            )
    raise FedkeelError(f"{data.source} has no column of images or texts: its columns are {', '.join(columns)}")


def _label_column(table: Any, content: str, data: Hub) -> str:
    """The column of labels: the one data.label_column names, else the only one of type ClassLabel."""
    columns = list(table.column_names)
    if data.label_column in columns:
        return data.label_column
    named: list[str] = [name for name, feature in table.features.items() if hasattr(feature, "names")]
    if data.chosen("superclass_column"):
        named = [name for name in named if name != data.superclass_column]
    if data.chosen("label_column") or not named:
        raise missing_column(data.source, data.label_column, "label_column", columns)
    if len(named) > 1:
        raise FedkeelError(f"{data.source} has several columns of labels ({', '.join(named)}): set data.label_column")
    return named[0]


def _labels(parts: Sequence[Any], column: str, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels of all rows, and the class names; a ClassLabel has its own numbers and names, and -1 = no label."""
    values = [list(part[column]) for part in parts]
    names = getattr(parts[0].features[column], "names", None)
    blank = ("",) if names is None else (-1,)
    for name, given in zip(("train", "test"), values, strict=False):
        empty = next((row for row, value in enumerate(given) if value is None or value in blank), None)
        if empty is not None:
            raise FedkeelError(f"{where} {name} row {empty}: column {column!r} is empty; remove the row or label it")
    together = [value for part in values for value in part]
    if names is None:
        return index_labels(together, where)
    return np.array(together, dtype=np.int64), tuple(names)


def _rows(table: Any, column: str, kind: Kind, where: str) -> Sequence[Any]:
    if kind == "texts":
        texts = list(table[column])
        empty = next((row for row, text in enumerate(texts) if not (text or "").strip()), None)
        if empty is not None:
            raise FedkeelError(f"{where} row {empty}: column {column!r} is empty; fill it in or remove the row")
        return texts
    from datasets import Image

    return StoredImages(
        table.select_columns([column]).cast_column(column, Image(decode=False)), column, np.arange(len(table))
    )


def _contents(rows: Sequence[Any], hashes: list[str]) -> Iterator[str | bytes]:
    """What each row holds; the hashes of images are noted on the way, so that none has to be read twice."""
    for row in rows:
        content = file_sha256(row) if isinstance(row, Path) else row
        if isinstance(rows, StoredImages):
            hashes.append(content if isinstance(content, str) else sha256(content).hexdigest())
        yield content
