"""The benchmark compares like with like: on a small workload the plain loop and the engine give the same weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.run import difference, machine_limit
from benchmarks.workloads import W1, W2, Workload, accuracy, plain_round
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine


@pytest.mark.parametrize("work", [W1, W2], ids=lambda work: work.name)
def test_plain_loop_and_engine_agree(work: Workload) -> None:
    small = replace(work, clients=12, rows=30, dim=16, classes=5, test_rows=50)
    sites, x_test, y_test = small.federation()
    method, engine = small.method, LocalEngine(sites)
    ours = theirs = method.start(small.task)
    for round in (1, 2):
        phase = method.plan(round)[0]
        exchange = engine.exchange(method, ours, phase, round, choose(engine.roster, method, phase, round, []))
        assert exchange.update is not None
        ours = method.merge(ours, exchange.update, phase)
        theirs = plain_round(method, theirs, round, sites)
    assert difference(ours, theirs) < 1e-5
    assert accuracy(method, ours, x_test, y_test) > 1 / 5


def test_flop_by_hand() -> None:
    """W1: 100 x 500 rows x 3 epochs, forward and weight gradient, and 10,000 test rows, 2 x 1024 x 100 each: 63.5e9."""
    assert W1.flop() == pytest.approx(63.5e9, rel=1e-3)
    assert machine_limit(0.05) > 1e9
