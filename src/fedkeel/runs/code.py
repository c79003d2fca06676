"""A fingerprint of the code that somebody writes or edits to get other numbers: a method, a source, a split.

It is taken of what the files say, not of how: comments, docstrings and layout do not count.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
from collections.abc import Set
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from types import CodeType, FunctionType

from fedkeel.data.files import digest

OPEN = ("fedkeel.methods.", "fedkeel.data.sources.", "fedkeel.data.splits.", "fedkeel.personal.strategies.")
"""Where a file of fedkeel's own is one thing among many; a change anywhere else raises ``provenance.RESULTS``."""
LIBRARIES = {"fedkeel", "pydantic", "typing", "abc", "builtins", "__main__"}
"""Where classes derive from that nobody edits, or that are looked at in another way."""
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def code_of(*kinds: type) -> str:
    """Of the files of classes and of the classes that they derive from, with what these files import."""
    found: dict[str, str] = {}
    bases = [base for kind in kinds for base in kind.__mro__]
    packages = {base.__module__.partition(".")[0] for base in bases} - LIBRARIES
    for base in bases:
        if base.__module__ == "__main__":  # of a script or a notebook, the class alone
            found[f"__main__.{base.__qualname__}"] = _of_class(base)
        else:
            _follow(base.__module__, packages, found)
    return digest(part for name in sorted(found) for part in (name, found[name]))


def _follow(name: str, packages: Set[str], found: dict[str, str]) -> None:
    """Add a module that counts, and what it imports: of fedkeel's open folders, the classes' packages, or a user's."""
    top = name.partition(".")[0]
    if name in found or (not name.startswith(OPEN) if top == "fedkeel" else top not in packages and not _users(top)):
        return
    path = _file(name)
    if path is not None:
        found[name], imported = _read(path.read_text(encoding="utf-8"), name, path.name == "__init__.py")
        for other in imported:
            _follow(other, packages, found)


def _file(name: str) -> Path | None:
    """Where a module is; None for a name that is something else, or not written in Python."""
    try:
        spec = find_spec(name)
    except Exception:  # whatever a package does when it is looked into, a name in a module that is no package
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


@lru_cache
def _users(top: str) -> bool:
    """Whether a module lies where nothing is installed."""
    path = None if top in sys.stdlib_module_names else _file(top)
    return path is not None and not str(path).startswith(INSTALLED)


@cache
def _read(text: str, name: str, package: bool) -> tuple[str, tuple[str, ...]]:
    """What a file says, and the full names of modules, and of what may be one, that it imports anywhere."""
    tree, imported = ast.parse(text), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            above = parts[: len(parts) + package - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            imported += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return _meaning(tree), tuple(dict.fromkeys(imported))


def _meaning(tree: ast.Module) -> str:
    """The syntax tree without docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not _is_text(line)]
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _of_class(kind: type) -> str:
    try:
        return _meaning(ast.parse(dedent(inspect.getsource(kind))))
    except (OSError, TypeError):  # in a notebook there is no file
        functions = {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}
        return repr([(name, _compiled(functions[name].__code__)) for name in sorted(functions)])


def _compiled(code: CodeType) -> tuple[object, ...]:
    constants = tuple(_compiled(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    constants = constants[1:] if constants and isinstance(constants[0], str) else constants  # a docstring is first
    return code.co_code, code.co_names, constants
