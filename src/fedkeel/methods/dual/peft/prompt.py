"""A soft prompt: a few token vectors before every class name, the same for all classes, in place of the template.

Zhou et al., Learning to Prompt for Vision-Language Models (CoOp), IJCV 2022: shared context, class name last. The item
tower stays as it is, so item features are computed once.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.dual.peft.module import Module, module
from fedkeel.models.dual import Dual
from fedkeel.rows.items import Items

CONTEXT = "context"


@module("prompt")
class Prompt(Module):
    tokens: int = Field(4, ge=1)
    """of the soft prompt"""
    words: str = ""
    """the prompt starts as these words, of as many tokens; without any it is drawn from N(0, 0.02 ** 2)"""
    ending: str = "auto"
    """what stands behind each class name; auto: "." for images, as in the released code, nothing for texts"""

    def fresh(self, dual: Dual, seed: int) -> Tree:
        if self.words:
            start = dual.words(self.words)
            if len(start) != self.tokens:
                raise FedkeelError(
                    f"method.words {self.words!r} is {len(start)} tokens for {dual.encoder}: expected {self.tokens}, "
                    "as method.tokens says; change one of them"
                )
            return {CONTEXT: start}
        drawn = generator(seed, "prompt").normal(scale=0.02, size=(self.tokens, dual.width))
        return {CONTEXT: torch.from_numpy(drawn).float()}

    def logits(self, params: Tree, x: Items) -> Tensor:
        return x.logits(x.features, x.dual.class_features(params[CONTEXT]))
