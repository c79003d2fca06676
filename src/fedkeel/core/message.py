"""The two messages of the federation and their bytes: arrays as safetensors, all else as its metadata.

Only ``Down`` and ``Up`` have bytes. What goes into an ``Up`` passes ``core.method.outgoing`` on the client first. The
metadata are texts of fixed length where they can be, so that sizes are known beforehand; ``names`` keeps the order of
the arrays, which the format does not.

Bytes from outside meet the parser of safetensors first, which checks every offset against the data. What it lets pass
is bounded here before an array is made: dtypes, the number of axes, every axis, and what axes of length 0 hide.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from safetensors import SafetensorError, deserialize

from fedkeel.core.errors import BadMessage
from fedkeel.core.tree import Tree, to_bytes

DTYPES = {"torch.int64": "I64", "torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16"}
"""In the order in which safetensors lays arrays out."""
NUMPY: dict[str, np.dtype] = {name: np.dtype(f"<{name[0].lower()}{int(name[1:]) // 8}") for name in DTYPES.values()}
MAX_AXES, MAX_AXIS, MAX_NUMBERS, MAX_HEADER = 8, 2**31 - 1, 2**40, 2**20
MAX_ROUND, MAX_EXCHANGE = 10**9, 10**15
KEYS = {"fedkeel", "run", "round", "phase", "client", "weight", "accepted", "names"}
NEVER = -1
"""The version of a client of which nothing was ever accepted."""


@dataclass(frozen=True)
class Down:
    """From the server to a client."""

    run: str
    round: int
    phase: str
    arrays: Tree
    accepted: int = NEVER
    """the version of the client's private tree that belongs to the last update the server accepted from it"""


@dataclass(frozen=True)
class Up:
    """From a client to the server: the only thing that ever leaves a client."""

    run: str
    round: int
    phase: str
    client: str
    weight: float
    """The number of training rows behind it."""
    arrays: Tree


def encode(message: Down | Up) -> bytes:
    if "__metadata__" in message.arrays:
        raise BadMessage("an array cannot be called __metadata__: the format has that name for itself")
    arrays = {name: tensor.detach().contiguous().clone() for name, tensor in message.arrays.items()}
    data = to_bytes(arrays, _metadata(message))
    if len(_header(message)) > MAX_HEADER:
        raise BadMessage(f"the names and shapes of {len(arrays)} arrays take more than {MAX_HEADER} bytes")
    return data


def size(message: Down | Up) -> int:
    """The number of bytes ``encode`` would give, without making them."""
    return 8 + len(_header(message)) + sum(tensor.nbytes for tensor in message.arrays.values())


def decode(data: bytes) -> Down | Up:
    """The message in these bytes; anything that is not exactly one whole message is a BadMessage."""
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else 0
    if not 0 < length <= min(MAX_HEADER, len(data) - 8):
        raise BadMessage(f"not a fedkeel message: {len(data)} bytes that start with {data[:5]!r}")
    try:
        found = dict(deserialize(data))  # type: ignore[no-untyped-call]
        about = json.loads(data[8 : 8 + length]).get("__metadata__")
        arrays = {name: _array(name, entry["dtype"], entry["shape"], entry["data"]) for name, entry in found.items()}
        return _message(about, arrays)
    except SafetensorError as error:
        raise BadMessage(f"the arrays are not whole: {error}") from None
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, struct.error) as error:
        raise BadMessage(f"not a fedkeel message: {error}") from None


def _array(name: str, dtype: str, shape: list[int], data: bytes) -> torch.Tensor:
    if dtype not in NUMPY:
        raise BadMessage(f"array {name!r} has dtype {dtype}, expected one of {', '.join(NUMPY)}")
    if len(shape) > MAX_AXES or max(shape, default=0) > MAX_AXIS or prod(axis or 1 for axis in shape) > MAX_NUMBERS:
        raise BadMessage(f"array {name!r} has shape {tuple(shape)}, too large for a message")
    # A copy: arithmetic may round differently where memory is not aligned, as it is in a message.
    return torch.from_numpy(np.frombuffer(data, NUMPY[dtype]).reshape(shape).copy())


def _message(about: dict[str, str], arrays: Tree) -> Down | Up:
    if not isinstance(about, dict) or about.keys() != KEYS:
        raise BadMessage("not a fedkeel message: its metadata are others")
    names, round = json.loads(about["names"]), int(about["round"])
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(arrays):
        raise BadMessage("the arrays are not those that the message names")
    if not 0 <= round <= MAX_ROUND:
        raise BadMessage(f"round {round} is none")
    in_order = {name: arrays[name] for name in names}
    if about["fedkeel"] == "down":
        accepted = int(about["accepted"])
        if not NEVER <= accepted <= MAX_EXCHANGE:
            raise BadMessage(f"exchange {accepted} is none")
        return Down(about["run"], round, about["phase"], in_order, accepted)
    if about["fedkeel"] != "up":
        raise BadMessage(f"not a fedkeel message but {about['fedkeel'][:20]!r}")
    (weight,) = struct.unpack("<d", bytes.fromhex(about["weight"]))
    return Up(about["run"], round, about["phase"], about["client"], weight, in_order)


def _metadata(message: Down | Up) -> dict[str, str]:
    if isinstance(message, Up):
        weight = struct.pack("<d", message.weight).hex()
        own = {"fedkeel": "up", "client": message.client, "weight": weight, "accepted": ""}
    else:
        own = {"fedkeel": "down", "client": "", "weight": "", "accepted": f"{message.accepted:016d}"}
    return {
        **own,
        "run": message.run,
        "round": f"{message.round:09d}",
        "phase": message.phase,
        "names": json.dumps(list(message.arrays), ensure_ascii=False, separators=(",", ":")),
    }


def _header(message: Down | Up) -> bytes:
    """As long as the header that safetensors writes, which is filled up to a multiple of eight bytes."""
    entries: dict[str, object] = {"__metadata__": _metadata(message)}
    at, laid_out = 0, list(DTYPES)
    for name, tensor in sorted(message.arrays.items(), key=lambda item: (laid_out.index(str(item[1].dtype)), item[0])):
        entries[name] = {
            "dtype": DTYPES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    return text.ljust(-(-len(text) // 8) * 8)
