"""Keyed randomness: a key is all there is to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.core.rng import generator

KEYS = st.lists(st.one_of(st.integers(0, 10**9), st.text(max_size=8)), max_size=4)


@given(st.integers(0, 2**40), KEYS, KEYS)
def test_the_key_decides(seed: int, key: list[int | str], other: list[int | str]) -> None:
    draws = generator(seed, *key).random(4)
    assert np.array_equal(draws, generator(seed, *key).random(4))
    same = [(type(part), part) for part in key] == [(type(part), part) for part in other]
    assert np.array_equal(draws, generator(seed, *other).random(4)) == same


def test_a_number_is_not_its_text_and_parts_do_not_run_together() -> None:
    firsts = {generator(0, *key).integers(2**60) for key in ((1,), ("1",), (1, 1), (11,), ("1", "1"), ("11",))}
    assert len(firsts) == 6


def test_the_same_numbers_on_every_machine() -> None:
    """Philox with the 128-bit BLAKE2b of the key as JSON, [42, "cohort", 3], as two little-endian words."""
    assert generator(42, "cohort", 3).integers(1000, size=4).tolist() == [745, 782, 45, 557]
