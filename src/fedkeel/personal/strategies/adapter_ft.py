"""Adapter FT: a personal bottleneck after the MLP of every block, and the head; the network stays the global one.

LP-FT (arXiv 2511.12695), Appendix D.1, after Houlsby et al., Parameter-Efficient Transfer Learning for NLP, ICML 2019:
    h <- h + W_up gelu(W_down h)
with W_up = 0 at the start. Width and place are not given: one adapter after each MLP, width 16, are our choices.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.core.tree import Tensor, Tree
from fedkeel.models.backbone import Backbone, network_weights
from fedkeel.models.lora import gaussian
from fedkeel.personal.strategies.lora_ft import Adapted
from fedkeel.personal.strategy import register
from fedkeel.rows.inputs import Inputs


@register("adapter-ft", paper="a personal bottleneck after every MLP, and the head (Houlsby et al., ICML 2019)")
class AdapterFT(Adapted):
    width: int = Field(16, ge=1)
    """of the bottleneck"""

    def extra(self, backbone: Backbone, seed: int) -> Tree:
        backbone.must_be_transformer()
        found = {}
        for index in range(len(backbone.mlps)):
            found[f"adapter.down.{index:02d}"] = gaussian(self.width, backbone.width, seed, "adapter-ft", index)
            found[f"adapter.up.{index:02d}"] = torch.zeros(backbone.width, self.width)
        return found

    def features(self, tree: Tree, x: Inputs) -> Tensor:
        def bottleneck(index: int, hidden: Tensor) -> Tensor:
            down, up = tree[f"adapter.down.{index:02d}"], tree[f"adapter.up.{index:02d}"]
            return torch.nn.functional.gelu(hidden @ down.mT) @ up.mT

        after = [lambda hidden, index=index: bottleneck(index, hidden) for index in range(len(x.backbone.mlps))]
        features: Tensor = x.features(weights=network_weights(tree), after=after)
        return features
