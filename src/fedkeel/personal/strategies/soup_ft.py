"""Soup FT: several fine-tuned models, averaged.

Wortsman et al., Model soups, ICML 2022; LP-FT (arXiv 2511.12695), Appendix B.2: five models with equal weights. All
start at the global model, so they differ in the order of their rows only. Statistics of batch norms are averaged with
the rest (our choice).
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.core.method import Phase, Visit
from fedkeel.core.tree import Tensor, Tree, select
from fedkeel.personal.strategy import Strategy, register


@register("soup-ft", paper="five fine-tuned models averaged (Wortsman et al., ICML 2022)")
class SoupFT(Strategy):
    models: int = Field(5, ge=1)

    def plan(self, round: int) -> list[Phase]:
        # The order of the rows is keyed by the phase's name.
        return [self.stage(f"tune-{number}", self.full, self.epochs) for number in range(1, self.models + 1)]

    def begin(self, visit: Visit) -> Tree:
        return select(visit.down, visit.phase.trains)

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        """What a client keeps between the models is the mean of those that it has."""
        done = int(visit.phase.name.removeprefix("tune-"))
        if done == 1:
            return {}, dict(params)
        return {}, {name: mean + (params[name] - mean) / done for name, mean in visit.mine.items()}
