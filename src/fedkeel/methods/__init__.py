"""One file per method. Every module in this folder is imported, so a new file is all a new method takes."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
