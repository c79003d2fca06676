"""Files of MATLAB, version 5 to 7: numbers, texts and cells of these.

They are read by a parser of our own, as a damaged file makes SciPy's write beyond its memory. Nothing is executed.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.core.errors import FedkeelError, shortened
from fedkeel.core.memory import available

HEADER, LONGEST_HEAD = 128, 1 << 16
"""Bytes before the first variable; in which a variable says what it is."""
INT32, UINT32, MATRIX, COMPRESSED = 5, 6, 14, 15
"""Kinds of elements, of which a file is made."""
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", INT32: "i4", UINT32: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
ENCODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELLS, TEXT, NUMERIC, OPAQUE, COMPLEX = 1, 4, range(6, 16), 17, 0x800
"""Classes of variables, and a mark that one may bear."""
DEEPEST = 4
"""Cells in cells."""


def read_mat(path: Path, *wanted: Sequence[str]) -> list[Any]:
    """The variables of the first of these sets of names that is there: arrays, object arrays for cells, or str."""
    try:
        if path.stat().st_size > available():
            raise ValueError("it is larger than the memory that is free")
        data = memoryview(path.read_bytes())
        order = _order(data)
        there = _variables(data, order)
        names = next((names for names in wanted if set(names) <= there.keys()), None)
        if names is not None:
            return [_value(_whole(*there[name], order), order, 0) for name in names]
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, struct.error, zlib.error) as error:
        raise FedkeelError(
            f"{path} cannot be read as a MATLAB file: {error}; get it again, or save it as version 7"
        ) from None
    has = shortened(", ".join(there), 100) or "none"
    raise FedkeelError(f"{path} has {has}: expected the variables {', '.join(wanted[0])}; get it again")


def _order(data: memoryview) -> str:
    """Of bytes in numbers, as ``struct`` writes it."""
    version, mark = bytes(data[124:126]), bytes(data[126:128])
    order = {b"IM": "<", b"MI": ">"}.get(mark)
    if order is None:
        raise ValueError("it does not begin as one")
    if 2 in version:
        raise ValueError("it is of version 7.3")
    return order


def _element(data: memoryview, at: int, order: str) -> tuple[int, memoryview, int]:
    """Of the element that begins there its kind and its bytes, and where the next one begins."""
    kind, size = struct.unpack_from(f"{order}II", data, at)
    start = at + 8
    if kind >> 16:  # a small one says both in four bytes, and has its own in the next four
        kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
    if size > len(data) - start or (start == at + 4 and size > 4):
        raise ValueError("it is cut off")
    return kind, data[start : start + size], start + size + (0 if kind == COMPRESSED else -(start + size - at) % 8)


def _variables(data: memoryview, order: str) -> dict[str, tuple[int, memoryview]]:
    """The element of each variable, by name."""
    found, at = {}, HEADER
    while at < len(data):
        kind, content, at = _element(data, at, order)
        head = _unpacked(content, order, LONGEST_HEAD) if kind == COMPRESSED else content
        found[_head(head, order)[2]] = kind, content
    return found


def _whole(kind: int, content: memoryview, order: str) -> memoryview:
    if kind not in (MATRIX, COMPRESSED):
        raise ValueError(f"a variable is an element of kind {kind}")
    return _unpacked(content, order) if kind == COMPRESSED else content


def _unpacked(content: memoryview, order: str, most: int | None = None) -> memoryview:
    """What is in a compressed element, a matrix: as many bytes of it as it says, or the first."""
    unpacking = zlib.decompressobj()
    kind, size = struct.unpack(f"{order}II", unpacking.decompress(content, 8))
    if kind != MATRIX or size > available():
        raise ValueError(f"a variable says that it is {size:,} bytes of kind {kind}")
    found = unpacking.decompress(unpacking.unconsumed_tail, min(size, most or size) or 1)
    if len(found) < size and most is None:
        raise ValueError("it is cut off")
    return memoryview(found)


def _head(data: memoryview, order: str) -> tuple[int, tuple[int, ...], str, int]:
    """Of a matrix its class, its shape and its name, and where what it holds begins."""
    kind, flags, at = _element(data, 0, order)
    if kind != UINT32 or len(flags) != 8:
        raise ValueError("a variable has no class")
    (flag,) = struct.unpack_from(f"{order}I", flags)
    if flag & 0xFF == OPAQUE:  # which has no shape, and nobody asks for
        return OPAQUE, (), "", at
    kind, sides, at = _element(data, at, order)
    shape = tuple(np.frombuffer(sides, f"{order}i4").tolist()) if kind == INT32 else ()
    if not 2 <= len(shape) <= 8 or min(shape) < 0:
        raise ValueError("a variable has no shape")
    _, name, at = _element(data, at, order)
    return flag & (0xFF | COMPLEX), shape, bytes(name).decode("latin-1"), at


def _value(data: memoryview, order: str, depth: int) -> Any:
    which, shape, _, at = _head(data, order)
    count = math.prod(shape)
    if which == CELLS:
        if 8 * count > len(data) - at or depth == DEEPEST:
            raise ValueError("it has more cells than there can be")
        cells = np.empty(count, dtype=object)
        for number in range(count):
            kind, content, at = _element(data, at, order)
            if kind != MATRIX:
                raise ValueError(f"a cell is an element of kind {kind}")
            cells[number] = _value(content, order, depth + 1) if len(content) else np.empty((0, 0))
        return cells.reshape(shape, order="F")
    kind, content, _ = _element(data, at, order)
    if which == TEXT and kind in ENCODINGS and shape[0] <= 1 and len(shape) == 2:
        suffix = {"<": "-le", ">": "-be"}[order] if ENCODINGS[kind] in ("utf-16", "utf-32") else ""
        return bytes(content).decode(ENCODINGS[kind] + suffix)
    if which not in NUMERIC or kind not in NUMBERS:
        raise ValueError(f"a variable is of class {which}: expected numbers, lines of text or cells of these")
    numbers = np.frombuffer(content, order + NUMBERS[kind])
    if len(numbers) != count:
        raise ValueError(f"a variable of shape {shape} has {len(numbers):,} numbers")
    return numbers.reshape(shape, order="F")
