"""Every example of CONTRIBUTING.md is a file of its kind: short, found in its folder, and asked what all others are."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
import test_contract
from contract import test_observers_contract, test_strategies_contract
from contract.methods import clients_of, close, play, variants_of, variants_with
from contract.test_strategies_contract import cases_of
from data import test_sources_contract, test_splits_contract
from duals import batch_rows
from federations import CLASSES, DIM, TASK
from fedkeel.core.method import METHODS
from fedkeel.core.registry import Registry
from fedkeel.data.sources.base import SOURCES
from fedkeel.data.splits.base import SPLITS
from fedkeel.engines.local import LocalEngine
from fedkeel.methods.dual.peft.module import MODULES
from fedkeel.personal.strategy import STRATEGIES
from fedkeel.runs.observers.base import OBSERVERS
from worlds import trained

ROOT = Path(__file__).parents[2]
LONGEST = 30
EXAMPLES = dict(re.findall(r"^```python (\S+)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S))
"""Files by their path in the package."""


def itself(name: str) -> dict[str, str]:
    return {name: name}


@dataclass(frozen=True)
class Kind:
    """A kind of things that can be added, and the tests that all of them get."""

    folder: str
    registry: Registry[Any]
    tests: ModuleType
    asked: Mapping[str, Callable[[str], Mapping[str, Any]]]
    """the parameters of these tests that stand for one of the kind, and what they are for that of a name"""

    def checks(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Every test that all of the kind get, with each value of its other parameters."""
        for name, function in vars(self.tests).items():
            if not name.startswith("test_") or not self.asked.keys() & signature(function).parameters.keys():
                continue
            marks = [mark.args[:2] for mark in function.pytestmark if mark.name == "parametrize"]
            others = {key: values for key, values in marks if key not in self.asked}
            yield from ((function, dict(zip(others, chosen, strict=True))) for chosen in product(*others.values()))


KINDS = [
    Kind("methods/dual/peft", MODULES, test_contract, {"method": variants_with}),
    Kind("methods", METHODS, test_contract, {"method": variants_of}),
    Kind("personal/strategies", STRATEGIES, test_strategies_contract, {"case": cases_of, "name": itself}),
    Kind("data/splits", SPLITS, test_splits_contract, {"kind": itself}),
    Kind("data/sources", SOURCES, test_sources_contract, {"name": itself}),
    Kind("runs/observers", OBSERVERS, test_observers_contract, {"name": itself}),
]


def kind_of(path: str) -> Kind:
    return next(kind for kind in KINDS if path.startswith(f"{kind.folder}/"))


@contextmanager
def added(path: str, folder: Path) -> Iterator[str]:
    """The example as a file of its own, registered for as long as it is needed; gives its name."""
    file, registry = folder / Path(path).name, kind_of(path).registry
    file.write_text(EXAMPLES[path])
    before = set(registry)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        (name,) = set(registry) - before
        yield name
    finally:
        for name in set(registry) - before:
            del registry[name]


def test_there_is_a_short_example_of_every_kind() -> None:
    assert sorted(kind_of(path).folder for path in EXAMPLES) == sorted(kind.folder for kind in KINDS)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert text.count("```python") == len(EXAMPLES), "every example says which file it is"
    for path, example in EXAMPLES.items():
        assert len(example.splitlines()) <= LONGEST, path
        assert max(map(len, example.splitlines())) <= 120, path
        assert "from fedkeel import" not in example, "inside of the package names come from their homes"
        assert f"`src/fedkeel/{kind_of(path).folder}/`" in text, "the folder is named"
        assert (ROOT / "src/fedkeel" / path).parent.is_dir()
        assert not (ROOT / "src/fedkeel" / path).exists()


CHECKS = [(path, *check) for path in EXAMPLES for check in kind_of(path).checks()]


@pytest.mark.parametrize(
    ("path", "check", "others"),
    CHECKS,
    ids=[f"{Path(path).stem}-{check.__name__}-{'-'.join(map(str, others.values()))}" for path, check, others in CHECKS],
)
def test_it_keeps_the_contract_of_its_kind(
    path: str,
    check: Callable[..., None],
    others: dict[str, Any],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with added(path, tmp_path) as name:
        wanted = [key for key in signature(check).parameters if key not in others]
        one_of_it = next(key for key in wanted if key in kind_of(path).asked)
        for number, value in enumerate(kind_of(path).asked[one_of_it](name).values()):
            fixtures = {key: request.getfixturevalue(key) for key in wanted if key != one_of_it}
            if "tmp_path" in fixtures:
                fixtures["tmp_path"] = tmp_path / f"{number}"
                fixtures["tmp_path"].mkdir()
            check(**{one_of_it: value}, **others, **fixtures)


# ---- what each does


def test_no_smoothing_is_fedavg_and_a_whole_run_uses_it(tmp_path: Path) -> None:
    with added("methods/heads/smooth.py", tmp_path):
        method, plain = METHODS["smooth"](rounds=3, batch=8), METHODS["fedavg"](rounds=3, batch=8)
        none = METHODS["smooth"](rounds=3, batch=8, smoothing=0.0)
        ours, theirs = (play(one, LocalEngine(clients_of(one))).shared for one in (none, plain))
        close(ours, theirs, "no smoothing is FedAvg: ")
        data, partition = {"source": "digits", "limit": 200}, {"clients": 5}
        result = fk.run(data=data, partition=partition, method=method, out=tmp_path / "run")
        assert result.summary["method"] == "smooth"
        assert fk.run(out=tmp_path / "run", resume=True).digest == result.digest
    assert method.start(TASK).shared["head.weight"].shape == (CLASSES, DIM)


def test_wise_ft_goes_half_of_the_way_that_ft_goes(tmp_path: Path) -> None:
    with added("personal/strategies/wise_ft.py", tmp_path) as name:
        half, whole = (trained(cases_of(one)[one].work()) for one in (name, "ft"))
        down = cases_of(name)[name].work().state.down
    assert half.keys() == whole.keys()
    for key, value in half.items():
        torch.testing.assert_close(value, (down[key] + whole[key]) / 2, rtol=1e-5, atol=1e-6)


def test_log_normal_sizes_are_equal_without_a_spread(tmp_path: Path) -> None:
    with added("data/splits/log_normal.py", tmp_path) as name:
        equal, spread = (test_splits_contract.made(name, sigma=sigma).train.sizes for sigma in (0.0, 2.0))
    assert np.ptp(equal) <= 1
    assert np.ptp(spread) > len(spread)


def test_scaling_starts_at_zero_shot(tmp_path: Path) -> None:
    with added("methods/dual/peft/scaling.py", tmp_path) as name:
        (method,) = variants_with(name).values()
        x, _ = batch_rows(method, [0, 1, 2, 3, 1])
        module = MODULES[name]()
        assert module.logits(module.fresh(x.dual, 0), x).allclose(x.zero_shot)


TOGETHER = """
import json, sys
from importlib import import_module
from pathlib import Path

for folder in sys.argv[1:]:
    import_module("fedkeel." + folder.replace("/", ".")).__path__.append(str(Path(folder).absolute()))

import fedkeel as fk
from fedkeel.core.method import METHODS
from fedkeel.personal.strategy import STRATEGIES
from fedkeel.runs.events import read

fk.run(
    data={"source": "iris"},
    partition={"kind": "log-normal", "clients": 3, "sigma": 0.5},
    method={"name": "smooth", "rounds": 2, "smoothing": 0.2},
    run={"observe": ["moved"]},
    out="run",
)
moved = [event["distance"] for event in read("run").observed["moved"]]
module = METHODS["fedpurel"](peft="scaling").module
print(json.dumps({"moved": moved, "module": type(module).__name__, "strategy": STRATEGIES["wise-ft"].__name__}))
"""


def test_put_into_their_folders_they_are_found_and_work_together(tmp_path: Path) -> None:
    """In a process of its own, where the folders of the package reach further."""
    for path, text in EXAMPLES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    folders = sorted({str(Path(path).parent) for path in EXAMPLES})
    command = [sys.executable, "-c", TOGETHER, *folders]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["module"], found["strategy"]) == ("Scaling", "WiseFT")
    assert 0 < found["moved"][0] < found["moved"][1]
