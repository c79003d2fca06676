"""Which rows a client visits when: every epoch all of them or a fresh share, in an order of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federations import clients
from fedkeel.core.method import Phase
from fedkeel.engines.base import schedule, steps_of

PHASE = Phase("train", epochs=3, batch=8)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 70), st.sampled_from([1.0, 0.1, 0.5, 0.99]), st.booleans())
def test_every_epoch_visits_each_row_at_most_once(
    rows: int, epochs: int, batch: int, share: float, draws: bool
) -> None:
    """All rows, or round(share * rows) of them but at least one; a uniform number for each where the phase asks."""
    who = clients((rows, 3))
    phase = Phase("train", epochs=epochs, batch=batch, rows=share, draws=draws)
    steps = list(schedule(who, 0, 1, phase))
    count = max(1, int(share * rows + 0.5))
    per_epoch = -(-count // batch)
    assert len(steps) == epochs * per_epoch == steps_of(np.array(rows), phase)
    for epoch in range(epochs):
        part = steps[epoch * per_epoch : (epoch + 1) * per_epoch]
        seen = np.concatenate([picked for picked, _ in part])
        assert len(seen) == len(set(seen.tolist())) == count
        assert set(seen.tolist()) <= set(who.owned.of(0).tolist())
        assert all(len(picked) <= batch for picked, _ in part)
        assert all(len(u) == (len(picked) if draws else 0) for picked, u in part)
        assert all(((u >= 0) & (u < 1)).all() for _, u in part)


@pytest.mark.parametrize("change", ["round", "phase", "client", "seed"])
@pytest.mark.parametrize("phase", [PHASE, replace(PHASE, draws=True, batch=100), replace(PHASE, rows=0.3, batch=100)])
def test_the_key_decides_the_order_the_draws_and_the_share(change: str, phase: Phase) -> None:
    """Two clients with the same number of rows; rows are compared by their place within the client."""
    who = clients((40, 40))

    def trace(seed: int = 0, client: int = 0, round: int = 1, name: str = "train") -> list[list[float]]:
        now = replace(who, seed=seed)
        steps = schedule(now, client, round, replace(phase, name=name))
        return [[*(rows - who.owned.offsets[client]).tolist(), *u.tolist()] for rows, u in steps]

    other = {"round": {"round": 2}, "phase": {"name": "other"}, "client": {"client": 1}, "seed": {"seed": 1}}[change]
    assert trace() == trace()
    assert trace() != trace(**other)  # type: ignore[arg-type]
    epochs = trace()
    assert epochs[0] != epochs[-1], "each epoch is drawn anew"
