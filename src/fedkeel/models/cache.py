"""Features are encoded once and kept: keyed by what they depend on, checked when opened, continued after a crash."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from fedkeel.core.atomic import clear, hold, sync_folder, write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import to_stderr
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.data.images import READING, RowError
from fedkeel.data.sources.base import Source, cache_folder
from fedkeel.models.encoders import Encoder, encoder_name, open_encoder

FORMAT = 1
FORGOTTEN = 7 * 24 * 3600
"""Seconds after which an encoding that was begun, and that nobody continues, is deleted."""
CHUNK = 512
"""Rows encoded between two saves; what a crash loses at most."""
PARTS = ("train", "test")


@dataclass(frozen=True)
class Encoded:
    """One row of numbers per row of the dataset."""

    train: np.ndarray
    test: np.ndarray
    encoder: str
    weights: str
    """sha256 of the encoder's weights; empty where there are none"""
    transform: str
    """what the encoder does to a row besides applying its weights"""
    where: str
    """where they are kept"""
    cached: bool = False
    """whether they were in the cache already"""


def features(
    data: Source,
    dataset: Dataset,
    *,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] = to_stderr,
    keep: bool = False,
) -> Encoded:
    """The dataset's features: those it comes with, else from the cache, else encoded now and kept in the cache.

    ``progress`` is told (rows done, rows in all) while encoding; ``notice`` what the user should know. Where the cache
    is read-only, they are not kept, which is a mistake if that is what was asked for (``keep``).
    """
    name = encoder_name(data, dataset)
    if name in dataset.ready:
        ready = dataset.ready[name]
        return Encoded(ready.train, ready.test, name, ready.weights, ready.transform, where=f"with {dataset.name}")
    encoder = open_encoder(data, dataset)
    if name == "none":
        given = np.asarray(dataset.train), np.asarray(dataset.test)
        return Encoded(*given, name, encoder.weights, encoder.transform, where=f"in {dataset.name}")
    return encoded_by(encoder, data, dataset, progress=progress, notice=notice, keep=keep)


def encoded_by(
    encoder: Encoder,
    data: Source,
    dataset: Dataset,
    *,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] = to_stderr,
    keep: bool = False,
) -> Encoded:
    """What an encoder makes of the dataset, from the cache or encoded now and kept there."""
    parent = cache_folder(data) / "features"
    parts = [str(FORMAT), dataset.fingerprint, encoder.name, encoder.weights, encoder.transform, data.dtype]
    read = [READING] if dataset.kind == "images" and not isinstance(dataset.train, np.ndarray) else []
    key = digest([*parts, *read])
    folder = parent / key
    if folder.is_dir():  # renamed into place when complete, so no lock is needed to read
        return _open(folder, dataset, encoder, cached=True)
    if not keep and (why := _read_only(parent)):
        notice(f"{parent} {why}: features are encoded and not kept; set data.cache or FEDKEEL_CACHE to keep them")
        return _encode_only(dataset, encoder, np.dtype(data.dtype), progress)
    with _lock(parent, key, notice):
        if folder.is_dir():
            return _open(folder, dataset, encoder, cached=True)
        _clear_forgotten(parent)
        _tell_change(parent, dataset, encoder, notice)
        _fill(folder, dataset, encoder, np.dtype(data.dtype), progress)
    return _open(folder, dataset, encoder)


def _read_only(folder: Path) -> str | None:
    """What the system says of a folder in which it lets nobody write, if it does; a full disk is another matter."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        told = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        return f"cannot be written ({error.strerror})" if told else None


def _encode_only(
    dataset: Dataset, encoder: Encoder, dtype: np.dtype[Any], progress: Callable[[int, int], None] | None
) -> Encoded:
    """The same numbers as the cache would hold, in memory."""
    done, total = 0, len(dataset.train) + len(dataset.test)
    parts = []
    for part, rows in zip(PARTS, (dataset.train, dataset.test), strict=True):
        found = np.empty((len(rows), encoder.dim), dtype)
        for first in range(0, len(rows), CHUNK):
            chunk = _encode_chunk(f"{dataset.name} {part}", rows[first : first + CHUNK], first, encoder, dtype)
            found[first : first + CHUNK] = np.frombuffer(chunk, dtype).reshape(-1, encoder.dim)
            done += len(rows[first : first + CHUNK])
            if progress is not None:
                progress(done, total)
        parts.append(found)
    train, test = parts
    return Encoded(train, test, encoder.name, encoder.weights, encoder.transform, where="in memory")


@contextmanager
def _blame(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedkeelError(
            f"cannot write the feature cache in {folder}: {error.strerror or error}; make room there, or set "
            f"data.cache or the environment variable FEDKEEL_CACHE to another folder"
        ) from None


@contextmanager
def _lock(parent: Path, key: str, notice: Callable[[str], None]) -> Iterator[None]:
    """One process encodes a key, others wait for it; the lock ends with the process that holds it."""
    import fcntl

    with _blame(parent):
        parent.mkdir(parents=True, exist_ok=True)
        file = (parent / f"{key}.lock").open("w")
    with file:
        with _blame(parent):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                notice("another process is encoding the same features: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clear_forgotten(parent: Path) -> None:
    """Delete what was begun long ago by processes that are no more; what is newer may be continued."""
    for partial in parent.glob("*.partial"):
        with suppress(OSError):
            if time() - partial.stat().st_mtime > FORGOTTEN:
                with (parent / f"{partial.stem}.lock").open("a") as lock:
                    if hold(lock.fileno()):
                        shutil.rmtree(partial)


def _tell_change(parent: Path, dataset: Dataset, encoder: Encoder, notice: Callable[[str], None]) -> None:
    for path in sorted(parent.glob("*/meta.json")):
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
            known = (meta["fingerprint"], meta["encoder"]) == (dataset.fingerprint, encoder.name)
            if known and meta["weights"] != encoder.weights:
                notice(f"the encoder {encoder.name} has changed since {meta['created']}: encoding {dataset.name} again")
                return
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # damaged features of something else: told when they are opened


def _fill(
    folder: Path, dataset: Dataset, encoder: Encoder, dtype: np.dtype[Any], progress: Callable[[int, int], None] | None
) -> None:
    """Encode both parts into a folder beside, then rename it into place."""
    partial = folder.with_name(f"{folder.name}.partial")
    total = len(dataset.train) + len(dataset.test)
    with _blame(partial):
        partial.mkdir(exist_ok=True)
        clear(partial)
    meta: dict[str, Any] = {
        "format": FORMAT,
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "encoder": encoder.name,
        "weights": encoder.weights,
        "transform": encoder.transform,
        "dtype": dtype.name,
    }
    before = 0
    for part, rows in zip(PARTS, (dataset.train, dataset.test), strict=True):

        def tell(done: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        who = f"{dataset.name} {part}" if len(dataset.test) else dataset.name  # new rows are of neither part
        sha256 = _encode_part(partial / f"{part}.npy", who, rows, encoder, dtype, tell)
        meta[part] = {"shape": [len(rows), encoder.dim], "sha256": sha256}
        before += len(rows)
    meta["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    with _blame(partial):
        write_atomically(partial / "meta.json", json.dumps(meta, indent=1).encode())
        partial.rename(folder)
        sync_folder(folder.parent)
        for part in PARTS:
            (folder / f"{part}.progress").unlink(missing_ok=True)


def _encode_part(
    path: Path, who: str, rows: Any, encoder: Encoder, dtype: np.dtype[Any], tell: Callable[[int], None]
) -> str:
    """Append chunk after chunk to an npy file, from where an earlier process stopped; returns the file's sha256."""
    header = io.BytesIO()
    shape = (len(rows), encoder.dim)
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    start, width = header.tell(), encoder.dim * dtype.itemsize
    with _blame(path.parent):
        file = path.open("r+b" if path.exists() else "w+b")
    with file:
        with _blame(path.parent):
            done, sha256 = _progress(path, file, start, width, len(rows))
            if sha256 is None:
                done, sha256 = 0, hashlib.sha256(header.getvalue())
                file.seek(0)
                file.write(header.getvalue())
            file.truncate(start + done * width)
            file.seek(0, os.SEEK_END)
        tell(done)
        for first in range(done, len(rows), CHUNK):
            chunk = _encode_chunk(who, rows[first : first + CHUNK], first, encoder, dtype)
            with _blame(path.parent):
                file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                sha256.update(chunk)
                done = min(first + CHUNK, len(rows))
                state = {"rows": done, "sha256": sha256.hexdigest()}
                write_atomically(path.with_suffix(".progress"), json.dumps(state).encode())
            tell(done)
    return str(sha256.hexdigest())


def _progress(path: Path, file: Any, start: int, width: int, rows: int) -> tuple[int, Any]:
    """How many rows are on disk and the running sha256 over them; (0, None) if there are none or they have changed."""
    try:
        saved = json.loads(path.with_suffix(".progress").read_text(encoding="utf-8"))
        done, expected = int(saved["rows"]), saved["sha256"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return 0, None
    if not 0 < done <= rows or (done % CHUNK and done != rows):
        return 0, None
    sha256 = hashlib.sha256()
    left = start + done * width
    while left and (piece := file.read(min(left, 1 << 20))):
        sha256.update(piece)
        left -= len(piece)
    return (done, sha256) if sha256.hexdigest() == expected else (0, None)


def _encode_chunk(who: str, rows: Any, first: int, encoder: Encoder, dtype: np.dtype[Any]) -> bytes:
    try:
        encoded = encoder.encode(rows)
    except RowError as bad:
        raise FedkeelError(f"{who} row {first + bad.index}: {bad}") from None
    with np.errstate(over="ignore"):
        stored = encoded.astype(dtype)
    broken = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(broken):
        row = broken[0]
        if np.isfinite(encoded[row]).all():
            raise FedkeelError(
                f"{who} row {first + row}: encoder {encoder.name} gave {np.abs(encoded[row]).max():.4g}, "
                f"too large for {dtype.name}; set data.dtype to float32"
            )
        raise FedkeelError(
            f"{who} row {first + row}: encoder {encoder.name} gave NaN or infinity; check the row and the weights"
        )
    return stored.tobytes()


def _open(folder: Path, dataset: Dataset, encoder: Encoder, *, cached: bool = False) -> Encoded:
    """Memory maps of a complete folder, after checking every byte."""
    remedy = f"delete the folder {folder}, it will be encoded again"
    maps = []
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        for part, rows in zip(PARTS, (dataset.train, dataset.test), strict=True):
            path = folder / f"{part}.npy"
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != meta[part]["sha256"]:
                    raise FedkeelError(f"{path} is damaged, its sha256 is not the one in meta.json: {remedy}")
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            if mapped.shape[:1] != (len(rows),):
                raise FedkeelError(f"{path} has {mapped.shape[0]} rows, {dataset.name} has {len(rows)}: {remedy}")
            maps.append(mapped)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FedkeelError(f"the feature cache in {folder} is damaged ({error}): {remedy}") from None
    return Encoded(
        maps[0], maps[1], encoder.name, encoder.weights, encoder.transform, where=f"in {folder}", cached=cached
    )
