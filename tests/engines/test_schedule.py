"""Which rows a client visits when: every epoch all of them or a fresh share, in an order of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.core.method import Phase
from fedkeel.engines.base import schedule, steps_of

PHASE = Phase("train", epochs=3, batch=8)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 70), st.sampled_from([1.0, 0.1, 0.5, 0.99]), st.booleans())
def test_every_epoch_visits_each_row_at_most_once(
    rows: int, epochs: int, batch: int, share: float, draws: bool
) -> None:
    """All rows, or round(share * rows) of them but at least one; a uniform number for each where the phase asks."""
    phase = Phase("train", epochs=epochs, batch=batch, rows=share, draws=draws)
    steps = list(schedule(0, "site-0", rows, 1, phase))
    count = max(1, int(share * rows + 0.5))
    per_epoch = -(-count // batch)
    assert len(steps) == epochs * per_epoch == steps_of(np.array(rows), phase)
    for epoch in range(epochs):
        part = steps[epoch * per_epoch : (epoch + 1) * per_epoch]
        seen = np.concatenate([picked for picked, _ in part])
        assert len(seen) == len(set(seen.tolist())) == count
        assert set(seen.tolist()) <= set(range(rows))
        assert all(len(picked) <= batch for picked, _ in part)
        assert all(len(u) == (len(picked) if draws else 0) for picked, u in part)
        assert all(((u >= 0) & (u < 1)).all() for _, u in part)


@pytest.mark.parametrize("change", ["round", "phase", "client", "seed"])
@pytest.mark.parametrize("phase", [PHASE, replace(PHASE, draws=True, batch=100), replace(PHASE, rows=0.3, batch=100)])
def test_the_key_decides_the_order_the_draws_and_the_share(change: str, phase: Phase) -> None:
    """Two clients with the same number of rows; rows are their places within the client."""

    def trace(seed: int = 0, client: str = "a", round: int = 1, name: str = "train") -> list[list[float]]:
        steps = schedule(seed, client, 40, round, replace(phase, name=name))
        return [[*rows.tolist(), *u.tolist()] for rows, u in steps]

    other = {"round": {"round": 2}, "phase": {"name": "other"}, "client": {"client": "b"}, "seed": {"seed": 1}}[change]
    assert trace() == trace()
    assert trace() != trace(**other)  # type: ignore[arg-type]
    epochs = trace()
    assert epochs[0] != epochs[-1], "each epoch is drawn anew"
