"""New rows for predictions by a finished model, with their classes where they say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import to_stderr
from fedkeel.data.dataset import Dataset, Kind
from fedkeel.data.files import digest, file_sha256
from fedkeel.data.sources.base import Columns, Source, Texts
from fedkeel.data.sources.csv import read_csv
from fedkeel.data.sources.images import IMAGE_SUFFIXES, image_paths
from fedkeel.data.sources.npz import npz_labels, npz_rows, read_npz


class Rows(NamedTuple):
    rows: Sequence[Any] | np.ndarray
    names: list[str]
    """What to call each row in a table: its number from 0, or the path of an image."""
    labels: list[str | None] | None = None
    """The class of each row, None where a row has none; of an image the folder that it lies in."""

    def dataset(self, name: str, kind: Kind) -> Dataset:
        """As rows of a source, so that they can be encoded and kept like these."""
        content = self.rows if isinstance(self.rows, np.ndarray) else None
        parts = [content] if content is not None else [file_sha256(r) if isinstance(r, Path) else r for r in self.rows]
        labels = np.zeros(len(self.rows), dtype=np.int64)
        return Dataset(name, kind, self.rows, labels, self.rows[:0], labels[:0], (), digest(["new rows", *parts]), "")


def source_of(path: Path, kind: Kind) -> str:
    """Which source reads files like this one: its settings are those that new rows are read with."""
    if path.suffix.lower() == ".npz" or kind == "features":
        return "npz"
    return "csv" if kind == "texts" else "images"


def load_rows(path: Path, kind: Kind, data: Source) -> Rows:
    """Rows for predictions: a CSV of texts, an image or a folder of them, or an npz file with x and perhaps y."""
    if not path.exists():
        raise FedkeelError(f"there is no file or folder {path}")
    if kind == "texts" and path.suffix.lower() != ".npz":
        return _texts(path, data)
    if kind == "images" and path.is_dir():
        paths = image_paths(path)
        within = [image.relative_to(path) for image in paths]
        return Rows(paths, [place.as_posix() for place in within], [place.parent.name or None for place in within])
    if kind == "images" and path.suffix.lower() in IMAGE_SUFFIXES:
        return Rows([path], [path.name])
    if path.suffix.lower() != ".npz":
        wanted = (
            "an .npz file with the array x" if kind == "features" else "an image, a folder of images or an .npz file"
        )
        raise FedkeelError(f"{path} does not hold {kind}: expected {wanted}")
    arrays = read_npz(path)
    if "x" not in arrays:
        raise FedkeelError(f"{path} has no array x: it holds {', '.join(arrays) or 'nothing'}")
    found, rows = npz_rows(path, "x", arrays["x"], arrays.get("client"))
    if found not in (kind, "features"):
        raise FedkeelError(f"{path} array x holds {found}: expected {kind} or features")
    return Rows(rows, _numbers(len(rows)), _npz_classes(path, arrays))


def _texts(path: Path, data: Source) -> Rows:
    assert isinstance(data, Texts)  # other sources hold no texts
    table = read_csv(path, data.separator, data.encoding)
    table.must_have([(data.text_column, "text_column")])
    number = {line: str(row) for row, line in enumerate(table.lines)}
    table = table.whole([data.text_column], data.empty, to_stderr)
    label = data.label_column if isinstance(data, Columns) else Columns.model_fields["label_column"].default
    labels = [value if value.strip() else None for value in table.columns[label]] if label in table.columns else None
    return Rows(table.columns[data.text_column], [number[line] for line in table.lines], labels)


def _npz_classes(path: Path, arrays: dict[str, np.ndarray]) -> list[str | None] | None:
    if "y" not in arrays:
        return None
    if arrays["y"].shape != arrays["x"].shape[:1]:
        raise FedkeelError(
            f"{path} array y has shape {arrays['y'].shape}: expected a class for each row of x, {arrays['x'].shape[:1]}"
        )
    labels, names = npz_labels(path, {name: arrays[name] for name in ("y", "class_names") if name in arrays})
    return [names[label] for label in labels]


def _numbers(count: int) -> list[str]:
    return [str(row) for row in range(count)]
