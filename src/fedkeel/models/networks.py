"""Networks that are trained from random weights: a small one for digits, ResNet-18 with two stems, a tiny ViT.

Each takes images (n, 3, h, w) of numbers in [-1, 1] and gives one feature vector per image; the head is the method's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.data.images import RowError, open_image
from fedkeel.models.encoders import BATCH, Encoder, Model

IMAGENET_SIDE = 224


class Cnn(nn.Module):
    """Three convolutions, each with its maxima over neighbours, then batch norm; one layer on the 3 x 3 places left.

    Pooling before the norm leaves it a quarter of the work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = _conv(3, 8), _conv(8, 24), _conv(24, 48)
        self.norm_first, self.norm_second, self.norm_third = nn.BatchNorm2d(8), nn.BatchNorm2d(24), nn.BatchNorm2d(48)
        self.places = nn.AdaptiveMaxPool2d(3)
        self.last = nn.Linear(48 * 9, 128)

    def forward(self, images: Tensor) -> Tensor:
        x = relu(self.norm_first(max_pool2d(self.first(images), 2)))
        x = relu(self.norm_second(max_pool2d(self.second(x), 2)))
        x = relu(self.norm_third(self.places(self.third(x))))
        return relu(self.last(x.flatten(1)))


class Block(nn.Module):
    """ResNet's basic block: two convolutions, and the input added, projected where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm_first = _conv(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.second, self.norm_second = _conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm_second(self.second(relu(self.norm_first(self.first(x)))))
        return relu(inner + self.shortcut(x))


class ResNet18(nn.Module):
    """He et al., Deep Residual Learning for Image Recognition, CVPR 2016; without its last layer.

    The stem for small images (``small``) is one 3 x 3 convolution; that for ImageNet a 7 x 7 one of stride 2, then a
    3 x 3 maximum of stride 2.
    """

    def __init__(self, small: bool) -> None:
        super().__init__()
        self.small = small
        self.stem = _conv(3, 64) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        self.blocks = nn.Sequential(
            *[
                Block(before if half == 0 else width, width, 2 if half == 0 and stage else 1)
                for stage, (before, width) in enumerate(pairwise(widths))
                for half in range(2)
            ]
        )

    def forward(self, images: Tensor) -> Tensor:
        x = relu(self.norm(self.stem(images)))
        if not self.small:
            x = max_pool2d(x, 3, 2, 1)
        features: Tensor = self.blocks(x).mean((2, 3))
        return features


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


def vit_tiny(side: int) -> nn.Module:
    """A vision transformer of 4 blocks and width 64 on 16 patches or more, made by transformers."""
    try:
        from transformers import ViTConfig, ViTModel
    except ImportError:
        raise FedkeelError('encoder vit-tiny needs the package transformers: pip install "fedkeel[hf]"') from None
    return ViTModel(  # type: ignore[no-any-return]
        ViTConfig(
            image_size=side, patch_size=_patch(side), hidden_size=64, intermediate_size=128, num_hidden_layers=4,
            num_attention_heads=4,
        ),
        add_pooling_layer=False,
    )  # fmt: skip


def _patch(side: int) -> int:
    return max(side // 4, 1)


def whole_patches(size: tuple[int, int]) -> tuple[int, int]:
    """The largest square that the patches of ``vit_tiny`` cover."""
    patch = _patch(min(size))
    side = patch * (min(size) // patch)
    return side, side


class Kind(NamedTuple):
    about: str
    make: Callable[[int], nn.Module]
    """from the side of the images"""
    dim: int
    side: int | None = None
    """images of any size are enlarged or shrunk to this many pixels; None: all rows must have the size of the first"""
    least: int = 1
    """pixels that a side must have"""
    reads: Callable[[tuple[int, int]], tuple[int, int]] = lambda size: size
    """from the size of the images to that which the network reads"""


NETWORKS: dict[str, Kind] = {
    "cnn": Kind("three convolutions with batch norm, 128 features", lambda side: Cnn(), 128, least=4),
    "resnet18": Kind("ResNet-18 at 224 pixels", lambda side: ResNet18(small=False), 512, IMAGENET_SIDE),
    "resnet18-small": Kind("ResNet-18 with the stem for small images", lambda side: ResNet18(small=True), 512),
    "vit-tiny": Kind("a vision transformer of 4 blocks and width 64", vit_tiny, 64, reads=whole_patches),
}


def open_network(name: str, rows: Sequence[Any] | np.ndarray) -> Encoder:
    """A network for images of the first row's size. Its weights are random: a method that trains it draws its own."""
    kind = NETWORKS[name]
    expected = None if kind.side else open_image(rows[0], 0).size
    if expected and min(expected) < kind.least:
        raise FedkeelError(
            f"encoder {name} reads images of {kind.least} x {kind.least} pixels or more, these have {expected[0]} x "
            f"{expected[1]}: enlarge them, or set data.encoder to resnet18, which does"
        )
    size = kind.reads(expected) if expected else (kind.side or 0, kind.side or 0)

    def load() -> Model:
        network = fresh(name, min(size), 0)

        def read(rows: Any, positions: np.ndarray) -> dict[str, Tensor]:
            return {"pixel_values": as_pixels(rows, positions, size, expected)}

        def apply(inputs: dict[str, Tensor]) -> Tensor:
            output = network(inputs["pixel_values"])
            features: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state[:, 0]
            return features

        def encode(rows: Sequence[Any] | np.ndarray) -> np.ndarray:
            features = np.empty((len(rows), kind.dim), dtype=np.float32)
            for first in range(0, len(rows), BATCH):
                part = slice(first, first + BATCH)
                with torch.inference_mode():
                    inputs = read(rows[part], np.arange(first, min(first + BATCH, len(rows))))
                    features[part] = apply(inputs).numpy()
            return features

        return Model(kind.dim, encode, network, apply, read, lambda seed: fresh(name, min(size), seed))

    return Encoder(name, "images", f"random weights of {name}", f"{size[0]} x {size[1]} RGB in [-1, 1]", load)


def fresh(name: str, side: int, seed: int) -> nn.Module:
    """The network with the weights that its training starts with, keyed by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "network", name).integers(2**63)))
        network = NETWORKS[name].make(side)
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d) and layer.bias is None:  # as ResNet starts; ViTs start by themselves
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return network.eval().requires_grad_(False)


def as_pixels(rows: Any, positions: np.ndarray, size: tuple[int, int], expected: tuple[int, int] | None) -> Tensor:
    """Images as numbers in [-1, 1], channels first; one that has not the expected size is refused."""
    if not (isinstance(rows, np.ndarray) and rows.shape[1:] == (size[1], size[0], 3) and expected in (None, size)):
        images = [open_image(row, int(position)) for row, position in zip(rows, positions, strict=True)]
        for row, position, image in zip(rows, positions, images, strict=True):
            if expected is not None and image.size != expected:
                which = row if isinstance(row, str | Path) else f"image {position}"
                found = f"{which} has {image.width} x {image.height} pixels"
                other = "like the first: resize it, or set data.encoder to resnet18, which takes any size"
                raise RowError(int(position), f"{found}: expected {expected[0]} x {expected[1]} {other}")
        rows = np.stack([np.asarray(image.resize(size, Image.Resampling.BILINEAR)) for image in images])
    return torch.from_numpy(np.ascontiguousarray(rows)).permute(0, 3, 1, 2).float() / 127.5 - 1
