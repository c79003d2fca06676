"""The two messages of the federation and their bytes: a fixed header, then raw little-endian arrays.

Only ``Down`` and ``Up`` have bytes. What goes into an ``Up`` passes ``core.method.outgoing`` on the client first.

Layout, little-endian: magic, kind, round, weight, phase, client, number of arrays; per array its name, dtype, number of
axes and axes; then the arrays' bytes in the same order. Every length is checked before anything is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from fedkeel.core.errors import BadMessage
from fedkeel.core.tree import Tree

MAGIC = b"FKL1"
FIXED = struct.Struct("<4sBIdH")  # magic, kind, round, weight, number of arrays
DTYPES = {torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.int64: 4}
NUMPY: dict[int, np.dtype] = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("<f2"), 4: np.dtype("<i8")}
MAX_AXES = 8


@dataclass(frozen=True)
class Down:
    """From the server to a client."""

    round: int
    phase: str
    arrays: Tree


@dataclass(frozen=True)
class Up:
    """From a client to the server: the only thing that ever leaves a client."""

    round: int
    phase: str
    client: str
    weight: float
    """The number of training rows behind it."""
    arrays: Tree


def header(message: Down | Up) -> bytes:
    client = message.client if isinstance(message, Up) else ""
    weight = message.weight if isinstance(message, Up) else 0.0
    parts = [FIXED.pack(MAGIC, int(isinstance(message, Up)), message.round, weight, len(message.arrays))]
    parts += [_text(message.phase), _text(client)]
    for name, tensor in message.arrays.items():
        parts.append(_text(name) + bytes([DTYPES[tensor.dtype], tensor.dim()]))
        parts.append(struct.pack(f"<{tensor.dim()}I", *tensor.shape))
    return b"".join(parts)


def encode(message: Down | Up) -> bytes:
    arrays = [tensor.detach().contiguous().numpy() for tensor in message.arrays.values()]
    return b"".join([header(message), *(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)])


def size(message: Down | Up) -> int:
    """The number of bytes ``encode`` would give, without making them."""
    return len(header(message)) + sum(tensor.numel() * tensor.element_size() for tensor in message.arrays.values())


def decode(data: bytes) -> Down | Up:
    """The message in these bytes; anything that is not exactly one whole message is a BadMessage."""
    reader = _Reader(data)
    magic, kind, round, weight, count = FIXED.unpack(reader.take(FIXED.size))
    if magic != MAGIC or kind > 1:
        raise BadMessage(f"not a fedkeel message: it starts with {data[:5]!r}")
    phase, client = reader.text(), reader.text()
    shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    for _ in range(count):
        name = reader.text()
        code, axes = bytes(reader.take(2))
        if name in shapes or code not in NUMPY or axes > MAX_AXES:
            raise BadMessage(f"array {name!r} is named twice or has an unknown dtype {code} or {axes} axes")
        shapes[name] = NUMPY[code], struct.unpack(f"<{axes}I", reader.take(4 * axes))
    arrays = {
        name: torch.from_numpy(np.frombuffer(reader.take(prod(shape) * dtype.itemsize), dtype).reshape(shape).copy())
        for name, (dtype, shape) in shapes.items()
    }
    if reader.left:
        raise BadMessage(f"{reader.left} bytes too many after the last array")
    return Up(round, phase, client, weight, arrays) if kind else Down(round, phase, arrays)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = memoryview(data), 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> memoryview:
        if count > self.left:
            raise BadMessage(f"the message ends early: {count} bytes wanted at byte {self._at}, {self.left} are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def text(self) -> str:
        try:
            return bytes(self.take(self.take(1)[0])).decode("utf-8")
        except UnicodeDecodeError:
            raise BadMessage(f"a name before byte {self._at} is not UTF-8") from None


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    if len(raw) > 255:
        raise BadMessage(f"the name {text[:40]!r}... is longer than 255 bytes")
    return bytes([len(raw)]) + raw
