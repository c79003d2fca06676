"""FedCLIP's adapter: a mask over the item feature, computed from the feature itself.

Lu et al., FedCLIP, IEEE Data Eng. Bull. 2023: feature <- softmax(W_2 tanh(W_1 feature + b_1) + b_2) * feature, then
unit length. Both layers start as PyTorch's linear layers do: uniform within 1 / sqrt(d).
"""

from __future__ import annotations

import torch

from fedkeel.core.rng import generator
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.dual.peft.module import Module, module
from fedkeel.models.dual import Dual
from fedkeel.rows.items import Items


@module("adapter")
class Adapter(Module):
    def fresh(self, dual: Dual, seed: int) -> Tree:
        d = dual.dim
        shapes = {"W1": (d, d), "b1": (d,), "W2": (d, d), "b2": (d,)}
        return {
            name: torch.from_numpy(generator(seed, "adapter", name).uniform(-(d**-0.5), d**-0.5, shape)).float()
            for name, shape in shapes.items()
        }

    def logits(self, params: Tree, x: Items) -> Tensor:
        features = x.features
        hidden = torch.nn.functional.linear(features, params["W1"], params["b1"]).tanh()
        mask = torch.nn.functional.linear(hidden, params["W2"], params["b2"]).softmax(-1)
        return x.logits(torch.nn.functional.normalize(mask * features, dim=-1), x.dual.zero_shot)
