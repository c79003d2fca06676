"""Every digest that methods, strategies, splits and recipes gave before the house was rebuilt, they give afterwards.

Kept while the move lasts. ``FEDKEEL_WRITE_DIGESTS=1 pytest tests/test_same_digests.py`` writes the table anew, which is
for commits that mend a defect and say which digest that changes, and why.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from federations import private_of
from fedkeel.core.tree import digest
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.personal.strategy import STRATEGIES
from test_contract import VARIANTS, clients_of, play
from worlds import trained, world

TABLE = Path(__file__).parent / "digests.json"
WRITES = bool(os.environ.get("FEDKEEL_WRITE_DIGESTS"))
KNOWN: dict[str, str] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
ENGINES = {"local": LocalEngine, "wire": WireEngine}


def same(what: str, found: str) -> None:
    if WRITES:
        table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        TABLE.write_text(json.dumps({**table, what: found}, indent=0, sort_keys=True) + "\n")
        return
    assert KNOWN[what] == found, what


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", VARIANTS)
def test_methods(name: str, engine: str) -> None:
    method = VARIANTS[name]
    runner = ENGINES[engine](clients_of(method))
    state = play(method, runner)
    kept = {f"{client}/{key}": value for client, mine in private_of(runner).items() for key, value in mine.items()}
    same(f"method/{name}/{engine}", digest({**state.down, **kept}))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_strategies(name: str, engine: str) -> None:
    place = world("vit-tiny" if name in ("lora-ft", "adapter-ft") else "cnn")
    work = place.work(name, epochs=3, batch=8, lr=0.003, batch_norm="train")
    same(f"strategy/{name}/{engine}", digest(trained(work, ENGINES[engine])))


DIGITS = {"source": "digits"}
RUNS: dict[str, dict[str, Any]] = {
    **{
        f"split {kind}": {"data": DIGITS, "partition": {"kind": kind, "clients": 12}}
        for kind in ("iid", "shard-1", "shard-2", "dirichlet", "bernoulli-dirichlet", "zipf", "feature-clusters")
    },
    "split dirichlet, balanced, tested alike": {
        "data": DIGITS,
        "partition": {"kind": "dirichlet", "clients": 5, "alpha": 0.5, "balance": True, "test_split": "same"},
    },
    "split spurious": {"data": {"source": "coloured-digits"}, "partition": {"kind": "spurious", "clients": 2}},
    "split pachinko": {"data": {"limit": 400}, "partition": {"kind": "pachinko", "clients": 6, "alpha": 0.5}},
    "split column": {"data": {"source": "digits5", "limit": 300}, "partition": {"kind": "column"}},
    "features raw": {"data": {**DIGITS, "features": "raw"}, "partition": {"kind": "iid", "clients": 4}},
    "features l2": {"data": {**DIGITS, "features": "l2"}, "partition": {"kind": "iid", "clients": 4}},
    "shifts": {
        "data": {"source": "digits5", "limit": 300},
        "shift": {"long_tail": 5, "noise": "symmetric", "noise_ratio": 0.3, "flip": 0.3, "corruption": "per-client"},
        "partition": {"kind": "iid", "clients": 4, "validation": 0.2, "test": 0.2},
        "run": {"keep": "best"},
    },
    "ridge": {"data": DIGITS, "partition": {"kind": "shard-1", "clients": 10}, "method": {"name": "ridge"}},
    "scaffold": {
        "data": DIGITS,
        "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.3},
        "method": {"name": "scaffold", "rounds": 4, "participation": 0.5},
    },
    "fedpurel": {
        "data": {"limit": 200},
        "partition": {"kind": "dirichlet", "clients": 4, "alpha": 1.0},
        "method": {"name": "fedpurel", "peft": "adapter", "rounds": 2, "personal_epochs": 1},
    },
    "a network": {
        "data": {"source": "digits", "limit": 200, "encoder": "cnn"},
        "partition": {"kind": "iid", "clients": 3},
        "method": {"name": "fedavg", "tune": "network", "rounds": 2, "batch": 16, "lr": 0.003},
    },
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str, engine: str, tmp_path: Path) -> None:
    sections = {"method": {"name": "ova-lp", "rounds": 3}, **RUNS[name]}
    run = {"threads": 1, "engine": engine, **sections.pop("run", {})}
    result = fk.run(out=tmp_path / "run", run=run, **sections)
    about = json.dumps([result.digest, result.curve, result.summary["manifest"], result.record.end["per_client"]])
    same(f"run/{name}/{engine}", sha256(about.encode()).hexdigest())


def test_recipes() -> None:
    """What a recipe asks for: every cell's method and run settings, at both scales."""
    for name, recipe in fk.recipes().items():
        for scale, plan in recipe.scales.items():
            asked = [
                [cell.label, cell.experiment.method, cell.experiment.run.seed, cell.experiment.data.source]
                for grid in plan.grids
                for cell in grid.cells(grid.seeds or plan.seeds)
            ]
            asked += [[str(one) for one in grid.strategies()] for grid in plan.grids]
            same(f"recipe/{name}/{scale}", sha256(json.dumps(asked).encode()).hexdigest())
