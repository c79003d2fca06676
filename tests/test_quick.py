"""A mistake is told before torch is loaded, which takes longer than all the rest: within a second, not three."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedkeel.core.tree import Tensor
from test_cli import MISTAKES

LATE = {"a misspelt encoder", "a page that cannot be written"}
"""Mistakes that are found only after rows were opened."""
QUICK = {name: words for name, (words, _) in MISTAKES.items() if name not in LATE} | {
    "a value of the wrong kind": ("run", "--set", "run.seed=-1"),
    "a value of the method": ("run", "--set", "method.rounds=0"),
    "a strategy is no method": ("run", "--set", "method.name=lp-ft"),
    "a setting of another kind": ("run", "--set", "partition.kind=iid", "partition.alpha=1"),
    "drift of a network": ("run", "--set", "method.name=fedbn", "run.drift=true"),
    "nothing to resume": ("run", "--resume", "--out", "nowhere"),
    "nothing to personalise": ("personalize", "nowhere"),
    "no such strategy": ("personalize", "nowhere", "--method", "lpft"),
    "no such recipe": ("reproduce", "ova"),
    "a method of a grid": ("compare", "--methods", "fedavgg"),
    "what there is to list": ("list", "method"),
    "a list of methods": ("list", "methods"),
    "a list of strategies": ("list", "strategies"),
    "a list of recipes": ("reproduce", "--list"),
    "no such grid": ("reproduce", "lp-ft/main", "--grid", "digits"),
    "what a recipe would run": ("reproduce", "lp-ft/main", "--scale", "paper", "--dry-run"),
}
EACH = """
import contextlib, io, json, sys
from fedkeel.cli import main

for name, words in json.loads(sys.argv[1]).items():
    sys.argv[1:] = words
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
    print(json.dumps([name, "torch._C" in sys.modules]))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Of each command, one after the other in one process, whether torch was there after it."""
    command = [sys.executable, "-c", EACH, json.dumps(QUICK)]
    done = subprocess.run(command, cwd=tmp_path_factory.mktemp("empty"), capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", QUICK)
def test_torch_is_not_loaded_for_it(name: str, loaded: dict[str, bool]) -> None:
    first = next((other for other, there in loaded.items() if there), None)
    assert not loaded[name] or first != name, "this one loaded torch"


def test_torch_that_was_put_off_is_the_real_one() -> None:
    below = (
        "from fedkeel.cli.deferred import defer; defer('torch'); defer('torch'); defer('none_such')\n"
        "from torch.nn import Linear; import torch, sys\n"
        "assert sys.modules['torch'] is torch and torch.nn.Linear is Linear and type(torch) is type(sys)"
    )
    subprocess.run([sys.executable, "-c", below], check=True, timeout=120)


def test_a_tensor_is_known_by_the_name_that_loads_nothing() -> None:
    assert isinstance(torch.zeros(1), Tensor)
    assert not isinstance(np.zeros(1), Tensor)
    assert not isinstance(None, Tensor)
