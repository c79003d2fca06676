"""Sources that live in the user's own files: a CSV of texts, a folder of images, a Hugging Face dataset."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset, Kind, with_superclass_column
from fedkeel.data.settings import Data

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
LONGEST_TEXT = 1 << 24
TEST_SPLITS = ("test", "validation", "valid")
"""What the test rows of a hub dataset are called, the most fitting first."""


def cache_folder(data: Data) -> Path:
    """Where features and fetched sources are kept: data.cache, else FEDKEEL_CACHE, else the user's cache folder."""
    chosen = data.cache or os.environ.get("FEDKEEL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedkeel"


def file_sha256(path: Path) -> str:
    """The sha256 of a file; an unreadable one is named."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None


def digest(parts: Iterable[str | bytes | np.ndarray]) -> str:
    """One sha256 over parts; each is hashed with its length, so moving a boundary changes the result."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype.str}{part.shape}".encode())
            part = np.ascontiguousarray(part).tobytes()
        elif isinstance(part, str):
            part = part.encode()
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def folder_or_id(prefix: str, reference: str) -> Path | None:
    """The folder that ``prefix:reference`` names, or None where it is the id of something on the hub."""
    path = Path(reference).expanduser()
    if path.is_dir():
        return path
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", reference):
        raise FedkeelError(f"{prefix}:{reference}: there is no such folder, and it is not an id such as owner/name")
    return None


def missing_column(where: str, name: str, key: str, columns: Sequence[str]) -> FedkeelError:
    """The error for a column that is not there: names those that are, and the key to set."""
    near = get_close_matches(name, columns, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FedkeelError(f"{where} has no column {name!r}: {hint}its columns are {', '.join(columns)}; set data.{key}")


def index_labels(values: Sequence[Any] | np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as integers, and the class names: the distinct values in sorted order (numbers sort as numbers)."""
    distinct, labels = np.unique(np.asarray(values), return_inverse=True)
    if distinct.dtype.kind not in "biuU":
        raise FedkeelError(f"{where}: labels are {distinct.dtype}; expected whole numbers or strings")
    return labels.astype(np.int64), tuple(str(value) for value in distinct)


def with_attribute(dataset: Dataset, train: Any, test: Any, where: str) -> Dataset:
    """The dataset with an attribute per row, from its values; ``train`` or ``test`` is None where there are none."""
    if train is None:
        return dataset
    parts = [np.asarray(train)] + ([] if test is None else [np.asarray(test)])
    values, names = index_labels(np.concatenate(parts), where)
    return replace(
        dataset,
        train_attribute=values[: len(parts[0])],
        test_attribute=None if test is None else values[len(parts[0]) :],
        attribute_names=names,
    )


def _chosen(data: Data, key: str) -> bool:
    """Whether the user named this column: then it must exist."""
    return bool(getattr(data, key) != Data.model_fields[key].default)


class Table(NamedTuple):
    """A CSV file: its columns by name, and the line on which each row starts."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def column(self, name: str, key: str) -> list[str]:
        """The values of a column, none of them empty."""
        if name not in self.columns:
            raise missing_column(str(self.path), name, key, list(self.columns))
        for value, line in zip(self.columns[name], self.lines, strict=True):
            if not value.strip():
                raise FedkeelError(f"{self.path} line {line}: column {name!r} is empty; fill it in or remove the row")
        return self.columns[name]


def read_csv(path: Path) -> Table:
    """Read a CSV file in UTF-8 whose first line names the columns; rows of another width are named."""
    csv.field_size_limit(LONGEST_TEXT)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            start = reader.line_num + 1
            for row in reader:
                if row:  # an empty line is no row
                    rows.append(row)
                    lines.append(start)
                start = reader.line_num + 1
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FedkeelError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except csv.Error as error:
        raise FedkeelError(f"{path} line {reader.line_num}: {error}; expected CSV with quoted texts") from None
    if not rows:
        raise FedkeelError(f"{path} has no rows: expected a line with column names and one line per row")
    if len(set(header)) < len(header):
        raise FedkeelError(f"{path} names a column twice ({', '.join(header)}): rename one")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise FedkeelError(
                f"{path} line {line} has {len(row)} fields, the first line has {len(header)}: quote texts with commas"
            )
    return Table(path, {name: [row[i] for row in rows] for i, name in enumerate(header)}, lines)


def load_csv(path: Path, data: Data) -> Dataset:
    """Texts and labels from a CSV file, with clients and a train/test split where it has such columns."""
    table = read_csv(path)
    texts = table.column(data.text_column, "text_column")
    labels, class_names = index_labels(table.column(data.label_column, "label_column"), str(path))
    clients = None
    if data.client_column in table.columns or _chosen(data, "client_column"):
        clients = np.array(table.column(data.client_column, "client_column"))
    attribute = None
    if data.attribute_column in table.columns or _chosen(data, "attribute_column"):
        attribute = np.array(table.column(data.attribute_column, "attribute_column"))
    train = np.ones(len(texts), dtype=bool)
    if "split" in table.columns:
        for row, (value, line) in enumerate(zip(table.columns["split"], table.lines, strict=True)):
            if value not in ("train", "test"):
                raise FedkeelError(f"{path} line {line}: split is {value!r}; expected train or test")
            train[row] = value == "train"
    dataset = Dataset(
        name=data.source,
        kind="texts",
        train=[text for text, here in zip(texts, train, strict=True) if here],
        train_labels=labels[train],
        test=[text for text, here in zip(texts, train, strict=True) if not here],
        test_labels=labels[~train],
        class_names=class_names,
        fingerprint=digest([file_sha256(path), data.text_column, data.label_column]),
        encoder="minilm",
        train_client=None if clients is None else clients[train],
        test_client=None if clients is None else clients[~train],
    )
    if data.superclass_column in table.columns or _chosen(data, "superclass_column"):
        superclass = table.column(data.superclass_column, "superclass_column")
        dataset = with_superclass_column(dataset, labels, superclass, f"{path} column {data.superclass_column!r}")
    if attribute is None:
        return dataset
    return with_attribute(dataset, attribute[train], attribute[~train], f"{path} column {data.attribute_column!r}")


def image_paths(folder: Path) -> list[Path]:
    """All images below a folder, in the order of their names."""
    found = []
    for parent, _, names in os.walk(folder, followlinks=True):
        images = (Path(parent, name) for name in names if not name.startswith("."))
        found += [path for path in images if path.suffix.lower() in IMAGE_SUFFIXES]
    if not found:
        raise FedkeelError(f"{folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


class Folder(NamedTuple):
    paths: list[Path]
    labels: list[str]
    clients: np.ndarray | None


def _read_folder(folder: Path) -> Folder:
    """Images in FOLDER/class/ or FOLDER/client/class/."""
    paths = image_paths(folder)
    parts = [path.relative_to(folder).parts for path in paths]
    depth = len(parts[0])
    odd = next((path for path, p in zip(paths, parts, strict=True) if len(p) != depth or depth not in (2, 3)), None)
    if odd is not None:
        raise FedkeelError(
            f"{odd} is {len(odd.relative_to(folder).parts) - 1} folders below {folder}: "
            f"expected every image in {folder.name}/class/ or every image in {folder.name}/client/class/"
        )
    clients = np.array([part[0] for part in parts]) if depth == 3 else None
    return Folder(paths, [part[-2] for part in parts], clients)


def load_images(folder: Path, data: Data) -> Dataset:
    """Images by class folder or by client and class folder; folders train and test on top give the split."""
    if not folder.is_dir():
        raise FedkeelError(f"{data.source}: there is no folder {folder}")
    top = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if "train" in top and top != ["test", "train"]:
        raise FedkeelError(f"{folder} holds the folders {', '.join(top)}: a split needs exactly train and test")
    if top == ["test", "train"]:
        train, test = _read_folder(folder / "train"), _read_folder(folder / "test")
    else:
        train, test = _read_folder(folder), Folder([], [], None)
    labels, class_names = index_labels(train.labels + test.labels, str(folder))
    paths = train.paths + test.paths
    return Dataset(
        name=data.source,
        kind="images",
        train=train.paths,
        train_labels=labels[: len(train.paths)],
        test=test.paths,
        test_labels=labels[len(train.paths) :],
        class_names=class_names,
        fingerprint=digest(part for path in paths for part in (str(path.relative_to(folder)), file_sha256(path))),
        encoder="efficientnet-lite0",
        train_client=train.clients,
        test_client=test.clients,
    )


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


def load_hf(reference: str, data: Data) -> Dataset:
    """A dataset of the hub, one saved by ``save_to_disk`` or a folder of parquet files; never runs its code."""
    splits = _open_hf(reference, data)
    where = data.source
    if "train" not in splits and len(splits) > 1:
        raise FedkeelError(f"{where} has the splits {', '.join(splits)}: expected one named train")
    train = splits.get("train", next(iter(splits.values())))
    test = next((splits[name] for name in TEST_SPLITS if name in splits), None)
    content, kind = _content_column(train, data)
    columns = list(train.column_names)
    superclass = _optional(data, "superclass_column", columns)
    label = _label_column(train, content, data)
    client = _optional(data, "client_column", columns)
    attribute = _optional(data, "attribute_column", columns)
    parts = [train] if test is None else [train, test]
    for part in parts[1:]:
        keys = ("text_column", "label_column", "client_column", "attribute_column")
        for column, key in zip((content, label, client, attribute), keys, strict=True):
            if column is not None and column not in part.column_names:
                raise missing_column(f"{where} (test rows)", column, key, list(part.column_names))
    values = [list(part[label]) for part in parts]
    names = getattr(train.features[label], "names", None)  # a ClassLabel has its own numbers and names; -1 = no label
    blank = ("",) if names is None else (-1,)
    for name, given in zip(("train", "test"), values, strict=False):
        empty = next((row for row, value in enumerate(given) if value is None or value in blank), None)
        if empty is not None:
            raise FedkeelError(f"{where} {name} row {empty}: column {label!r} is empty; remove the row or label it")
    labels, class_names = index_labels([value for column in values for value in column], where)
    if names is not None:
        labels, class_names = np.concatenate([np.array(column, dtype=np.int64) for column in values]), tuple(names)
    rows = [_rows(part, content, kind, where) for part in parts]
    clients = [None if client is None else np.array([str(name) for name in part[client]]) for part in parts]
    dataset = Dataset(
        name=where,
        kind=kind,
        train=rows[0],
        train_labels=labels[: len(rows[0])],
        test=rows[1] if len(rows) > 1 else [],
        test_labels=labels[len(rows[0]) :],
        class_names=class_names,
        fingerprint=digest([labels, *(part for split in rows for part in _contents(split))]),
        encoder="minilm" if kind == "texts" else "efficientnet-lite0",
        train_client=clients[0],
        test_client=clients[1] if len(clients) > 1 else None,
    )
    if superclass is not None:
        told = f"{where} column {superclass!r}"
        dataset = with_superclass_column(dataset, dataset.train_labels, _names(train, superclass, told), told)
    if attribute is None:
        return dataset
    attributes = [np.array([str(value) for value in part[attribute]]) for part in parts]
    return with_attribute(dataset, attributes[0], attributes[1] if len(parts) > 1 else None, where)


def _optional(data: Data, key: str, columns: list[str]) -> str | None:
    """The column that ``key`` names, if it is there; one that the user named must be."""
    name = str(getattr(data, key))
    if name not in columns and _chosen(data, key):
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


def _open_hf(reference: str, data: Data) -> dict[str, Any]:
    folder = folder_or_id("hf", reference)
    try:
        import datasets
    except ImportError:
        raise FedkeelError(f'{data.source} needs the package datasets: pip install "fedkeel[hf]"') from None
    try:
        if folder is None:
            opened = datasets.load_dataset(reference)
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
        raise FedkeelError(
            f"{data.source}: the hub cannot be reached; give a folder (hf:FOLDER) saved by save_to_disk elsewhere"
        ) from None
    except Exception as error:  # the library raises many types for files it cannot read
        raise FedkeelError(f"{data.source} cannot be opened: {(str(error) or repr(error)).splitlines()[0]}") from None
    return dict(opened) if isinstance(opened, dict) else {"train": opened}


def _content_column(table: Any, data: Data) -> tuple[str, Kind]:
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
    if _chosen(data, "text_column"):
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


def _label_column(table: Any, content: str, data: Data) -> str:
    """The column of labels: the one data.label_column names, else the only one of type ClassLabel."""
    columns = list(table.column_names)
    if data.label_column in columns:
        return data.label_column
    named: list[str] = [name for name, feature in table.features.items() if hasattr(feature, "names")]
    if _chosen(data, "superclass_column"):
        named = [name for name in named if name != data.superclass_column]
    if _chosen(data, "label_column") or not named:
        raise missing_column(data.source, data.label_column, "label_column", columns)
    if len(named) > 1:
        raise FedkeelError(f"{data.source} has several columns of labels ({', '.join(named)}): set data.label_column")
    return named[0]


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


def _contents(rows: Sequence[Any]) -> Iterable[str | bytes]:
    return (file_sha256(row) if isinstance(row, Path) else row for row in rows)
