"""What tuning a dual encoder costs, on 20 Newsgroups with MiniLM as both towers: ratios, taken in turns in one process.

Run with ``make bench``: a purified step over a plain one, a step with the item tower in it over one with cached item
features, and the memory that a round takes in a small and in a large federation.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from benchmarks.run import peak_memory_mb
from fedkeel.core.method import Batch, Task, Visit
from fedkeel.core.tree import Tree
from fedkeel.data.loading import load
from fedkeel.data.ownership import Ownership
from fedkeel.data.sources.base import Source
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.site import as_batch
from fedkeel.engines.sites import Sites
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.fedpurel import FedPuReL
from fedkeel.methods.dual.promptfl import PromptFL
from fedkeel.models.dual import open_dual
from fedkeel.rows.items import Items, items

RESULTS = Path(__file__).parent / "results" / "dual.json"
REPEATS, BATCH = 15, 32
SMALL, LARGE, COHORT = 20, 2_000, 8
WORDS = "a post about the"


def rows_of(count: int) -> tuple[Items, torch.Tensor]:
    data = load(Source.of())
    dual = open_dual("minilm", Source.of(), "texts", data.class_names, data.name)
    labels = torch.from_numpy(data.train_labels[:count])
    return items(dual, data.ready["minilm"].train[:count]), labels


class InTheLoop(PromptFL):
    """The same prompt tuning by somebody who does not keep item features: the frozen item tower reads every batch."""

    def loss(self, params: Tree, batch: Batch, visit: Visit) -> torch.Tensor:
        x: Any = batch.x
        tower, tokens = x.dual.tower, load(Source.of()).train[: len(batch.y)]
        with torch.no_grad():
            features = normalize(tower.apply(tower.read(list(tokens), np.arange(len(tokens)))), dim=-1)
        return super().loss(params, replace(batch, x=x.having("features", features)), visit)


def timed(method: DualTuned, x: Items, y: torch.Tensor) -> float:
    """Seconds of one step with its optimizer, on the first batch."""
    state = method.start(Task(x.dual.dim, len(x.dual.class_names), 1, 0, reader=x.dual))
    phase = method.plan(2)[0]
    params = {name: value.clone().requires_grad_() for name, value in state.shared.items()}
    optimizer = phase.optim.torch(list(params.values()))
    batch = as_batch(x, y, np.arange(BATCH), np.empty(0, dtype=np.float32))
    started = perf_counter()
    visit = Visit(state.shared, {}, phase)
    grads = method.gradients(params, batch, visit)
    detached = {name: params[name].detach() for name in grads}
    for name, grad in method.adjust(grads, detached, batch, visit).items():
        params[name].grad = grad
    optimizer.step()
    return perf_counter() - started


def ratios() -> dict[str, float]:
    """Medians of ratios of neighbours in time, so that a busy machine slows down both; one thread, as a client has."""
    torch.set_num_threads(1)
    x, y = rows_of(BATCH)
    plain, purified = PromptFL(words=WORDS, rounds=9), FedPuReL(words=WORDS, rounds=9)
    towers = InTheLoop(words=WORDS, rounds=9)
    seconds: dict[str, list[float]] = {"plain": [], "purified": [], "towers": []}
    for _ in range(REPEATS):
        for name, method in (("plain", plain), ("purified", purified), ("towers", towers)):
            seconds[name].append(timed(method, x, y))
    over = {
        name: median(a / b for a, b in zip(seconds[name], seconds["plain"], strict=True))
        for name in ("purified", "towers")
    }
    return {"purified_over_plain": over["purified"], "item_tower_over_cached": over["towers"]}


def one_round_alone(federation: int) -> float:
    """Peak memory in MB that a round of eight clients adds to a process with the data of so many loaded."""
    data = load(Source.of())
    x, y = rows_of(len(data.train_labels))
    owned = Ownership.of_owners(np.arange(len(y)) % federation, federation)
    names = [f"client-{k:04d}" for k in range(federation)]
    sites = Sites(names, x, y, owned, 0, len(data.class_names))
    method = FedPuReL(words=WORDS, rounds=9, batch=2, schedule="interleaved")
    state = method.start(Task(x.dual.dim, len(data.class_names), federation, 0, reader=x.dual))
    engine, cohort = LocalEngine(replace(sites, owned=_few_rows(owned))), list(range(COHORT))
    engine.exchange(method, state, method.plan(2)[0], 1, cohort)  # loads the towers of the other threads
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory_mb()
    for phase in method.plan(2):
        engine.exchange(method, state, phase, 2, cohort)
    return peak_memory_mb() - before


def _few_rows(owned: Ownership) -> Ownership:
    """Four rows each, so that rounds take equally long whatever the size of the federation."""
    return Ownership.of_lists([owned.of(client)[:4] for client in range(owned.clients)])


def memory(federation: int) -> float:
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.dual", str(federation)], capture_output=True, text=True, check=True
    )
    return float(output.stdout)


def main() -> None:
    if len(sys.argv) > 1:
        print(one_round_alone(int(sys.argv[1])))
        return
    found = ratios()
    found |= {f"memory_of_a_round_mb_{size}_clients": memory(size) for size in (SMALL, LARGE)}
    for name, value in found.items():
        print(f"{name:40}{value:8.2f}", flush=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
