"""The settings of every kind of module, for a method that can tune any of them."""

from __future__ import annotations

from typing import Any

from pydantic import create_model, field_validator
from pydantic_core import PydanticCustomError

from fedkeel.methods.dual.peft.module import MODULES, Module

Kinds: Any = create_model("Kinds", __base__=tuple(MODULES[name] for name in sorted(MODULES, reverse=True)))


class AnyKind(Kinds):
    peft: str = "prompt"
    """the kind of module that is tuned"""

    @field_validator("peft")
    @classmethod
    def _is_a_kind(cls, name: str) -> str:
        if name not in MODULES:
            raise PydanticCustomError("module", f"expected {', '.join(sorted(MODULES))}")
        return name

    @property
    def module(self) -> Module:
        return MODULES[self.peft].of(self)
