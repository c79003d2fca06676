"""The codec: what goes in comes out, and nothing but a whole message gets in."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from federations import TASK, clients
from fedkeel.core.errors import BadMessage
from fedkeel.core.message import MAX_HEADER, MAX_ROUND, NEVER, Down, Up, decode, encode, size
from fedkeel.core.method import METHODS
from fedkeel.core.rng import generator
from fedkeel.engines.wire import WireEngine

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.float16, np.int64]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    max_size=5,
)
TEXTS = st.text(max_size=40)


@given(ARRAYS, TEXTS, st.integers(0, MAX_ROUND), st.floats(), TEXTS, TEXTS, st.integers(NEVER, 10**15))
def test_round_trip(arrays, run, round, weight, phase, client, accepted):  # type: ignore[no-untyped-def]
    tree = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    for message in (Up(run, round, phase, client, weight, tree), Down(run, round, phase, tree, accepted)):
        data = encode(message)
        assert len(data) == size(message)
        back = decode(data)
        assert type(back) is type(message)
        assert (back.run, back.round, back.phase) == (run, round, phase)
        assert list(back.arrays) == list(tree)
        for name, tensor in tree.items():
            assert back.arrays[name].dtype == tensor.dtype
            assert back.arrays[name].shape == tensor.shape
            assert back.arrays[name].numpy().tobytes() == tensor.numpy().tobytes()
        if isinstance(back, Up):
            assert struct.pack("<d", back.weight) == struct.pack("<d", weight)
            assert back.client == client
        else:
            assert back.accepted == accepted


def test_arrays_keep_their_order_whatever_the_layout() -> None:
    """The format sorts by dtype and name; a tree is in the order in which its method made it."""
    tree = {
        "z": torch.ones(2),
        "a": torch.ones(1, dtype=torch.int64),
        "m": torch.ones(3, dtype=torch.float16),
        "b": torch.ones(2, 2, dtype=torch.float64),
        "c": torch.tensor(7.0),
    }
    assert list(decode(encode(Down("run", 1, "train", tree))).arrays) == ["z", "a", "m", "b", "c"]


def test_views_are_sent_as_the_numbers_they_show() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    tree = {"t": whole.T, "row": whole[1], "same": whole[1], "every other": whole[:, ::2]}
    back = decode(encode(Down("run", 1, "train", tree))).arrays
    assert all(torch.equal(back[name], value) for name, value in tree.items())


def test_what_came_is_writable_and_no_view_of_the_message() -> None:
    back = decode(GOOD).arrays["head.weight"]
    back += 1
    assert torch.equal(decode(GOOD).arrays["head.weight"], torch.ones(2, 3))
    assert back.data_ptr() % 4 == 0


GOOD = encode(Up("run-7", 3, "train", "site-1", 17.0, {"head.weight": torch.ones(2, 3), "head.bias": torch.zeros(2)}))
ASKING = encode(Down("run-7", 3, "train", {"head.weight": torch.ones(2, 3), "per_client.x": torch.zeros(2)}, 2001))


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header as it is written, and the numbers."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def made(header: dict[str, Any] | str, numbers: bytes, length: int | None = None) -> bytes:
    """Bytes of the format with any header."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + numbers


def with_about(**changed: str | None) -> bytes:
    """The good message with other metadata; None takes one away."""
    header, numbers = parts(GOOD)
    about = {**header["__metadata__"], **changed}
    header["__metadata__"] = {key: value for key, value in about.items() if value is not None}
    return made(header, numbers)


def with_array(shape: list[int], dtype: str = "F32", numbers: bytes = b"", offsets: list[int] | None = None) -> bytes:
    """A message of one array that is said to have this shape."""
    about = {**parts(GOOD)[0]["__metadata__"], "names": '["w"]'}
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets or [0, len(numbers)]}
    return made({"__metadata__": about, "w": entry}, numbers)


def test_the_bytes_of_a_small_message() -> None:
    """Eight bytes of length, a header filled up to a multiple of eight, 4 * (6 + 2) bytes of numbers."""
    header, numbers = parts(GOOD)
    assert int.from_bytes(GOOD[:8], "little") % 8 == 0
    assert header.keys() == {"__metadata__", "head.bias", "head.weight"}
    assert numbers == np.zeros(2, np.float32).tobytes() + np.ones(6, np.float32).tobytes()
    assert decode(made(header, numbers)).arrays.keys() == {"head.weight", "head.bias"}, "written here, read there"


def test_sizes_do_not_depend_on_numbers() -> None:
    """An engine that makes no bytes counts those of a whole cohort by one message."""
    tree = {"head.weight": torch.ones(2, 3)}
    downs = {size(Down("run", 3, "train", tree, accepted)) for accepted in (NEVER, 0, 1000, 10**9 * 1000)}
    ups = {size(Up("run", round, "train", "a", weight, tree)) for round in (0, 9, 10**8) for weight in (1.0, 1e300)}
    assert len(downs) == len(ups) == 1


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


@given(st.binary(max_size=200))
def test_random_bytes_behind_a_true_length_are_refused(text: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(struct.pack("<Q", len(text)) + text)


@settings(max_examples=500)
@given(st.sampled_from([GOOD, ASKING]), st.data(), st.integers(1, 255))
def test_a_changed_byte_is_a_message_or_a_bad_message(whole: bytes, where: Any, change: int) -> None:
    data = bytearray(whole)
    data[where.draw(st.integers(0, len(whole) - 1))] ^= change
    with suppress(BadMessage):  # and nothing else
        decode(bytes(data))


def test_every_cut_is_refused() -> None:
    for whole in (GOOD, ASKING):
        for cut in range(len(whole)):
            with pytest.raises(BadMessage):
                decode(whole[:cut])
            with pytest.raises(BadMessage):
                decode(whole + bytes(cut + 1))


def test_twenty_thousand_mutated_messages_are_messages_or_bad_ones() -> None:
    """Several faults at once: bytes changed, cut out, doubled, put in, texts of the header exchanged."""
    texts = (b'"', b"[", b"{", b":", b",", b"0", b"-", b"9" * 30, b"F32", b"null", b"e9")
    draw = generator(0, "mutations")
    good = 0
    for _ in range(20_000):
        data = bytearray(GOOD if draw.integers(2) else ASKING)
        for _ in range(draw.integers(1, 5)):
            at, kind = int(draw.integers(len(data))), draw.integers(5)
            if kind == 0:
                data[at] = int(draw.integers(256))
            elif kind == 1:
                del data[at : at + int(draw.integers(1, 9))]
            elif kind == 2:
                data[at:at] = data[at : at + int(draw.integers(1, 9))]
            elif kind == 3:
                data[at:at] = texts[draw.integers(len(texts))]
            else:
                text = texts[draw.integers(len(texts))]
                data[at : at + len(text)] = text
            if not data:
                break
        with suppress(BadMessage):  # and nothing else
            decode(bytes(data))
            good += 1
    assert good < 10_000, "most of them are no messages"


# ---- what was made to do harm

HUGE = 2**32 - 1
BOMBS: dict[str, bytes] = {
    "two huge axes and none": with_array([HUGE, HUGE, 0]),
    "one huge axis and none": with_array([2**31, 0]),
    "an axis of 2^63": with_array([2**63, 0]),
    "an axis beyond 64 bits": with_array([2**70, 0]),
    "many numbers in none": with_array([2**30, 2**30, 0]),
    "more than it holds": with_array([HUGE, HUGE], numbers=bytes(40)),
    "much more than it holds": with_array([2**31 - 1, 2**31 - 1, 2**31 - 1], numbers=bytes(40)),
    "less than it holds": with_array([1], numbers=bytes(40)),
    "a negative axis": with_array([-1], numbers=bytes(4)),
    "two negative axes": with_array([-1, -1], numbers=bytes(4)),
    "an axis that is no whole number": with_array([1.5], numbers=bytes(4)),  # type: ignore[list-item]
    "nine axes": with_array([1] * 9, numbers=bytes(4)),
    "a hundred thousand axes": with_array([1] * 100_000, numbers=bytes(4)),
    "offsets beyond the end": with_array([1], numbers=bytes(4), offsets=[0, 2**62]),
    "offsets the wrong way round": with_array([1], numbers=bytes(4), offsets=[4, 0]),
    "a hole before the numbers": with_array([1], numbers=bytes(8), offsets=[4, 8]),
    "BF16": with_array([2], "BF16", bytes(4)),
    "BOOL": with_array([4], "BOOL", bytes(4)),
    "U8": with_array([4], "U8", bytes(4)),
    "I32": with_array([1], "I32", bytes(4)),
    "F8_E4M3": with_array([4], "F8_E4M3", bytes(4)),
    "a dtype that is none": with_array([4], "O", bytes(4)),
    "a dtype of Python": with_array([1], "<f4", bytes(4)),
    "deep names": with_about(names="[" * 100_000 + "]" * 100_000),
    "deep names, not closed": with_about(names="[" * 200_000),
    "a deep header": made("[" * 500_000, b""),
    "names that are no list": with_about(names='{"head.weight":1,"head.bias":2}'),
    "names that are no texts": with_about(names='[["head.weight"],["head.bias"]]'),
    "names that are numbers": with_about(names="[1,2]"),
    "names that are no JSON": with_about(names="head.weight"),
    "a name too few": with_about(names='["head.weight"]'),
    "a name too many": with_about(names='["head.weight","head.bias","x"]'),
    "a name twice": with_about(names='["head.weight","head.weight"]'),
    "another name": with_about(names='["head.weight","x"]'),
    "a round of 100,000 digits": with_about(round="9" * 100_000),
    "a round of 1,000 digits": with_about(round="9" * 1_000),
    "a round above the limit": with_about(round=str(MAX_ROUND + 1)),
    "a round below 0": with_about(round="-1"),
    "a round that is no number": with_about(round="three"),
    "an infinite round": with_about(round="inf"),
    "no round": with_about(round=None),
    "no run": with_about(run=None),
    "no names": with_about(names=None),
    "no kind": with_about(fedkeel=None),
    "one more": with_about(extra="x"),
    "neither up nor down": with_about(fedkeel="sideways"),
    "an empty kind": with_about(fedkeel=""),
    "an update without weight": with_about(weight=""),
    "a short weight": with_about(weight="00"),
    "a long weight": with_about(weight="00" * 9),
    "a weight that is no number": with_about(weight="zz" * 8),
    "a request without a version": with_about(fedkeel="down", accepted=""),
    "a version of 100,000 digits": with_about(fedkeel="down", accepted="9" * 100_000),
    "no metadata": made({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "metadata that are a list": made({"__metadata__": []}, b""),
    "metadata that are numbers": made({"__metadata__": {"round": 3}}, b""),
    "a header that is a list": made("[]", b""),
    "a header that is null": made("null", b""),
    "an empty header": made("", b""),
    "the header says it is longer": made("{}", b"", 100),
    "the header says it is very long": made("{}", b"", 2**63),
    "the header says it is as long as can be": made("{}", b"", 2**64 - 1),
    "the header says it is shorter": made(parts(GOOD)[0], parts(GOOD)[1], 20),
    "a header above the limit": made(" " * MAX_HEADER + "{}", b""),
    "a pickle": b"\x80\x04\x95pickle",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_refused_in_one_line(bomb: bytes) -> None:
    with pytest.raises(BadMessage) as refused:
        decode(bomb)
    assert "\n" not in str(refused.value)


def test_a_refusal_is_short_whatever_was_sent() -> None:
    """It goes on record: who sends a bad message must not fill the log of the server."""
    long = {}
    for name, bomb in BOMBS.items():
        with pytest.raises(BadMessage) as refused:
            decode(bomb)
        if len(str(refused.value)) > 500:
            long[name] = len(str(refused.value))
    assert not long


def test_a_version_that_no_store_can_hold_is_refused() -> None:
    """SQLite's whole numbers have 64 bits."""
    with pytest.raises(BadMessage):
        decode(with_about(fedkeel="down", accepted="9" * 30))


def test_a_bomb_takes_no_memory() -> None:
    """No array is made before its size is known to be that of its numbers."""
    import tracemalloc

    tracemalloc.start()
    try:
        for name, bomb in BOMBS.items():
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            with pytest.raises(BadMessage):
                decode(bomb)
            assert tracemalloc.get_traced_memory()[1] - before < 20 * len(bomb) + 2**20, name
    finally:
        tracemalloc.stop()


def test_names_that_repeat_are_refused() -> None:
    """Two arrays of one name, which JSON would let pass."""
    about = json.dumps({**parts(GOOD)[0]["__metadata__"], "names": '["w"]'})
    entries = ",".join(f'"w":{{"dtype":"F32","shape":[1],"data_offsets":[{at},{at + 4}]}}' for at in (0, 4))
    with pytest.raises(BadMessage):
        decode(made(f'{{"__metadata__":{about},{entries}}}', bytes(8)))


def test_arrays_that_overlap_are_refused() -> None:
    header, numbers = parts(GOOD)
    header["head.bias"]["data_offsets"] = [8, 16]
    with pytest.raises(BadMessage):
        decode(made(header, numbers))


def test_more_arrays_than_a_header_holds_are_not_sent() -> None:
    with pytest.raises(BadMessage, match=rf"20000 arrays take more than {MAX_HEADER} bytes"):
        encode(Down("run", 1, "train", {f"array {index}": torch.zeros(1) for index in range(20_000)}))


@pytest.mark.parametrize("run", ["another", "", "simulation2"])
def test_a_reply_of_another_run_is_refused(run: str) -> None:
    """Everything else of it is right."""
    how = METHODS["fedavg"](batch=8, bias=True)

    def transport(client: str, reply: bytes) -> bytes:
        up = decode(reply)
        assert isinstance(up, Up)
        return encode(Up(run, up.round, up.phase, up.client, up.weight, up.arrays)) if client == "site-3" else reply

    exchange = WireEngine(clients(), transport=transport).exchange(how, how.start(TASK), how.plan(1)[0], 1, [0, 1, 3])
    reason = f"the reply is for another run, {run!r}"
    assert [(one.client, one.reason) for one in exchange.refused] == [("site-3", reason)]
    assert exchange.accepted == 2
