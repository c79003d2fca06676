"""Pickles as data: numbers, texts, lists of them and arrays of bytes by name; nothing that a pickle asks for is done.

The official CIFAR files are pickles that Python 2 wrote. Python's own reader calls what a pickle names, makes room for
what it says and hashes what it nests. Here ``pickletools``, which takes pickles apart and runs none, tells the
instructions one by one. Those that the files are made of are followed, and the three names in them stand for an array
of bytes: there is nothing that another name could reach, and nothing is ever called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np

from fedkeel.core.errors import FedkeelError, printable, shortened

LARGEST = 1 << 29
"""Bytes of a file; the largest official one has 161 million."""
MOST = 1_000_000
"""Instructions; the largest official file has some 200,000, and each may leave an object in memory."""
ARRAY, CLASS, KIND = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
BYTES = "u1"
"""The one kind of number that arrays may hold."""
Content = int | str | list[int] | list[str] | np.ndarray


def read_pickle(path: Path) -> dict[str, Content]:
    """What a pickled dictionary holds; of anything else than numbers, texts, lists and bytes one line says what."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise FedkeelError(f"{path} has {size:,} bytes, expected {LARGEST:,} at most: it is not an official file")
        data = path.read_bytes()
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {error.strerror}") from None
    try:
        return _followed(data)
    except ValueError as error:
        reason = shortened(printable(str(error)))
        raise FedkeelError(
            f"{path} is refused ({reason}): expected a pickle of numbers, texts and arrays of bytes alone; nothing in "
            "it was run; get it again from the official archive"
        ) from None


@dataclass(frozen=True)
class _Name:
    """Something that the pickle wants called."""

    name: str


class _Kind:
    """What stands for numpy's dtype of bytes."""


@dataclass
class _Array:
    content: np.ndarray | None = None


class _Reader:
    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.left = size
        """bytes that arrays may still take: a text of the file must not become many arrays"""

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, count: int = 1) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes what it never gave")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def marked(self) -> list[Any]:
        """All since the last mark."""
        if not self.marks or self.marks[-1] > len(self.stack):
            raise ValueError("it takes what it never gave")
        return self.pop(len(self.stack) - self.marks.pop())

    def top(self, *kinds: type) -> Any:
        if not self.stack or type(self.stack[-1]) not in kinds:
            raise ValueError("it adds to something that cannot take it")
        return self.stack[-1]

    def append(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def store(self, pairs: list[Any]) -> None:
        """Keys are texts: what is nested could take for ever to hash."""
        known = self.top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if type(key) is not str:
                raise ValueError("it has a key that is no text")
            known[key] = value

    def table(self) -> None:
        pairs = self.marked()
        self.push({})
        self.store(pairs)

    def remember(self, number: int) -> None:
        (self.memo[number],) = self.stack[-1:]

    def recall(self, number: int) -> None:
        if number not in self.memo:
            raise ValueError("it repeats what it never said")
        self.push(self.memo[number])

    def name(self, name: str) -> None:
        if name not in (ARRAY, CLASS, KIND):
            raise ValueError(f"it asks for {name.replace(' ', '.', 1)}")
        self.push(_Name(name))

    def make(self) -> None:
        """An array or its kind, where Python would call what is named."""
        wanted, given = self.pop(2)
        first = given[0] if type(given) is tuple and given else None
        if wanted == _Name(ARRAY) and first == _Name(CLASS):
            self.push(_Array())
        elif wanted == _Name(KIND) and type(first) is str:
            if first != BYTES:
                raise ValueError(f"it holds an array of {first}")
            self.push(_Kind())
        else:
            raise ValueError("it calls something that is no array")

    def fill(self) -> None:
        (state,) = self.pop()
        array = self.top(_Array, _Kind)
        if type(array) is _Kind:
            return  # says in which order the bytes of a number stand: here each has one
        if type(state) is not tuple or len(state) != 5:
            raise ValueError("it holds an array without a state")
        _, shape, kind, fortran, content = state
        if type(kind) is not _Kind or type(content) is not str or type(shape) is not tuple:
            raise ValueError("it holds an array of something else than bytes")
        if len(shape) > 4 or not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError("it holds an array of no shape")
        self.left -= len(content)
        if math.prod(shape) != len(content) or self.left < 0:
            raise ValueError("it holds an array of another size than it says")
        flat = np.frombuffer(content.encode("latin-1"), dtype=np.uint8)
        array.content = flat.reshape(shape, order="F" if fortran is True else "C")

    def result(self) -> dict[str, Content]:
        if len(self.stack) != 1:
            raise ValueError("it ends in the middle")
        return {key: _content(key, value) for key, value in self.top(dict).items()}


FOLLOWED: dict[str, Callable[[_Reader, Any], None]] = {
    **dict.fromkeys(("PROTO", "STOP"), lambda reader, said: None),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"), _Reader.push),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _Reader.push),
    "NONE": lambda reader, said: reader.push(None),
    "NEWTRUE": lambda reader, said: reader.push(True),
    "NEWFALSE": lambda reader, said: reader.push(False),
    "EMPTY_TUPLE": lambda reader, said: reader.push(()),
    "EMPTY_LIST": lambda reader, said: reader.push([]),
    "EMPTY_DICT": lambda reader, said: reader.push({}),
    "MARK": lambda reader, said: reader.marks.append(len(reader.stack)),
    "TUPLE": lambda reader, said: reader.push(tuple(reader.marked())),
    "TUPLE1": lambda reader, said: reader.push(tuple(reader.pop(1))),
    "TUPLE2": lambda reader, said: reader.push(tuple(reader.pop(2))),
    "TUPLE3": lambda reader, said: reader.push(tuple(reader.pop(3))),
    "LIST": lambda reader, said: reader.push(reader.marked()),
    "DICT": lambda reader, said: reader.table(),
    "APPEND": lambda reader, said: reader.append(reader.pop()),
    "APPENDS": lambda reader, said: reader.append(reader.marked()),
    "SETITEM": lambda reader, said: reader.store(reader.pop(2)),
    "SETITEMS": lambda reader, said: reader.store(reader.marked()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Reader.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Reader.recall),
    "GLOBAL": _Reader.name,
    "REDUCE": lambda reader, said: reader.make(),
    "BUILD": lambda reader, said: reader.fill(),
}
"""The instructions that the official files are made of."""


def _followed(data: bytes) -> dict[str, Content]:
    reader = _Reader(len(data))
    for number, (instruction, said, _) in enumerate(genops(data), 1):
        if number > MOST:
            raise ValueError(f"it has more than {MOST:,} instructions")
        if instruction.name not in FOLLOWED:
            raise ValueError(f"it has the instruction {instruction.name}")
        FOLLOWED[instruction.name](reader, said)
    return reader.result()


def _content(key: str, value: Any) -> Content:
    if type(value) is _Array and value.content is not None:
        return value.content
    if type(value) in (int, str) or (type(value) is list and {type(entry) for entry in value} in ({int}, {str}, set())):
        return value  # type: ignore[no-any-return]
    raise ValueError(f"under {key!r} it holds something else")
