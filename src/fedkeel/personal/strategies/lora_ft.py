"""LoRA FT: a personal low-rank adapter in every attention layer, and the head; the network stays the global one.

LP-FT (arXiv 2511.12695), Appendix D.1, after LoRA (Hu et al., ICLR 2022): W + (alpha / r) B A with B = 0 at the start.
Rank and place are not given: rank 8, alpha 16, query and value weights are our choices, as in lora.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, Phase
from fedkeel.core.tree import HEAD, Tensor, Tree, put, take
from fedkeel.methods.network import model_of
from fedkeel.models.backbone import Backbone, network_weights
from fedkeel.models.lora import in_attention, weights
from fedkeel.personal.strategy import Strategy, register
from fedkeel.rows.inputs import Inputs


class Adapted(Strategy):
    """A strategy that adds parameters of its own to a transformer, and trains them and the head."""

    prefix: ClassVar[str] = "adapter."

    def on(self, run: AnyMethod) -> Strategy:
        if model_of(run).adapters:
            raise FedkeelError(f"{self.name} adds adapters to a network, but {run.name} has some: use ft or lp-ft")
        return super().on(run)

    def plan(self, round: int) -> list[Phase]:
        return [self.stage("tune", (self.prefix, HEAD), self.epochs)]


@register("lora-ft", paper="a personal low-rank adapter and head (Hu et al., ICLR 2022)")
class LoraFT(Adapted):
    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    """the adapter counts alpha / rank times"""

    def extra(self, backbone: Backbone, seed: int) -> Tree:
        backbone.must_be_transformer()
        return put(self.prefix, in_attention(backbone, self.rank, seed, "lora-ft"))

    def features(self, tree: Tree, x: Inputs) -> Tensor:
        now = network_weights(tree)
        adapted = weights(x.backbone, take(self.prefix, tree), self.alpha / self.rank, now)
        features: Tensor = x.features(weights={**now, **adapted})
        return features
