"""PromptFL: a shared soft prompt, averaged like any other tensor.

Guo et al., PromptFL, IEEE Transactions on Mobile Computing 2023: CoOp's context tokens are trained with cross-entropy
on every client and averaged by rows. Of personal models it says nothing: see ``base.py``.
"""

from __future__ import annotations

from typing import ClassVar

from fedkeel.core.method import register
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.peft.module import Module
from fedkeel.methods.dual.peft.prompt import Prompt


@register("promptfl", paper="a soft prompt, averaged (Guo et al., IEEE TMC 2023)")
class PromptFL(Prompt, DualTuned):
    kind: ClassVar[type[Module]] = Prompt
