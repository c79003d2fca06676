"""EfficientNet-Lite0 as a frozen feature extractor whose weights come with the package: images in, 1280 numbers out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import pad, relu6

WEIGHTS = Path(__file__).parent / "weights" / "efficientnet-lite0.safetensors"
SHA256 = "e23ae1113543e667e6df39031b39cb025b78ff85238f27110e38748a5a5858d9"
DIM = 1280
SIZE = 128
"""Recommended side in pixels for small images such as CIFAR's, enlarged bicubically."""
MEAN = 127 / 255
STD = 128 / 255
"""Input = (red, green, blue in [0, 1] - MEAN) / STD, the same for each colour, as in the network's training."""


class Stage(NamedTuple):
    kernel: int
    stride: int
    expansion: int
    channels: int
    repeats: int


STEM_CHANNELS = 32
STAGES = (
    Stage(3, 1, 1, 16, 1),
    Stage(3, 2, 6, 24, 2),
    Stage(5, 2, 6, 40, 2),
    Stage(3, 2, 6, 80, 3),
    Stage(5, 1, 6, 112, 3),
    Stage(5, 2, 6, 192, 4),
    Stage(3, 1, 6, 320, 1),
)


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does: output side = ceil(side / stride), an odd pixel goes right and below.

    It has a bias and no batch norm follows: the stored weights have it folded in.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        # With stride 1 the padding is symmetric, so the convolution can do it itself.
        super().__init__(inputs, outputs, kernel, stride, kernel // 2 if stride == 1 else 0, groups=groups)

    def forward(self, input: Tensor) -> Tensor:
        if self.stride[0] > 1:
            below, right = (self._missing(side) for side in input.shape[-2:])
            input = pad(input, (right // 2, right - right // 2, below // 2, below - below // 2))
        return super().forward(input)

    def _missing(self, side: int) -> int:
        kernel, stride = self.kernel_size[0], self.stride[0]
        return max((-(-side // stride) - 1) * stride + kernel - side, 0)


class Block(nn.Module):
    """Inverted residual: widen, filter each channel, narrow; the input is added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = SameConv(inputs, wide, 1) if expansion > 1 else None
        self.depthwise = SameConv(wide, wide, kernel, stride, groups=wide)
        self.project = SameConv(wide, outputs, 1)
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else relu6(self.expand(x), inplace=True)
        narrow: Tensor = self.project(relu6(self.depthwise(wide), inplace=True))
        return narrow + x if self.skips else narrow


class EfficientNetLite0(nn.Module):
    """Normalised images (n, 3, h, w) to features (n, 1280): the last feature map averaged over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv(3, STEM_CHANNELS, 3, stride=2)
        blocks, inputs = [], STEM_CHANNELS
        for stage in STAGES:
            for repeat in range(stage.repeats):
                stride = stage.stride if repeat == 0 else 1
                blocks.append(Block(inputs, stage.channels, stage.kernel, stride, stage.expansion))
                inputs = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConv(inputs, DIM, 1)

    def forward(self, images: Tensor) -> Tensor:
        # Colours side by side in memory: about half the time per image on a CPU.
        images = images.contiguous(memory_format=torch.channels_last)
        x = relu6(self.stem(images), inplace=True)
        x = relu6(self.head(self.blocks(x)), inplace=True)
        return x.mean(dim=(2, 3))


def efficientnet_lite0() -> nn.Module:
    """The extractor with its published ImageNet weights, in float32 and evaluation mode; nothing is downloaded."""
    with torch.device("meta"):  # no time spent on random weights that are replaced at once
        model = EfficientNetLite0()
    weights = {name: tensor.float() for name, tensor in load_file(WEIGHTS).items()}
    for name, tensor in weights.items():
        if tensor.ndim == 4:  # laid out as the images are, or every call would rearrange the weights
            weights[name] = tensor.contiguous(memory_format=torch.channels_last)
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False).eval()
