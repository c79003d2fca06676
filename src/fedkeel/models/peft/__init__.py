"""Small modules that adapt a dual encoder: one file for each kind, and its name below."""

from __future__ import annotations

from typing import Literal

from fedkeel.models.peft.adapter import Adapter
from fedkeel.models.peft.lora import Lora
from fedkeel.models.peft.module import Module
from fedkeel.models.peft.prompt import Prompt

KINDS: dict[str, type[Module]] = {"prompt": Prompt, "lora": Lora, "adapter": Adapter}


class AnyKind(Prompt, Lora, Adapter):
    """The settings of all kinds, for a method that can tune any of them."""

    peft: Literal["prompt", "lora", "adapter"] = "prompt"

    @property
    def module(self) -> Module:
        return KINDS[self.peft].of(self)


__all__ = ["KINDS", "Adapter", "AnyKind", "Lora", "Module", "Prompt"]
