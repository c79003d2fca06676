"""The codec: what goes in comes out, and nothing but a whole message gets in."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedkeel.core.errors import BadMessage
from fedkeel.core.message import FIXED, Down, Up, decode, encode, size

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=20),
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.float16, np.int64]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    max_size=5,
)


@given(ARRAYS, st.integers(0, 2**32 - 1), st.floats(), st.text(max_size=40), st.text(max_size=40))
def test_round_trip(arrays, round, weight, phase, client):  # type: ignore[no-untyped-def]
    tree = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    for message in (Up(round, phase, client, weight, tree), Down(round, phase, tree)):
        data = encode(message)
        assert len(data) == size(message)
        back = decode(data)
        assert type(back) is type(message)
        assert (back.round, back.phase) == (round, phase)
        assert list(back.arrays) == list(tree)
        for name, tensor in tree.items():
            assert back.arrays[name].dtype == tensor.dtype
            assert back.arrays[name].shape == tensor.shape
            assert back.arrays[name].numpy().tobytes() == tensor.numpy().tobytes()
        if isinstance(back, Up):
            assert struct.pack("<d", back.weight) == struct.pack("<d", weight)
            assert back.client == client


GOOD = encode(Up(3, "train", "site-1", 17.0, {"head.weight": torch.ones(2, 3), "head.bias": torch.zeros(2)}))


def test_the_bytes_of_a_small_message() -> None:
    """Counted by hand: 19 fixed + (1 + 5) phase + (1 + 6) client + weight (1 + 11 + 2 + 8) + bias (1 + 9 + 2 + 4)
    + 4 * (6 + 2) bytes of numbers = 102."""
    assert FIXED.size == 19
    assert len(GOOD) == 19 + 6 + 7 + 22 + 16 + 32


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


@settings(max_examples=500)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_a_message_or_a_bad_message(position: int, change: int) -> None:
    data = bytearray(GOOD)
    data[position] ^= change
    with suppress(BadMessage):  # and nothing else
        decode(bytes(data))


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_every_cut_is_refused(cut: int) -> None:
    with pytest.raises(BadMessage):
        decode(GOOD[:cut])
    with pytest.raises(BadMessage):
        decode(GOOD + bytes(cut + 1))


def test_a_length_bomb_is_refused_before_anything_is_allocated() -> None:
    """An array that claims 2^32 - 1 squared numbers in a message of a hundred bytes."""
    bomb = FIXED.pack(b"FKL1", 1, 1, 1.0, 1) + b"\x05train\x01a" + b"\x01w\x01\x02" + b"\xff" * 8 + bytes(40)
    with pytest.raises(BadMessage, match="ends early"):
        decode(bomb)


def test_names_that_repeat_are_refused() -> None:
    array = b"\x01w\x01\x01" + struct.pack("<I", 1)
    twice = FIXED.pack(b"FKL1", 0, 1, 0.0, 2) + b"\x05train\x00" + array * 2 + bytes(8)
    with pytest.raises(BadMessage, match="named twice"):
        decode(twice)
