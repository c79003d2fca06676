"""LP: linear probing alone. The network stays the global one, so features cannot be distorted at all.

Not a row of LP-FT's tables (arXiv 2511.12695), but its first stage by itself, and what can be done where only features
exist.
"""

from __future__ import annotations

from typing import ClassVar

from fedkeel.core.method import Phase
from fedkeel.core.tree import HEAD
from fedkeel.personal.strategy import Strategy, register


@register("lp", paper="linear probing alone: the head of the global model, trained on (LP-FT's first stage)")
class LP(Strategy):
    head_only: ClassVar[bool] = True

    def plan(self, round: int) -> list[Phase]:
        return [self.stage("probe", (HEAD,), self.epochs)]
