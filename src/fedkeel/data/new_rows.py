"""Rows without labels, for predictions by a finished model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import to_stderr
from fedkeel.data.dataset import Kind
from fedkeel.data.sources.base import Source, Texts
from fedkeel.data.sources.csv import read_csv
from fedkeel.data.sources.images import IMAGE_SUFFIXES, image_paths
from fedkeel.data.sources.npz import npz_rows, read_npz


class Rows(NamedTuple):
    rows: Sequence[Any] | np.ndarray
    names: list[str]
    """What to call each row in a table: its line, its path or its number."""


def load_rows(path: Path, kind: Kind, data: Source) -> Rows:
    """Rows without labels, for predictions: a CSV of texts, an image or a folder of them, or an npz file with x."""
    if not path.exists():
        raise FedkeelError(f"there is no file or folder {path}")
    if kind == "texts" and path.suffix.lower() != ".npz":
        assert isinstance(data, Texts)  # other sources hold no texts
        table = read_csv(path, data.separator, data.encoding)
        table.must_have([(data.text_column, "text_column")])
        table = table.whole([data.text_column], data.empty, to_stderr)
        return Rows(table.columns[data.text_column], [str(line) for line in table.lines])
    if kind == "images" and path.is_dir():
        paths = image_paths(path)
        return Rows(paths, [image.relative_to(path).as_posix() for image in paths])
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
    return Rows(rows, [str(row) for row in range(len(rows))])
