"""What every kind of module is: settings, tensors to start from, and the logits that they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from fedkeel.core.registry import Registry
from fedkeel.core.tree import Tensor, Tree
from fedkeel.models.dual import Dual
from fedkeel.models.encoders import Encoder
from fedkeel.rows.items import Items


class Module(BaseModel):
    """Its fields are settings. A method that tunes a module has them too: it inherits from the kinds it can tune."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, method: Any) -> Self:
        """The module with the settings that a method has."""
        return cls(**{name: getattr(method, name) for name in cls.model_fields})

    def encoders(self, item: Encoder) -> dict[str, Encoder]:
        """What makes the arrays of ``Items`` that the module needs besides the item tower's features, by name."""
        return {}

    def upper(self, item: Encoder) -> Any:
        """The part of the item tower that is run in every step, as ``Dual.upper``; it has a ``twin()``."""
        return None

    def fresh(self, dual: Dual, seed: int) -> Tree:
        """The trainable tensors at the start; none where nothing is tuned."""
        return {}

    def logits(self, params: Tree, x: Items) -> Tensor:
        """(rows, classes), with the tensors of ``fresh``, trained or not."""
        raise NotImplementedError


MODULES: Registry[Module] = Registry("module", "fedkeel.methods.dual.peft")


def module(name: str) -> Callable[[type[Module]], type[Module]]:
    """Class decorator that makes a kind of module known by name."""
    return MODULES.add(name)
