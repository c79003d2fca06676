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
from typing import Any

import numpy as np
from hypothesis import strategies as st

Bytes = st.SearchStrategy[bytes]
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
PLACE = st.integers(0, 2**20)


def changed(whole: bytes) -> Bytes:
    """One to four changes to the bytes, anywhere."""

    def apply(steps: Iterable[tuple[Callable[[bytearray, int, int], None], int, int]]) -> bytes:
        data = bytearray(whole)
        for change, at, to in steps:
            if data:
                change(data, at % len(data), to)
        return bytes(data)

    return st.lists(st.tuples(st.sampled_from(CHANGES), PLACE, PLACE), min_size=1, max_size=4).map(apply)


def lines_changed(whole: bytes) -> Bytes:
    """Lines lost, doubled or in another order."""
    lines = whole.splitlines(keepends=True)
    picks = st.lists(st.integers(0, len(lines) - 1), max_size=2 * len(lines))
    one_less = st.integers(0, len(lines) - 1).map(lambda at: [i for i in range(len(lines)) if i != at])
    return st.one_of(picks, one_less).map(lambda order: b"".join(lines[at] for at in order))


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to everything in a JSON value, the whole first."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, item in inside for path in _places(item, (*here, key)))]


def _at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def json_changed(value: Any) -> st.SearchStrategy[Any]:
    """A JSON value of which one or two things are odd, missing, new or in the place of another."""
    text = json.dumps(value)

    def apply(steps: Iterable[tuple[str, int, int]]) -> Any:
        found = json.loads(text)
        for kind, at, to in steps:
            places = _places(found)
            path, other = places[at % len(places)], places[to % len(places)]
            if not path:
                if to % 50 == 0:
                    return ODD[at % len(ODD)]
                continue
            holder, key = _at(found, path[:-1]), path[-1]
            if kind == "odd":
                holder[key] = ODD[to % len(ODD)]
            elif kind == "missing":
                del holder[key]
            elif kind == "other":
                holder[key] = json.loads(json.dumps(_at(found, other)))
            elif isinstance(holder, dict):
                holder[str(ODD[to % len(ODD)])] = ODD[at % len(ODD)]
            else:
                holder.insert(key, ODD[to % len(ODD)])
        return found

    kinds = st.sampled_from(("odd", "missing", "other", "new"))
    return st.lists(st.tuples(kinds, PLACE, PLACE), min_size=1, max_size=2).map(apply)


def written(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_bytes(whole: bytes) -> Bytes:
    """A JSON file, changed in its bytes or in what it says."""
    return st.one_of(changed(whole), json_changed(json.loads(whole)).map(written))


def jsonl_bytes(whole: bytes) -> Bytes:
    """A file of JSON lines, changed in its bytes, its lines or in what one of them says."""
    lines = whole.splitlines()

    def one(number: int) -> Bytes:
        def put(value: Any) -> bytes:
            return b"\n".join([*lines[:number], written(value), *lines[number + 1 :]]) + b"\n"

        return json_changed(json.loads(lines[number])).map(put)

    return st.one_of(changed(whole), lines_changed(whole), st.integers(0, len(lines) - 1).flatmap(one))


def safetensors_bytes(whole: bytes) -> Bytes:
    """A safetensors file, changed in its bytes, in its header or in the JSON that its metadata hold."""
    length = int.from_bytes(whole[:8], "little")
    header, numbers = json.loads(whole[8 : 8 + length]), whole[8 + length :]

    def put(value: Any) -> bytes:
        text = written(value)
        text = text.ljust(-(-len(text) // 8) * 8)
        return struct.pack("<Q", len(text)) + text + numbers

    ways = [changed(whole), json_changed(header).map(put)]
    for key, text in header.get("__metadata__", {}).items():
        try:
            inside = json.loads(text)
        except ValueError:
            continue

        def put_inside(value: Any, key: str = key) -> bytes:
            return put({**header, "__metadata__": {**header["__metadata__"], key: json.dumps(value)}})

        ways.append(json_changed(inside).map(put_inside))
    return st.one_of(ways)


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


def npz_bytes(whole: bytes) -> Bytes:
    """An npz file, changed in its bytes, or with members lost, renamed, doubled or changed, and checksums that hold."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = sorted(members)

    def packed(entries: Iterable[tuple[str, bytes]]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in entries:
                archive.writestr(zipfile.ZipInfo(name), content)
        return file.getvalue()

    def member(name: str) -> Bytes:
        inside = st.one_of(changed(members[name]), _npy_header(members[name]), _array(members[name]))
        return inside.map(lambda content: packed({**members, name: content}.items()))

    def listed(picks: Sequence[tuple[str, str]]) -> bytes:
        return packed(list({as_name: members[name] for name, as_name in picks}.items()))

    picks = st.lists(st.tuples(st.sampled_from(names), st.sampled_from([*names, "z.npy", "../x.npy", "x", ""])))
    return st.one_of(changed(whole), st.sampled_from(names).flatmap(member), picks.map(listed))


def _npy_header(whole: bytes) -> Bytes:
    """Another shape or kind of number than the content has."""
    length = int.from_bytes(whole[8:10], "little")
    content = whole[10 + length :]

    def put(lies: tuple[str, str, str]) -> bytes:
        text = "{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n" % lies  # noqa: UP031  braces
        return whole[:8] + len(text).to_bytes(2, "little") + text.encode() + content

    return st.tuples(st.sampled_from(DESCRS), st.sampled_from(("False", "True", "7")), st.sampled_from(SHAPES)).map(put)


def _array(whole: bytes) -> Bytes:
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

    return st.sampled_from([saved(array) for array in odd])


def png_bytes(whole: bytes) -> Bytes:
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

    def one(number: int) -> Bytes:
        kind, body = chunks[number]
        return changed(body or b"\0").map(lambda new: packed([*chunks[:number], (kind, new), *chunks[number + 1 :]]))

    return st.one_of(changed(whole), st.integers(0, len(chunks) - 1).flatmap(one))
