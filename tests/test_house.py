"""The house as it was built: folders import one way, files and functions stay short, private names stay private."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedkeel.commands.look  # noqa: F401  with it every registry is there
from fedkeel.core.registry import Registry

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedkeel"
ROOMS = (
    "core", "data", "models", "rows", "methods", "engines", "metrics", "runs", "personal", "study", "reporting",
    "papers", "deploy", "commands", "front",
)  # fmt: skip
"""From the bottom to the front: a room may import those before it."""
FILES = sorted(path for path in SOURCE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
}
LONGEST_FILE, LONGEST_FUNCTION = 400, 60


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "front"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module of fedkeel, name taken from it or nothing), wherever in the file it stands."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names if name.name.split(".")[0] == "fedkeel")
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedkeel":
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield (whole, "") if whole in MODULES else (str(node.module), name.name)


@pytest.mark.parametrize(("module", "path"), MODULES.items(), ids=MODULES.keys())
def test_rooms_import_one_way(module: str, path: Path) -> None:
    own = ROOMS.index(room(module))
    for imported, name in imports(path):
        if imported == "fedkeel" and name == "__version__":
            continue
        assert ROOMS.index(room(imported)) <= own, f"{module} imports {imported}, which stands above it"


def test_the_lowest_room_imports_nobody() -> None:
    assert {room(name) for path in (SOURCE / "core").rglob("*.py") for name, _ in imports(path)} == {"core"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_private_is_imported_elsewhere(path: Path) -> None:
    taken = [name for _, name in imports(path) if name.startswith("_") and not name.startswith("__")]
    assert not taken


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= LONGEST_FUNCTION, f"{node.name} has {lines} lines"


def test_few_modules_lie_loose() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_the_server_half_never_sees_rows() -> None:
    """What the server half is made of imports neither sites, nor stores, nor data."""
    flower = tuple(f"engines.flower.{name}" for name in ("engine", "post", "enrolment", "envelope", "link"))
    halves = ("engines.server", "engines.gate", "engines.base", "runs.loop", "runs.checkpoint", "core.roster", *flower)
    for name in halves:
        for imported, _ in imports(MODULES[f"fedkeel.{name}"]):
            assert not re.search(r"\.(data|rows)\b|engines\.(site|sites|store|local|wire)$", imported), (name, imported)


@pytest.mark.parametrize("module", [module for module, path in MODULES.items() if path.read_text().strip()])
def test_the_architecture_names_every_module(module: str) -> None:
    """By its path, or in a list of its folder's files such as ``{fedavg, fedprox}.py``.

    What is found by itself (a class of its file is in a registry) takes that one file and need not be on the page.
    """
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    path = MODULES[module].relative_to(SOURCE)
    if module in {cls.__module__ for known in Registry.everywhere for cls in known.values()}:
        assert f"{path.parent.as_posix()}/" in page
        return
    if path.name == "__init__.py":
        assert path.parent == Path() or f"`{path.parent.as_posix()}/" in page
        return
    listed = re.findall(r"`([a-z_0-9/]*)\{([^}]*)\}\.py`", page)
    names = {f"{folder}{name.strip()}.py" for folder, inside in listed for name in inside.split(",")}
    assert f"`{path.as_posix()}`" in page or path.as_posix() in names, f"{path} is not in ARCHITECTURE.md"
