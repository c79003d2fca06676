"""Small modules that adapt a dual encoder: one file for each kind."""

from __future__ import annotations

from fedkeel.models.peft.adapter import Adapter
from fedkeel.models.peft.lora import Lora
from fedkeel.models.peft.module import Module
from fedkeel.models.peft.prompt import Prompt

KINDS: dict[str, type[Module]] = {"prompt": Prompt, "lora": Lora, "adapter": Adapter}

__all__ = ["KINDS", "Adapter", "Lora", "Module", "Prompt"]
