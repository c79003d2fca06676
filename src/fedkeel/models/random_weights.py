"""An encoder that has learnt nothing: the same network and preparation with weights drawn anew, always the same ones.

OvA-LP (arXiv 2511.05028), Figure 2, sets the feature geometry of a trained encoder against that of a random one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.data.files import digest
from fedkeel.models.encoders import Encoder, Model


def untrained(trained: Encoder) -> Encoder:
    """The encoder with random weights: a function of the trained ones' hash, so a folder may be moved."""
    if not trained.weights:
        raise FedkeelError(
            f"encoder random:{trained.name}: {trained.name} has no weights to draw; expected random: and one that has, "
            "minilm, efficientnet-lite0 or hf:ID-or-folder"
        )

    def load() -> Model:
        model = trained.load()
        redraw(model.network, int(generator(0, "random weights", trained.weights).integers(2**63)))
        return model

    weights = digest(["random weights", trained.weights])
    return Encoder(f"random:{trained.name}", trained.kind, weights, trained.transform, load)


def redraw(network: Any, seed: int) -> None:
    """Give a network the weights that it would start its training with, in place."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if hasattr(network, "config"):  # a model of transformers: made again, each layer starts as its family does
            network.load_state_dict(type(network)(network.config).state_dict())
            return
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                # As EfficientNet starts: normal with variance 2 / fan-out. Its batch norms, folded into these layers,
                # start as the identity, so there is no shift. PyTorch's own start would fade out over 50 such layers.
                fan_out = layer.out_channels // layer.groups * math.prod(layer.kernel_size)
                nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_out))
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
