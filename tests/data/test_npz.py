"""An npz file says what it takes before any of it is read: lies and bombs cost one line, not the memory."""

from __future__ import annotations

import io
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.core import memory
from fedkeel.core.errors import FedkeelError
from fedkeel.data.sources import npz
from fedkeel.data.sources.npz import read_npz

Y = np.arange(60) % 3


def member(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array)
    return out.getvalue()


def says(shape: tuple[int, ...], dtype: str = "<f4", data: bytes = bytes(960)) -> bytes:
    """An array of 60 x 4 numbers that says it is something else."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


def packed(path: Path, x: bytes, how: int = zipfile.ZIP_STORED, **more: bytes) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in {"x.npy": x, "y.npy": member(Y), **more}.items():
            archive.writestr(name, data)
    return path


LIES: dict[str, tuple[bytes, str]] = {
    "a shape of terabytes": (says((60, 10**12)), r"array x says that it is float32 \(60, 1000000000000\), which is"),
    "a smaller shape": (says((60, 2)), "which is 480 bytes, but 960 are there"),
    "less than nothing": (says((-60, -4)), "array x has no sound header"),
    "entries of no size": (says((10**12,), "<U0", b""), "array x has no sound header"),
    "Python objects": (says((60,), "|O"), "array x holds Python objects"),
    "a header without end": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000, "no sound header"),
    "no array at all": (b"hello", "array x has no sound header"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_array_that_lies(tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("read before it was checked")

    monkeypatch.setattr(np.lib.format, "read_array", never)
    data, line = LIES[lie]
    with pytest.raises(FedkeelError, match=line) as error:
        read_npz(packed(tmp_path / "rows.npz", data))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_honest_files_are_read(tmp_path: Path, how: int) -> None:
    x = np.asfortranarray(np.arange(240, dtype=">f8").reshape(60, 4))
    read = read_npz(packed(tmp_path / "rows.npz", member(x), how))
    assert np.array_equal(read["x"], x)
    assert np.array_equal(read["y"], Y)


def test_arrays_of_newer_formats_are_read(tmp_path: Path) -> None:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ones((60, 4)), version=(2, 0))
    assert read_npz(packed(tmp_path / "rows.npz", out.getvalue()))["x"].shape == (60, 4)


def test_a_bomb_is_refused_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the size of this file the rule is lowered, not the bomb raised: the real one has 5 GB."""
    path = packed(tmp_path / "bomb.npz", member(np.zeros((60, 100_000), np.float32)), zipfile.ZIP_DEFLATED)
    assert read_npz(path)["x"].shape == (60, 100_000), "small ones harm nobody"
    monkeypatch.setattr(npz, "BOMB_SIZE", 1 << 20)
    with pytest.raises(FedkeelError, match=r"expands from 0.0 MB to 0.0 GB, .* times as much.*numpy.savez instead"):
        read_npz(path)
    read_npz(packed(tmp_path / "plain.npz", member(np.zeros((60, 100_000), np.float32))))  # the remedy


def test_what_memory_cannot_take_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path / "rows.npz", member(np.ones((60, 1000))))
    monkeypatch.setattr(npz, "available", lambda: 1 << 18)
    with pytest.raises(FedkeelError, match=r"expands to 0.0 GB, but 0.0 GB of memory are free"):
        read_npz(path)


def test_a_directory_that_lies(tmp_path: Path) -> None:
    """The zip's directory says that a member is there in terabytes."""
    path = packed(tmp_path / "rows.npz", says((60, 10**9)))
    data = bytearray(path.read_bytes())
    size = struct.pack("<I", len(says((60, 10**9))))
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"x.npy"))
    assert data[at + 20 : at + 24] == size
    there = len(says((60, 10**9))) - 960
    data[at + 20 : at + 28] = struct.pack("<I", (there + 60 * 4 * 10**7) & 0xFFFFFFFF) * 2
    path.write_bytes(data)
    with pytest.raises(FedkeelError, match="damaged"):
        read_npz(path)


@pytest.mark.parametrize(
    ("data", "line"),
    [(b"", "is not an .npz file"), (b"\x80\x04K\x01.", "is not an .npz file"), (member(Y), "is one array")],
)
def test_what_is_no_npz(tmp_path: Path, data: bytes, line: str) -> None:
    (tmp_path / "rows.npz").write_bytes(data)
    with pytest.raises(FedkeelError, match=line):
        read_npz(tmp_path / "rows.npz")


def test_names_that_mean_nothing_or_stand_twice(tmp_path: Path) -> None:
    with pytest.raises(FedkeelError, match=r"unknown array in .*'X'"):
        read_npz(packed(tmp_path / "rows.npz", member(Y), X=member(Y)))
    with pytest.raises(FedkeelError, match="holds the array y twice"):
        read_npz(packed(tmp_path / "rows.npz", member(Y), y=member(Y)))


def test_memory_counts_the_machine_and_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    free = memory.available()
    assert 0 < free < 1 << 50
    monkeypatch.setattr(resource, "getrlimit", lambda which: (0, 0))
    assert memory.available() == 0, "more than the limit is in use already"
