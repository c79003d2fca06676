"""Arrays of the user in an npz file: features, images or texts with labels; nothing in the file is executed."""

from __future__ import annotations

import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedkeel.core.errors import FedkeelError, shortened, unknown
from fedkeel.core.memory import available
from fedkeel.data.dataset import Dataset, Kind, with_superclasses
from fedkeel.data.files import file_sha256, index_labels, with_attribute
from fedkeel.data.npy import sound_header
from fedkeel.data.sources.base import Source, register

PER_ROW = ("y", "client", "attribute", "y_test", "client_test", "attribute_test")
"""Arrays with one entry for each row of x or x_test."""
ENCODER: dict[Kind, str] = {"features": "none", "images": "efficientnet-lite0", "texts": "minilm"}
BOMB_SIZE, BOMB_FACTOR = 1 << 30, 100
"""Above both, an array that was compressed is taken for a mistake or worse."""
NPZ_ARRAYS = ("x", "x_test", "class_names", "superclasses", *PER_ROW)


@register(
    {"npz:FILE": "features, images or texts: x, y; also x_test, y_test, class_names, superclasses, client, attribute"}
)
class Npz(Source):
    general: ClassVar[bool] = True

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Features, images or texts from the arrays x and y, and the others of NPZ_ARRAYS if present."""
        return self.dataset_of(read_npz(self.path), str(self.path), file_sha256(self.path))

    def dataset_of(self, arrays: Mapping[str, np.ndarray], where: str, fingerprint: str) -> Dataset:
        """The rows in arrays of these names; what is wrong with one is told with where they come from."""
        tested = "x_test" in arrays or "y_test" in arrays
        for name in ("x", "y") + (("x_test", "y_test") if tested else ()):
            if name not in arrays:
                raise FedkeelError(f"{where} has no array {name}: it holds {', '.join(arrays) or 'nothing'}")
        for name in ("client_test", "attribute_test"):
            if name in arrays and not tested:
                raise FedkeelError(f"{where} has {name} but no x_test: remove it or add x_test and y_test")
        if "attribute_test" in arrays and "attribute" not in arrays:
            raise FedkeelError(f"{where} has attribute_test but no attribute: add it")
        for name, rows in ((name, "x_test" if name.endswith("_test") else "x") for name in PER_ROW):
            if name in arrays and arrays[name].shape != arrays[rows].shape[:1]:
                raise FedkeelError(
                    f"{where} array {name} has shape {arrays[name].shape}: "
                    f"expected one entry for each of the rows of {rows}, {arrays[rows].shape[:1]}"
                )
        kind, train = npz_rows(where, "x", arrays["x"], arrays.get("client"))
        test = train[:0]
        if tested:
            test_kind, test = npz_rows(where, "x_test", arrays["x_test"], arrays.get("client_test"))
            if test_kind != kind or (kind == "features" and test.shape[1:] != train.shape[1:]):
                raise FedkeelError(
                    f"{where} array x_test holds {test_kind} of shape {arrays['x_test'].shape[1:]}, x {kind} of shape "
                    f"{arrays['x'].shape[1:]}: make them equal"
                )
        labels, class_names = npz_labels(where, arrays)
        dataset = Dataset(
            name=self.source,
            kind=kind,
            train=train,
            train_labels=labels[: len(train)],
            test=test,
            test_labels=labels[len(train) :],
            class_names=class_names,
            fingerprint=fingerprint,
            encoder=ENCODER[kind],
            train_client=arrays["client"].astype(str) if "client" in arrays else None,
            test_client=arrays["client_test"].astype(str) if "client_test" in arrays else None,
        )
        if "superclasses" in arrays:
            if arrays["superclasses"].shape != (dataset.classes,):
                raise FedkeelError(
                    f"{where} array superclasses has shape {arrays['superclasses'].shape}: expected one name for each "
                    f"of the {dataset.classes} classes, in the order of {', '.join(class_names[:3])}, ..."
                )
            dataset = with_superclasses(dataset, [str(name) for name in arrays["superclasses"]])
        return with_attribute(
            dataset, arrays.get("attribute"), arrays.get("attribute_test"), f"{where} array attribute"
        )


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file. Nothing in it is executed: arrays of Python objects are refused.

    What they take is known, and that it is there, before any of them is read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
            for name, member in members.items():
                with archive.open(member) as file:
                    sound_header(file, member.file_size, path, f"array {name}", "save it again with numpy.savez")
            _must_fit(path, list(members.values()))
            arrays = {}
            for name, member in members.items():
                with archive.open(member) as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
                _must_be_letters(path, name, arrays[name])
            return arrays
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise _no_npz(path) or FedkeelError(f"{path} is damaged: {error}") from None
    except (RuntimeError, NotImplementedError) as error:  # with a password, or packed in a way of its own
        raise FedkeelError(f"{path} cannot be read ({error}): save it with numpy.savez") from None


def _no_npz(path: Path) -> FedkeelError | None:
    """What to say of a file that is something else."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        return FedkeelError(f"{path} is one array: expected an .npz file with the arrays x and y (numpy.savez)")
    if not start.startswith(b"PK"):
        return FedkeelError(f"{path} is not an .npz file: expected one written by numpy.savez")
    return None


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in NPZ_ARRAYS:
            raise unknown(f"array in {path}:", shortened(name), NPZ_ARRAYS)
        if name in found:
            raise FedkeelError(f"{path} holds the array {name} twice: save it again with numpy.savez")
        found[name] = member
    return found


def _must_fit(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    expanded, packed = (sum(getattr(member, key) for member in members) for key in ("file_size", "compress_size"))
    if packed > path.stat().st_size:
        raise FedkeelError(f"{path} is damaged: it says that it holds {packed:,} bytes, more than it has")
    if expanded > (left := available()):
        raise FedkeelError(
            f"{path} expands to {expanded / 2**30:.1f} GB, but {left / 2**30:.1f} GB of memory are free: use a machine "
            "or a limit with more, or save fewer rows, or float16 instead of float32"
        )
    if expanded > BOMB_SIZE and expanded > BOMB_FACTOR * packed:
        raise FedkeelError(
            f"{path} expands from {packed / 2**20:.1f} MB to {expanded / 2**30:.1f} GB, {expanded // max(packed, 1):,} "
            "times as much, as files do that are made to fill a memory: if it is meant so, save it with numpy.savez "
            "instead of savez_compressed"
        )


def npz_rows(path: Path | str, name: str, rows: np.ndarray, client: np.ndarray | None = None) -> tuple[Kind, Any]:
    """Features as finite float32, images as uint8 (n, h, w, 3), or texts as a list."""
    where = f"{path} array {name}"
    if not len(rows.shape) or 0 in rows.shape:
        raise FedkeelError(f"{where} is empty: its shape is {rows.shape}")
    if rows.ndim == 1 and rows.dtype.kind in "OU":
        strange = next((row for row, text in enumerate(rows) if not isinstance(text, str)), None)
        if strange is not None:
            raise FedkeelError(f"{where} row {strange} is {rows[strange]!r}: expected a text in every row")
        return "texts", rows.tolist()
    if rows.ndim == 2 and rows.dtype.kind in "fiu":
        with np.errstate(over="ignore"):
            features = rows.astype(np.float32, copy=False)
        bad = np.argwhere(~np.isfinite(features))
        if len(bad):
            row, column = bad[0]
            whose = f" (client {client[row]!s})" if client is not None else ""
            raise FedkeelError(
                f"{where} row {row}{whose} column {column} is {rows[row, column]}: expected finite numbers of float32; "
                f"mend or remove the row"
            )
        return "features", features
    if rows.ndim == 4 and rows.shape[3] in (1, 3) and rows.dtype.kind in "fu":
        if rows.dtype.kind == "f":
            bad = np.argwhere(~((rows >= 0) & (rows <= 1)))
            if len(bad):
                raise FedkeelError(
                    f"{where} row {bad[0][0]} holds {rows[tuple(bad[0])]}: expected images of float in [0, 1] or uint8"
                )
            rows = np.round(rows * 255).astype(np.uint8)
        if rows.dtype == np.uint8:
            return "images", np.broadcast_to(rows, (*rows.shape[:3], 3))
    raise FedkeelError(
        f"{where} is {rows.dtype} {rows.shape}: expected numbers (rows, features), texts (rows), "
        f"or images (rows, height, width, 1 or 3) of uint8 or of float in [0, 1]"
    )


def _must_be_letters(path: Path, name: str, array: np.ndarray) -> None:
    """Make sure that what is said to be text is: a damaged file may hold numbers that stand for no letter."""
    if array.dtype.kind == "U" and array.dtype.itemsize and array.size:
        codes = np.ascontiguousarray(array).view(f"{array.dtype.byteorder}u4")
        if ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise FedkeelError(f"{path} array {name} holds strings that are no text: it is damaged; save it again")


def npz_labels(path: Path | str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels of x then x_test as integers. Where class_names is given, y holds positions in it or names of it."""
    parts = [arrays[name] for name in ("y", "y_test") if name in arrays]
    if len({part.dtype.kind == "U" for part in parts}) > 1:
        raise FedkeelError(
            f"{path}: y is {parts[0].dtype} but y_test {parts[1].dtype}; save both as numbers or as strings"
        )
    for part in parts:
        if part.dtype.kind not in "biuU":  # told before they are put together, which not all kinds can be
            raise FedkeelError(f"{path} array y: labels are {part.dtype}; expected whole numbers or strings")
    together = np.concatenate(parts)
    labels, present = index_labels(together, f"{path} array y")
    if "class_names" not in arrays:
        return labels, present
    names = tuple(str(name) for name in arrays["class_names"].ravel())
    if len(set(names)) < len(names):
        raise FedkeelError(f"{path} array class_names names a class twice")
    if together.dtype.kind != "U":
        if together.min() < 0 or together.max() >= len(names):
            raise FedkeelError(
                f"{path} array y runs from {together.min()} to {together.max()}: "
                f"expected 0 to {len(names) - 1}, positions in class_names"
            )
        return together.astype(np.int64), names
    for name in present:
        if name not in names:
            raise unknown(f"class in {path} array y:", name, names)
    return np.array([names.index(name) for name in present])[labels], names
