"""Interim: the package hides the function of the same name until it is renamed."""

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from fedkeel import api

        return api.run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
