"""Speed of the local engine against a plain PyTorch loop, in one process, on the same batches, weights compared.

Run with ``make bench``. Ratios are what counts: absolute seconds depend on the machine and on who else uses it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks.workloads import W1, W2, Workload, accuracy, plain_round
from fedkeel.core.method import State
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine

REPEATS = 3
RESULTS = Path(__file__).parent / "results" / "local.json"


def machine_limit(seconds: float = 1.0) -> float:
    """The most floating-point operations per second a large matrix product reaches here, best of many."""
    a, b, best = torch.randn(2048, 2048), torch.randn(2048, 2048), 0.0
    until = perf_counter() + seconds
    while perf_counter() < until:
        started = perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * 2048**3 / (perf_counter() - started))
    return best


def measure(work: Workload) -> dict[str, float | str]:
    sites, x_test, y_test = work.federation()
    method, engine = work.method, LocalEngine(sites)
    start = method.start(work.task)
    ours = theirs = start
    fast, plain = [], []
    for round in range(1, REPEATS + 1):  # taken in turns, so that a busy neighbour slows down both
        started = perf_counter()
        phase = method.plan(round)[0]
        exchange = engine.exchange(method, ours, phase, round, choose(engine.roster, method, phase, round, []))
        assert exchange.update is not None
        ours = method.merge(ours, exchange.update, phase)
        accuracy(method, ours, x_test, y_test)
        fast.append(perf_counter() - started)
        started = perf_counter()
        theirs = plain_round(method, theirs, round, sites)
        accuracy(method, theirs, x_test, y_test)
        plain.append(perf_counter() - started)
    apart = difference(ours, theirs)
    assert apart < 1e-4, f"{work.name}: the weights differ by {apart}"
    limit = work.flop() / machine_limit()
    return {
        "workload": work.name,
        "what": work.what,
        "seconds_per_round": min(fast),
        "plain_loop_seconds": min(plain),
        "times_faster": min(plain) / min(fast),
        "times_the_limit": min(fast) / limit,
        "largest_relative_difference": apart,
        "memory_beyond_data_mb": memory_beyond_data(work.name),
    }


def difference(ours: State, theirs: State) -> float:
    return max(
        float((ours.shared[name] - value).abs().max() / value.abs().max()) for name, value in theirs.shared.items()
    )


def memory_beyond_data(name: str) -> float:
    """Peak memory that one round adds to a process that has loaded the libraries and the data, in MB."""
    output = subprocess.run([sys.executable, "-m", "benchmarks.run", name], capture_output=True, text=True, check=True)
    return float(output.stdout)


def one_round_alone(work: Workload) -> float:
    sites, x_test, y_test = work.federation()
    method, engine = work.method, LocalEngine(sites)
    state, phase = method.start(work.task), method.plan(1)[0]
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the data
    before = peak_memory_mb()
    exchange = engine.exchange(method, state, phase, 1, choose(engine.roster, method, phase, 1, []))
    assert exchange.update is not None
    accuracy(method, method.merge(state, exchange.update, phase), x_test, y_test)
    return peak_memory_mb() - before


def peak_memory_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    works = {work.name: work for work in (W1, W2)}
    if len(sys.argv) > 1:
        print(one_round_alone(works[sys.argv[1]]))
        return
    results = []
    print(f"{'':4}{'s/round':>9}{'plain loop':>12}{'faster':>8}{'x limit':>9}{'apart':>9}{'memory':>9}")
    for work in works.values():
        print(f"# {work.what}", flush=True)
        row = measure(work)
        results.append(row)
        print(
            f"{work.name:4}{row['seconds_per_round']:9.3f}{row['plain_loop_seconds']:12.3f}"
            f"{row['times_faster']:7.1f}x{row['times_the_limit']:9.1f}"
            f"{row['largest_relative_difference']:9.0e}{row['memory_beyond_data_mb']:6.0f} MB",
            flush=True,
        )
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
