"""Nothing that was read becomes code: the lint sees every way of loading that could do it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SWITCHES = {"allow_pickle": False, "trust_remote_code": False, "weights_only": True}
"""Arguments, whoever takes them, that make a safe loader unsafe, and the one value that may be written."""
POSITIONS = {"numpy.load": 2, "numpy.lib.format.read_array": 1, "numpy.lib.npyio.load": 2}
"""Where ``allow_pickle`` stands when it is not named."""


def origins(tree: ast.Module) -> dict[str, str]:
    """What imported names stand for, wherever in the file: ``n`` for ``numpy``, ``read`` for ``numpy.load``."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                names[one.asname or one.name.split(".")[0]] = one.name if one.asname else one.name.split(".")[0]
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def called(function: ast.expr, names: dict[str, str]) -> str:
    """The full name of what is called, as far as it can be read off."""
    if isinstance(function, ast.Attribute):
        return f"{called(function.value, names)}.{function.attr}"
    return names.get(function.id, function.id) if isinstance(function, ast.Name) else ""


def unsafe(source: str) -> Iterator[str]:
    """Calls that ask for pickles or for foreign code by an argument; all else is seen by ruff (see pyproject.toml)."""
    tree = ast.parse(source)
    names = origins(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = called(node.func, names)
        if name.rpartition(".")[2].startswith("save"):
            continue  # writing runs nothing
        for word in node.keywords:
            if word.arg is None and name in POSITIONS:
                yield f"line {node.lineno}: {name} with arguments that cannot be read off"
            if word.arg in SWITCHES and not (
                isinstance(word.value, ast.Constant) and word.value.value is SWITCHES[word.arg]
            ):
                yield f"line {node.lineno}: {word.arg} is not {SWITCHES[word.arg]}"
        if len(node.args) > POSITIONS.get(name, len(node.args)) or (
            name in POSITIONS and any(isinstance(argument, ast.Starred) for argument in node.args)
        ):
            yield f"line {node.lineno}: {name} with allow_pickle by its place"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_call_asks_for_pickles_or_foreign_code(path: Path) -> None:
    assert not list(unsafe(path.read_text(encoding="utf-8")))


BANNED = """
import torch; torch.load(f)
import torch; torch.load(f, weights_only=True)
import torch as t; t.load(f)
from torch import load; load(f)
from torch import load as read; read(f)
import torch; read = torch.load
from torch.serialization import load; load(f)
import torch; torch.jit.load(f)
import torch; torch.hub.load(f, "m")
import torch; torch.package.PackageImporter(f)
import torch.utils.model_zoo; torch.utils.model_zoo.load_url(f)
exec(f)
import builtins; builtins.exec(f)
eval(f)
from builtins import eval as e; e(f)
import joblib; joblib.load(f)
from joblib import load; load(f)
import joblib as j; j.load(f)
import cloudpickle; cloudpickle.loads(f)
from cloudpickle import loads; loads(f)
import pickle; pickle.load(f)
from pickle import Unpickler; Unpickler(f).load()
import _pickle; _pickle.loads(f)
import pickle as p; p.loads(f)
import dill; dill.loads(f)
import marshal; marshal.loads(f)
import shelve; shelve.open(f)
import jsonpickle; jsonpickle.decode(f)
import pandas; pandas.read_pickle(f)
import pandas as pd; pd.read_pickle(f)
import yaml; yaml.load(f, yaml.Loader)
import yaml; yaml.unsafe_load(f)
import yaml; yaml.full_load(f)
import numpy as np; np.load(f, allow_pickle=True)
import numpy as n; n.load(f, allow_pickle=True)
from numpy import load; load(f, allow_pickle=True)
from numpy import load as read; read(f, None, True)
import numpy; numpy.load(f, None, True)
import numpy as np; np.load(f, allow_pickle=wanted)
import numpy as np; np.load(f, **options)
import numpy as np; np.load(*options)
import numpy as np; np.lib.format.read_array(f, True)
from functools import partial; import numpy as np; partial(np.load, allow_pickle=True)
from transformers import AutoModel; AutoModel.from_pretrained(f, trust_remote_code=True)
from datasets import load_dataset; load_dataset(f, trust_remote_code=True)
from safer import load; load(f, weights_only=False)
""".strip().splitlines()
ALLOWED = """
import numpy as np; np.load(f, allow_pickle=False)
import numpy as np; np.load(f, "r")
import numpy as np; np.save(f, x, allow_pickle=True)
import torch; torch.nn.Linear(1, 2).eval()
import json; json.load(f)
import yaml; yaml.safe_load(f)
from safetensors.torch import load; load(f)
import tomllib; tomllib.load(f)
import pickletools; pickletools.genops(f)
""".strip().splitlines()


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The snippets that ruff, as our own files are checked, refuses for being unsafe."""
    folder = tmp_path_factory.mktemp("snippets")
    snippets = [*BANNED, *ALLOWED]
    for index, snippet in enumerate(snippets):
        (folder / f"{index}.py").write_text(snippet.replace("; ", "\n") + "\n")
    ruff = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*ruff, "--output-format=json", str(folder)], capture_output=True, text=True)
    found = [one for one in json.loads(done.stdout) if re.fullmatch(r"S\d+|TID251", one["code"])]
    return {snippets[int(Path(one["filename"]).stem)] for one in found}


@pytest.mark.parametrize("snippet", BANNED)
def test_each_unsafe_way_of_loading_is_seen(snippet: str, refused: set[str]) -> None:
    assert snippet in refused or list(unsafe(snippet))


@pytest.mark.parametrize("snippet", ALLOWED)
def test_safe_ways_are_left_alone(snippet: str, refused: set[str]) -> None:
    assert snippet not in refused
    assert not list(unsafe(snippet))


def test_only_the_tools_that_unpickle_by_a_list_of_names_are_excused() -> None:
    """Two published wheels hold pickles; what reads them knows a few names and refuses any other.

    Nothing in the package is: it takes the pickles of CIFAR apart and runs nothing (tests/data/test_safe_pickle.py).
    """
    excused = re.compile(r"# (?:ruff: )?noqa(?!:)|# (?:ruff: )?noqa:[^-\n]*\b(?:S\d|TID)")
    found = {path.name for path in FILES if path != Path(__file__) and excused.search(path.read_text(encoding="utf-8"))}
    assert found == {"build_newsgroups20.py", "build_efficientnet_lite0.py"}
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not re.search(r"per-file-ignores|exclude", settings)
