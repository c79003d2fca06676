"""A short ``make fuzz``: the first examples of every target, and what was found before."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz.examine import Finding, examine, hunt
from fuzz.mutations import DEEP
from fuzz.targets import SLOW, TARGETS, Target


@pytest.mark.parametrize("name", TARGETS)
def test_only_fedkeel_errors_leave(name: str, tmp_path: Path) -> None:
    seen = hunt(TARGETS[name](tmp_path), 10 if name in SLOW else 100, number=0)
    if seen.error is not None:
        raise AssertionError(f"{seen.data[:200]!r}") from seen.error


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{"x": np.arange(12.0).reshape(4, 3), "y": np.array([0, 1, 0, 1]), **arrays})  # type: ignore[arg-type]
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def about(**said: Any) -> bytes:
    """What a model says of itself."""
    sound = {"method": {"name": "fedavg"}, "data": {}, "class_names": ["a", "b"], "temperature": None}
    return json.dumps({**sound, **said}).encode()


FOUND = {
    "a section and a key of it": ("config-set", b'["run=1", "run.seed=2"]'),
    "bytes that are no text": ("config-set", b'["data.cache=\\udcff"]'),
    "a name that is no text": ("variant", b'"\\udcff"'),
    "a deep manifest": ("manifest", b"[" * DEEP),
    "strings of no letters": ("npz", npz(y=np.array([0x7FFFFFFF, 97, 98, 99], np.uint32).view("U1"))),
    "strings of half letters": ("npz", npz(client=np.array([0xD800, 97, 98, 99], np.uint32).view("U1"))),
    "labels that are dates": ("npz", npz(x_test=np.ones((4, 3)), y_test=np.zeros(4, "M8[s]"))),
    "labels of two odd kinds": ("npz", npz(y=np.zeros(4, "c16"), x_test=np.ones((4, 3)), y_test=np.zeros(4, "M8[s]"))),
    "a method that cannot be": ("forged-model", about(method={"name": "fedavg", "participation": []})),
    "classes without names": ("forged-model", about(class_names=[None, 1])),
    "a temperature of nothing": ("forged-model", about(temperature=0.0)),
    "a long name in a list": ("image-list", b"0" + b"9" * 300 + b"/1.jpg 0"),
    "numbers of no bytes": ("npy", b"fog.npy\0" + npy(np.zeros(150, "u1")).replace(b"'|u1'", b"'|V0'")),
    "deep features": ("features", b"meta.json\0" + b"[" * DEEP),
}


@pytest.mark.parametrize(("name", "data"), FOUND.values(), ids=FOUND.keys())
def test_what_was_found_once_is_refused(name: str, data: bytes, tmp_path: Path) -> None:
    assert not examine(TARGETS[name](tmp_path), data)


def test_a_model_that_says_nothing_wrong_is_read(tmp_path: Path) -> None:
    assert examine(TARGETS["forged-model"](tmp_path), about())


@pytest.mark.parametrize(("there", "instead"), [(b"CREATE TABLE", b"CRE\x8eTE TABLE"), (b"site-1", b"site\x8e1")])
def test_sqlite_may_hold_text_that_is_none(there: bytes, instead: bytes, tmp_path: Path) -> None:
    target = TARGETS["store"](tmp_path)
    whole = (tmp_path / "private.sqlite").read_bytes()
    assert there in whole
    assert not examine(target, whole.replace(there, instead))


def test_examples_are_the_same_each_time_and_a_finding_is_made_small() -> None:
    def check(data: bytes) -> None:
        tried.append(data)
        assert 7 not in data

    runs = []
    for _ in range(2):
        tried = list[bytes]()
        seen = hunt(Target(lambda draw: bytes(draw.randrange(10) for _ in range(draw.randrange(20))), check), 200, 1)
        assert isinstance(seen.error, AssertionError)
        assert (seen.data, tried[-1]) == (b"\x07", b"\x07")
        runs.append(tried)
    assert runs[0] == runs[1]


def test_what_is_wrong_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another error, a change that nobody noticed, too much time and too much memory."""

    def check(data: bytes) -> None:
        if data == b"error":
            raise KeyError
        if data == b"slow":
            while True:
                pass
        if data == b"large":
            bytearray(2**27)
        if data == b"endless":
            bytearray(2**40)
        assert data != b"changed"

    monkeypatch.setattr("fuzz.examine.SECONDS", 0.2)
    target = Target(lambda draw: b"", check, megabytes=100)
    bytearray(2**28)  # a peak that is over
    assert examine(target, b"sound")
    wrong = {
        b"error": KeyError,
        b"slow": Finding,
        b"changed": AssertionError,
        b"large": Finding,
        b"endless": MemoryError,
    }
    for data, expected in wrong.items():
        with pytest.raises(expected):
            examine(target, data)
