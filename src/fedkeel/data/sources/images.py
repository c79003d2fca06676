"""A folder of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256, index_labels
from fedkeel.data.sources.base import Source, register

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


@register({"images:FOLDER": "images in FOLDER/class or FOLDER/client/class, optionally below train and test"})
class Images(Source):
    general: ClassVar[bool] = True

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Images by class folder or by client and class folder; folders train and test on top give the split."""
        folder = self.path
        if not folder.is_dir():
            raise FedkeelError(f"{self.source}: there is no folder {folder}")
        top = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        if "train" in top and top != ["test", "train"]:
            raise FedkeelError(f"{folder} holds the folders {', '.join(top)}: a split needs exactly train and test")
        if top == ["test", "train"]:
            train, test = _read_folder(folder / "train"), _read_folder(folder / "test")
        else:
            train, test = _read_folder(folder), Folder([], [], None)
        labels, class_names = index_labels(train.labels + test.labels, str(folder))
        paths = train.paths + test.paths
        content = [file_sha256(path) for path in paths]
        named = zip((str(path.relative_to(folder)) for path in paths), content, strict=True)
        return Dataset(
            name=self.source,
            kind="images",
            train=train.paths,
            train_labels=labels[: len(train.paths)],
            test=test.paths,
            test_labels=labels[len(train.paths) :],
            class_names=class_names,
            fingerprint=digest(part for pair in named for part in pair),
            encoder="efficientnet-lite0",
            train_client=train.clients,
            test_client=test.clients,
            train_sha256=np.array(content[: len(train.paths)]),
            test_sha256=np.array(content[len(train.paths) :]),
        )


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
