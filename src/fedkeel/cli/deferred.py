"""Packages that take seconds to load, loaded when something in them is first used: a mistake is told before that."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


class Deferred(ModuleType):
    """Stands for a package in ``sys.modules`` and becomes it when it is asked for anything."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = spec.submodule_search_locations or []
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer(name: str) -> None:
    """Let ``import NAME`` cost nothing until the package is used."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is not None:
        module = module_from_spec(spec)
        module.__class__ = Deferred
        del module.__path__  # who imports something below it asks for this
        sys.modules[name] = module
