"""What can be added with one file: methods, strategies, splits, sources, modules, observers, each found by its name.

A registry imports its package, files and folders alike, when it is first asked: so a new file is all that it takes, and
whoever has no need of them does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, ClassVar, Generic, TypeVar

from fedkeel.core.errors import UnknownName, unknown

Kind = TypeVar("Kind")


class Registry(MutableMapping[str, type[Kind]], Generic[Kind]):
    """Classes by name. ``hint`` is told to who looks for one of these names in another registry."""

    everywhere: ClassVar[list[Registry[Any]]] = []

    def __init__(self, what: str, package: str, hint: str = "") -> None:
        self.what, self.hint, self._package = what, hint, package
        self._known: dict[str, type[Kind]] = {}
        self._whole = False
        self.everywhere.append(self)

    def add(self, name: str) -> Callable[[type[Kind]], type[Kind]]:
        """Class decorator that keeps a class under its name."""

        def keep(cls: type[Kind]) -> type[Kind]:
            self[name] = cls
            return cls

        return keep

    def __getitem__(self, name: str) -> type[Kind]:
        if name in self._all():
            return self._known[name]
        for other in self.everywhere:
            if other.hint and name in other:
                raise UnknownName(f"{self.what} {name} {other.hint.format(name=name)}")
        raise unknown(self.what, name, self._all())

    def __setitem__(self, name: str, cls: type[Kind]) -> None:
        self._known[name] = cls

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, type[Kind]]:
        if not self._whole:
            self._whole = True  # who asks meanwhile gets what there is
            try:
                package = import_module(self._package)
                for module in walk_packages(package.__path__, f"{self._package}."):
                    import_module(module.name)
            except BaseException:
                self._whole = False
                raise
        return self._known
