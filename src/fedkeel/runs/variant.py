"""A name that carries settings, such as ``ova-lp:stages=1`` or ``dirichlet:alpha=0.1``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedkeel.core.atomic import safe_name
from fedkeel.core.errors import FedkeelError
from fedkeel.runs.config import must_be_utf8, value_of


@dataclass(frozen=True)
class Variant:
    """A name with settings that are not the usual ones."""

    name: str
    settings: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Variant:
        """``name`` or ``name:key=value:key=value``; values are read as --set reads them."""
        name, *parts = (part.strip() for part in must_be_utf8(text).split(":"))
        settings = {}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or not key.strip() or not name:
                raise FedkeelError(f"{text!r}: expected name:key=value, e.g. ova-lp:stages=1")
            settings[key.strip()] = value_of(value)
        return cls(name, settings)

    def __str__(self) -> str:
        return ":".join([self.name, *pairs(self.settings)])

    @property
    def label(self) -> str:
        """For the name of a folder, e.g. ova-lp_stages=1."""
        return safe_name("_".join([self.name, *pairs(self.settings)]))


def pairs(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]
