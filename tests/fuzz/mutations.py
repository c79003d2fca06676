"""Damage and malice, written once: what is whole comes out changed, at its bytes, its text, its JSON or its parts.

Changes to something whole find far more than random bytes, which no parser reads further than its first line.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import pairwise
from pickletools import genops
from random import Random
from typing import Any

import numpy as np

Make = Callable[[Random], bytes]
"""Another example with every draw."""
DEEP, DIGITS = 100_000, 5_000
"""Brackets within brackets, and digits of a number: more than a parser takes."""
TOKENS = (
    b"", b"\n", b"\r\n", b"\0", b'"', b"'", b",", b":", b"=", b"[", b"]", b"{", b"}", b"#", b"\\", b"-", b"0", b"1e999",
    b"-1", b"9" * 30, b"9" * DIGITS, b"nan", b"inf", b"null", b"true", b"[/foo]", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\\ud800", b"\xe2\x80\xa8", b"../..", b"[" * DEEP, b'{"a":' * DEEP, b"x" * 70_000,
)  # fmt: skip
"""Texts that mean something to one parser or another."""
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 2**64, 10**30, 1.5, -0.0, 1e-320, 1e308, float("nan"),
    float("inf"), "", "x", "[/foo]", "../../x", "a\nb", "\0", "\ud800", "x" * 70_000, "1", "nan", [], {}, [None], [[]],
    {"": 0}, [0] * 1000, {"a": {"a": {"a": []}}},
)  # fmt: skip
"""Values in the place of others."""


def _flip(data: bytearray, at: int, to: int) -> None:
    data[at] ^= 1 << to % 8


def _set(data: bytearray, at: int, to: int) -> None:
    data[at] = to % 256


def _cut_out(data: bytearray, at: int, to: int) -> None:
    del data[at : at + 1 + to % 64]


def _cut_off(data: bytearray, at: int, to: int) -> None:
    del data[at:]


def _double(data: bytearray, at: int, to: int) -> None:
    data[at:at] = data[at : at + 1 + to % 64]


def _swap(data: bytearray, at: int, to: int) -> None:
    """Two pieces of equal length change places."""
    other, length = to % len(data), 1 + to % 40
    first, second = sorted((at, other))
    length = min(length, second - first, len(data) - second)
    data[first : first + length], data[second : second + length] = (
        data[second : second + length],
        data[first : first + length],
    )


def _insert(data: bytearray, at: int, to: int) -> None:
    data[at:at] = TOKENS[to % len(TOKENS)]


def _overwrite(data: bytearray, at: int, to: int) -> None:
    token = TOKENS[to % len(TOKENS)]
    data[at : at + len(token)] = token


def _zeros(data: bytearray, at: int, to: int) -> None:
    """What a file system leaves of a block that was never written."""
    end = min(len(data), at + 1 + to % 4096)
    data[at:end] = bytes(end - at)


CHANGES: tuple[Callable[[bytearray, int, int], None], ...] = (
    _flip, _set, _cut_out, _cut_off, _double, _swap, _insert, _overwrite, _zeros,
)  # fmt: skip


def one_of(*ways: Make) -> Make:
    return lambda draw: draw.choice(ways)(draw)


def changed(whole: bytes) -> Make:
    """One to four changes to the bytes, half of them near the beginning, where formats say what they are."""

    def make(draw: Random) -> bytes:
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 4))):
            if data:
                at = draw.randrange(draw.choice((len(data), min(len(data), 300))))
                draw.choice(CHANGES)(data, at, draw.randrange(2**20))
        return bytes(data)

    return make


def lines_changed(whole: bytes) -> Make:
    """Lines lost, doubled or in another order."""
    lines = whole.splitlines(keepends=True)

    def make(draw: Random) -> bytes:
        order = list(range(len(lines)))
        if draw.random() < 0.5:
            del order[draw.randrange(len(order))]
        else:
            order = draw.choices(order, k=draw.randrange(2 * len(lines)))
        return b"".join(lines[at] for at in order)

    return make


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to everything in a JSON value, the whole first."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, item in inside for path in _places(item, (*here, key)))]


def _at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def json_changed(value: Any) -> Callable[[Random], Any]:
    """A JSON value of which one or two things are odd, missing, new or in the place of another."""
    text = json.dumps(value)

    def make(draw: Random) -> Any:
        found = json.loads(text)
        for _ in range(draw.choice((1, 1, 2))):
            places = _places(found)
            path = draw.choice(places)
            if not path:
                return deepcopy(draw.choice(ODD))
            holder, key, odd = _at(found, path[:-1]), path[-1], deepcopy(draw.choice(ODD))
            kind = draw.choice(("odd", "odd", "missing", "other", "new"))
            if kind == "odd":
                holder[key] = odd
            elif kind == "missing":
                del holder[key]
            elif kind == "other":
                holder[key] = json.loads(json.dumps(_at(found, draw.choice(places))))
            elif isinstance(holder, dict):
                holder[str(odd)] = deepcopy(draw.choice(ODD))
            else:
                holder.insert(key, odd)
        return found

    return make


def written(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_bytes(whole: bytes) -> Make:
    """A JSON file, changed in its bytes or in what it says."""
    said = json_changed(json.loads(whole))
    return one_of(changed(whole), lambda draw: written(said(draw)))


def jsonl_bytes(whole: bytes) -> Make:
    """A file of JSON lines, changed in its bytes, its lines or in what one of them says."""
    lines = whole.splitlines()

    def one(draw: Random) -> bytes:
        number = draw.randrange(len(lines))
        said = written(json_changed(json.loads(lines[number]))(draw))
        return b"\n".join([*lines[:number], said, *lines[number + 1 :]]) + b"\n"

    return one_of(changed(whole), lines_changed(whole), one)


def safetensors_bytes(whole: bytes) -> Make:
    """A safetensors file, changed in its bytes, in its header or in the JSON that its metadata hold."""
    length = int.from_bytes(whole[:8], "little")
    header, numbers = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    about = header.get("__metadata__", {})

    def put(value: Any) -> bytes:
        text = written(value)
        text = text.ljust(-(-len(text) // 8) * 8)
        return struct.pack("<Q", len(text)) + text + numbers

    def inside(draw: Random) -> bytes:
        key = draw.choice(sorted(about) or [""])
        try:
            said = json.loads(about[key])
        except (KeyError, ValueError):
            return put(json_changed(header)(draw))
        return put({**header, "__metadata__": {**about, key: json.dumps(json_changed(said)(draw))}})

    return one_of(changed(whole), lambda draw: put(json_changed(header)(draw)), inside)


SHAPES = ("()", "(0,)", "(2,)", "(-1,)", "(10**9,)", "(99999999999,)", "(4294967296, 4294967296)", "(1,)*70", "(True,)")
DESCRS = (
    "'|O'",
    "'<f8'",
    "'<U999999999'",
    "'|V0'",
    "[('a','<f4')]",
    "'<M8[s]'",
    "'>i2'",
    "'<c16'",
    "'zz'",
    "None",
    "1",
)


def npz_bytes(whole: bytes) -> Make:
    """An npz file, changed in its bytes, or with members lost, renamed, doubled or changed, and checksums that hold."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = sorted(members)
    ways = {name: npy_bytes(members[name]) for name in names}

    def packed(entries: dict[str, bytes]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in entries.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        return file.getvalue()

    def inside(draw: Random) -> bytes:
        name = draw.choice(names)
        return packed({**members, name: ways[name](draw)})

    def others(draw: Random) -> bytes:
        called = [*names, "z.npy", "../x.npy", "x", ""]
        return packed({draw.choice(called): members[draw.choice(names)] for _ in range(draw.randrange(8))})

    return one_of(changed(whole), inside, inside, others)


def npy_bytes(whole: bytes) -> Make:
    """A .npy file, changed in its bytes, in what it says of itself or in its array."""
    return one_of(changed(whole), _npy_header(whole), _array(whole))


def _npy_header(whole: bytes) -> Make:
    """Another shape or kind of number than the content has."""
    length = int.from_bytes(whole[8:10], "little")
    content = whole[10 + length :]

    def make(draw: Random) -> bytes:
        lies = draw.choice(DESCRS), draw.choice(("False", "True", "7")), draw.choice(SHAPES)
        text = "{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n" % lies  # noqa: UP031  braces
        return whole[:8] + len(text).to_bytes(2, "little") + text.encode() + content

    return make


def _array(whole: bytes) -> Make:
    """Sound arrays that do not belong there."""
    there = np.lib.format.read_array(io.BytesIO(whole), allow_pickle=False)
    odd = [
        there[:0], there[:1], there[None], there.ravel(), there.T, there.astype("U"), there.astype("S"), there == there,
        np.array(3), np.full(there.shape, np.nan), np.full(there.shape, 1e300), np.full(there.shape, -(2**63)),
        np.zeros(there.shape, "M8[s]"), np.zeros(there.shape, "c16"), np.full(there.shape, ""), np.zeros((2, 0)),
        np.full(there.shape, "a\nb"), np.full(there.shape, 2**64 - 1, dtype=np.uint64), np.zeros(there.shape, "f2"),
        np.zeros((len(there), 2, 2, 3), np.uint8), np.full((len(there), 3), np.inf),
        np.zeros(there.shape, [("a", "i4")]),
    ]  # fmt: skip

    def saved(array: np.ndarray) -> bytes:
        file = io.BytesIO()
        np.lib.format.write_array(file, array, allow_pickle=False)
        return file.getvalue()

    contents = [saved(array) for array in odd]
    return lambda draw: draw.choice(contents)


STRANGE = (
    b"cos\nsystem\n", b"cnumpy\nload\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"R", b"b", b"o", b"(", b"t", b"]",
    b"}", b")", b"e", b"u", b"s", b"a", b"0", b"2", b"N", b".", b"q\x07", b"r\xff\xff\xff\x7f", b"h\x01", b"h\x09",
    b"J\xff\xff\xff\x7f", b"K\x00", b"U\x02O8", b"T\xff\xff\xff\x7f", b"L" + b"9" * DIGITS + b"L\n", b"]" * DEEP,
    b"\x85" * DEEP, b"I01\n", b"\x8e" + b"\xff" * 8,
)  # fmt: skip
"""Instructions of pickles in the place of others."""


def pickle_bytes(whole: bytes) -> Make:
    """A pickle, changed in its bytes, or with instructions lost, doubled, in another order or strange."""
    places = [*(place or 0 for _, _, place in genops(whole)), len(whole)]
    parts = [whole[start:end] for start, end in pairwise(places)]

    def make(draw: Random) -> bytes:
        found = list(parts)
        for _ in range(draw.choice((1, 1, 2, 4))):
            at, other = draw.randrange(len(found)), draw.randrange(len(found))
            new = draw.choice(([], [found[at]] * 2, [draw.choice(STRANGE)], [found[at], draw.choice(STRANGE)], None))
            if new is None:
                found[at], found[other] = found[other], found[at]
            elif len(found) > 2:
                found[at : at + 1] = new
        return b"".join(found)

    return one_of(changed(whole), make, make)


def png_bytes(whole: bytes) -> Make:
    """A PNG file, changed in its bytes or in a chunk whose checksum holds."""
    chunks, at = [], 8
    while at < len(whole):
        length = int.from_bytes(whole[at : at + 4], "big")
        chunks.append((whole[at + 4 : at + 8], whole[at + 8 : at + 8 + length]))
        at += 12 + length

    def packed(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
        made = (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in entries
        )
        return whole[:8] + b"".join(made)

    def one(draw: Random) -> bytes:
        number = draw.randrange(len(chunks))
        kind, body = chunks[number]
        return packed([*chunks[:number], (kind, changed(body or b"\0")(draw)), *chunks[number + 1 :]])

    return one_of(changed(whole), one)


def text(draw: Random) -> str:
    """Any letters, rare ones among them."""
    letters = (
        lambda: chr(draw.randrange(32, 127)),
        lambda: chr(draw.randrange(0x11000)),
        lambda: draw.choice("=.:,[]{}\"'"),
    )
    return "".join(draw.choice(letters)() for _ in range(draw.randrange(20)))
