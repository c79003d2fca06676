"""Prompts that were shuffled and disturbed are found again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.core.rng import generator
from fedkeel.methods.transformer.prompt_matching import match


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 5))
def test_shuffled_versions_of_the_same_prompts_come_together(seed: int, clients: int, n: int) -> None:
    """Every client holds a version of every prompt: g = n, all clients hold each, theta = the mean of the versions."""
    draw = generator(seed, "prompts")
    truth = 3.0 * draw.normal(size=(n, 12))
    versions = truth + 0.1 * draw.normal(size=(clients, n, 12))
    order = np.stack([draw.permutation(n) for _ in range(clients)])
    found, count, held = match(np.take_along_axis(versions, order[:, :, None], axis=1))
    assert count.tolist() == [clients] * n
    for k in range(clients):
        for j in range(n):
            np.testing.assert_allclose(found[held[k, j]], versions[:, order[k, j]].mean(axis=0))


def test_a_prompt_of_one_client_alone_stays_its_own() -> None:
    """Three clients share two prompts; the third has one that nobody else has instead of the second."""
    a, b, c = np.eye(3) * 10
    found, count, held = match(np.array([[a, b], [b, a], [a, c]]) + 0.01 * generator(0, "x").normal(size=(3, 2, 3)))
    assert sorted(count.tolist()) == [1, 2, 3]
    assert held[0, 0] == held[1, 1] == held[2, 0]
    assert held[0, 1] == held[1, 0] != held[2, 1]
    np.testing.assert_allclose(found[held[2, 1]], c, atol=0.05)


def test_a_client_never_gives_two_of_its_prompts_to_one() -> None:
    same = np.zeros((3, 4, 2))
    _, _, held = match(same)
    assert all(len(set(mine)) == 4 for mine in held.tolist())
