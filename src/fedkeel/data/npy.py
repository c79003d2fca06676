"""Arrays in .npy files: what a file says of its array is held against what there is of it, before numpy believes it."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from fedkeel.core.errors import FedkeelError, printable, shortened


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


def sound_header(file: IO[bytes], size: int, path: Path, what: str, again: str) -> Header:
    """What a .npy file of ``size`` bytes says of its array; numpy would make room for what it says.

    ``what`` is what the array is called where something is wrong with it, ``again`` how to get another.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        found = Header(*read(file))
        if min(found.shape, default=0) < 0 or not found.dtype.itemsize:
            raise ValueError(f"{found.dtype} {found.shape}")
    except (zipfile.BadZipFile, zlib.error, OSError):
        raise
    except Exception as error:  # numpy reads it with Python's own parser
        reason = shortened(printable(str(error)))
        raise FedkeelError(f"{path} is damaged: {what} has no sound header ({reason})") from None
    if found.dtype.hasobject:
        raise FedkeelError(f"{path}: {what} holds Python objects, which are not read: save strings as astype(str)")
    there, said = size - file.tell(), math.prod(found.shape) * found.dtype.itemsize
    if said != there:
        raise FedkeelError(
            f"{path} is damaged: {what} says that it is {found.dtype} {shortened(str(found.shape))}, which is "
            f"{said:,} bytes, but {there:,} are there; {again}"
        )
    return found


def mapped(path: Path) -> np.ndarray:
    """The array of a .npy file, read where it is used."""
    try:
        with path.open("rb") as file:
            header = sound_header(file, path.stat().st_size, path, "its array", "get it again")
            offset = file.tell()
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror or error}") from None
    if not math.prod(header.shape):
        raise FedkeelError(f"{path} is empty: its array is {header.dtype} {shortened(str(header.shape))}; get it again")
    found: np.ndarray = np.memmap(path, header.dtype, "r", offset, header.shape, order="F" if header.fortran else "C")
    return found
