"""Zero-shot: the dual encoder as it is. What every method that tunes it must be set beside."""

from __future__ import annotations

from fedkeel.core.method import Phase, Rounds, register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.dual.base import DualTuned
from fedkeel.rows.items import Items


@register("zero-shot", paper="class features of a template, nothing trained (Radford et al., CLIP, ICML 2021)")
class ZeroShot(DualTuned):
    rounds: Rounds = 1

    def plan(self, round: int) -> list[Phase]:
        return []

    def branches(self, shared: Tree, mine: Tree, x: Items) -> tuple[Tensor, ...]:
        return (x.zero_shot,)
