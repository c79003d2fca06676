"""Files of MATLAB: the values that SciPy writes and reads, and one line about whatever is wrong with them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from fedkeel.core.errors import FedkeelError
from fedkeel.data import mat
from fedkeel.data.mat import read_mat

DRAW = np.random.default_rng(0)
ARRAYS: dict[str, np.ndarray] = {
    kind: DRAW.integers(0, 100, (3, 4)).astype(kind)
    for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
}
ARRAYS |= {"deep": DRAW.normal(size=(2, 3, 4, 5)), "empty": np.zeros((0, 3)), "one": np.ones((1, 1), np.uint8)}
ARRAYS |= {"true": np.array([[True, False]])}


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_those_of_scipy(compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    scipy.io.savemat(path, ARRAYS, do_compression=compressed)
    expected = scipy.io.loadmat(path)
    for name, found in zip(ARRAYS, read_mat(path, list(ARRAYS)), strict=True):
        np.testing.assert_array_equal(found, expected[name])
        assert found.shape == expected[name].shape
        assert found.dtype.itemsize == expected[name].dtype.itemsize


@pytest.mark.parametrize("compressed", [False, True])
def test_cells_hold_texts_arrays_and_cells(compressed: bool, tmp_path: Path) -> None:
    inner = np.empty((1, 2), dtype=object)
    inner[0, 0], inner[0, 1] = "caf\u00e9", np.arange(3.0)[None]
    outer = np.empty((2, 3), dtype=object)
    for row in range(2):
        for column in range(3):
            outer[row, column] = inner if (row, column) == (1, 2) else f"{row}{column}"
    scipy.io.savemat(tmp_path / "x.mat", {"a": outer, "s": "word"}, do_compression=compressed)
    cells, word = read_mat(tmp_path / "x.mat", ("a", "s"))
    assert word == "word"
    assert cells.shape == (2, 3)
    assert [cells[0, 0], cells[0, 1], cells[1, 0]] == ["00", "01", "10"]
    assert cells[1, 2][0, 0] == "caf\u00e9"
    assert cells[1, 2][0, 1].tolist() == [[0, 1, 2]]


def test_the_first_set_of_names_that_is_there(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "x.mat", {"a": 1, "b": 2, "c": 3})
    assert [value.item() for value in read_mat(tmp_path / "x.mat", ("a", "z"), ("c", "b"), ("a",))] == [3, 2]
    with pytest.raises(FedkeelError, match=r"x\.mat has a, b, c: expected the variables z; get it again"):
        read_mat(tmp_path / "x.mat", ("z",))


# --- written by hand


def element(order: str, kind: int, data: bytes) -> bytes:
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(order: str, which: int, shape: tuple[int, ...], name: str, *inside: bytes) -> bytes:
    head = element(order, 6, struct.pack(f"{order}II", which, 0))
    head += element(order, 5, struct.pack(f"{order}{len(shape)}i", *shape)) + element(order, 1, name.encode())
    return element(order, 14, head + b"".join(inside))


def file_of(order: str, *elements: bytes) -> bytes:
    version, mark = (b"\0\x01", b"IM") if order == "<" else (b"\x01\0", b"MI")
    return b"MATLAB 5.0 MAT-file".ljust(124) + version + mark + b"".join(elements)


DOUBLE, TEXT, CELLS = 6, 4, 1


def read(path: Path, data: bytes, name: str = "x") -> Any:
    path.write_bytes(data)
    return read_mat(path, (name,))[0]


@pytest.mark.parametrize("order", "<>")
def test_what_matlab_itself_writes(order: str, tmp_path: Path) -> None:
    """Bytes in either order, whole numbers kept small, texts of two bytes a letter, variables of other kinds beside."""
    path = tmp_path / "x.mat"
    small = struct.pack(f"{order}I", 2 << 16 | 2) + b"\x07\x09\0\0"
    assert read(path, file_of(order, matrix(order, DOUBLE, (1, 2), "x", small))).tolist() == [[7, 9]]
    wide = element(order, 3, struct.pack(f"{order}2h", -7, 900))
    assert read(path, file_of(order, matrix(order, DOUBLE, (1, 2), "x", wide))).tolist() == [[-7, 900]]
    letters = element(order, 4, "na\u00efve".encode("utf-16-le" if order == "<" else "utf-16-be"))
    text = matrix(order, TEXT, (1, 5), "x", letters)
    assert read(path, file_of(order, text)) == "na\u00efve"
    packed = zlib.compress(text)
    opaque = element(order, 14, element(order, 6, struct.pack(f"{order}II", 17, 0)) + b"anything")
    struct_of = matrix(order, 2, (1, 1), "other", b"anything")
    whole = file_of(order, opaque, struct_of, struct.pack(f"{order}II", 15, len(packed)) + packed)
    assert read(path, whole) == "na\u00efve"


def compressed(data: bytes) -> bytes:
    return struct.pack("<II", 15, len(data)) + data


NUMBER = element("<", 9, struct.pack("<d", 1.0))
SOUND = matrix("<", DOUBLE, (1, 1), "x", NUMBER)
NESTED = SOUND
for _ in range(5):
    NESTED = matrix("<", CELLS, (1, 1), "x", NESTED)
WRONG = {
    "nothing": (b"", "it does not begin as one"),
    "something else": (b"x" * 500, "it does not begin as one"),
    "version 7.3": (b"MATLAB 7.3".ljust(124) + b"\0\x02IM" + b"\x89HDF", "version 7.3; get it again, or save it as"),
    "half": (file_of("<", SOUND)[:-4], "it is cut off"),
    "a loose byte": (file_of("<", SOUND, b"x"), "unpack_from requires a buffer"),
    "a small element that is none": (file_of("<", struct.pack("<I", 5 << 16 | 1) + bytes(12)), "it is cut off"),
    "another element": (file_of("<", element("<", 9, SOUND[8:])), "an element of kind 9"),
    "no class": (file_of("<", element("<", 14, element("<", 6, b"1234"))), "a variable has no class"),
    "no shape": (file_of("<", matrix("<", DOUBLE, (1,), "x", NUMBER)), "a variable has no shape"),
    "a shape below zero": (file_of("<", matrix("<", DOUBLE, (-1, -1), "x", NUMBER)), "a variable has no shape"),
    "more numbers": (file_of("<", matrix("<", DOUBLE, (1 << 30, 4), "x", NUMBER)), "4) has 1 numbers"),
    "half a number": (file_of("<", matrix("<", DOUBLE, (1, 1), "x", element("<", 9, b"1234"))), "buffer size must be"),
    "more cells": (file_of("<", matrix("<", CELLS, (1 << 30, 4), "x", SOUND)), "more cells than there can be"),
    "deep cells": (file_of("<", NESTED), "more cells than there can be"),
    "a cell of numbers": (file_of("<", matrix("<", CELLS, (1, 1), "x", NUMBER)), "a cell is an element of kind 9"),
    "a struct": (file_of("<", matrix("<", 2, (1, 1), "x", NUMBER)), "is of class 2: expected numbers"),
    "complex": (file_of("<", matrix("<", DOUBLE | 0x800, (1, 1), "x", NUMBER)), "is of class 2054: expected numbers"),
    "lines": (file_of("<", matrix("<", TEXT, (2, 1), "x", element("<", 16, b"ab"))), "is of class 4: expected numbers"),
    "no letters": (file_of("<", matrix("<", TEXT, (1, 1), "x", element("<", 16, b"\xff"))), "can't decode byte"),
    "packed nothing": (file_of("<", compressed(b"nothing")), "incorrect header check"),
    "packed half": (file_of("<", compressed(zlib.compress(SOUND[:-4]))), "it is cut off"),
    "packed numbers": (file_of("<", compressed(zlib.compress(NUMBER))), "of kind 9"),
}


@pytest.mark.parametrize(("data", "line"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_one_line(data: bytes, line: str, tmp_path: Path) -> None:
    with pytest.raises(FedkeelError) as caught:
        read(tmp_path / "x.mat", data)
    assert str(caught.value).startswith(f"{tmp_path / 'x.mat'} cannot be read as a MATLAB file: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_than_there_is_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = file_of("<", compressed(zlib.compress(matrix("<", DOUBLE, (100, 100), "x", element("<", 9, bytes(80000))))))
    assert read(tmp_path / "x.mat", whole).shape == (100, 100)
    monkeypatch.setattr(mat, "available", lambda: 79000)
    with pytest.raises(FedkeelError, match=r"a variable says that it is 80,056 bytes"):
        read(tmp_path / "x.mat", whole)
    monkeypatch.setattr(mat, "available", lambda: 100)
    with pytest.raises(FedkeelError, match="larger than the memory that is free"):
        read(tmp_path / "x.mat", whole)
    with pytest.raises(FedkeelError, match=r"cannot read .*y\.mat: No such file"):
        read_mat(tmp_path / "y.mat", ("x",))
