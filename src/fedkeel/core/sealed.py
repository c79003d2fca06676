"""Files that carry the sha256 of themselves: whatever is changed in one, be it a bit, is noticed before it is read.

The seal stands in the file as 64 letters; it is taken over the whole file with noughts in their place.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedkeel.core.atomic import write_atomically
from fedkeel.core.tree import Tree, from_bytes, to_bytes

KEY, BLANK = "sealed", "0" * 64
MARK = re.compile(rb'sealed\\?": \\?"([0-9a-f]{64})')
"""In JSON, also where that is a text in JSON, and in a comment."""


class Unsound(Exception):
    """A file that is not as it was written, or was never sealed."""


def seal(data: bytes) -> bytes:
    """The data with their seal in the first place that is left for one: ``"sealed": BLANK``."""
    found = MARK.search(data)
    assert found is not None
    return data[: found.start(1)] + sha256(data).hexdigest().encode() + data[found.end(1) :]


def seal_of(data: bytes) -> str:
    """The seal that the data carry, which is the right one."""
    found = MARK.search(data)
    if found is None:
        raise Unsound("it has no seal")
    whole = sha256(data[: found.start(1)])
    whole.update(BLANK.encode())
    whole.update(memoryview(data)[found.end(1) :])
    if whole.hexdigest().encode() != found[1]:
        raise Unsound("its seal is broken")
    return whole.hexdigest()


def write_tensors(path: Path, tensors: Tree, about: dict[str, Any]) -> str:
    """A sealed safetensors file with ``about`` as its metadata; gives the seal."""
    text = json.dumps({KEY: BLANK, **about})
    data = seal(to_bytes({name: value.contiguous() for name, value in tensors.items()}, {"fedkeel": text}))
    write_atomically(path, data)
    return str(_about(data)[KEY])


def read_tensors(path: Path) -> tuple[Tree, dict[str, Any]]:
    """What ``write_tensors`` wrote, and nothing else; the seal is part of what it is about."""
    data = path.read_bytes()
    seal_of(data)
    try:
        # Copied, because arithmetic may round differently where memory is not aligned, as it is in the file.
        return {name: value.clone() for name, value in from_bytes(data).items()}, _about(data)
    except Exception as error:  # a seal of ours on something else
        raise Unsound(f"it is another kind of file ({type(error).__name__})") from None


def write_number(path: Path, number: int) -> None:
    """A sealed file that holds one number."""
    write_atomically(path, seal(json.dumps({KEY: BLANK, "number": number}).encode()))


def read_number(path: Path) -> int | None:
    """What ``write_number`` wrote; None if nothing was written yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    seal_of(data)
    return int(json.loads(data)["number"])


def _about(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    about: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["fedkeel"])
    return about
