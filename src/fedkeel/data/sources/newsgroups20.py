"""Posts to 20 newsgroups, as token ids and as MiniLM features."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedkeel.data.dataset import Dataset, Ready, with_superclasses
from fedkeel.data.files import known_sha256
from fedkeel.data.sources.base import EMBEDDED, Texts, register

PACK = EMBEDDED / "newsgroups20.safetensors"
SHA256 = "211e300a9619e868383ae525b53c7e98087e7e4b215b3d13dee49fb3dc506605"
TRANSFORM = "256 tokens, mean pooling, unit length"
"""What the encoder that made the pack's features does to a row besides applying its weights."""


@register({"newsgroups20": "11,314 + 7,532 posts to 20 newsgroups, with their MiniLM features; comes with fedkeel"})
class Newsgroups(Texts):
    source: str = "newsgroups20"

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Read from disk as far as they are used."""
        fingerprint = known_sha256(PACK, SHA256)
        tensors, metadata = _mapped(PACK)
        dataset = Dataset(
            name="newsgroups20",
            kind="texts",
            train=tensors["train_tokens"],
            train_labels=tensors["train_labels"].astype(np.int64),
            test=tensors["test_tokens"],
            test_labels=tensors["test_labels"].astype(np.int64),
            class_names=tuple(json.loads(metadata["class_names"])),
            fingerprint=fingerprint,
            encoder="minilm",
            ready={
                "minilm": Ready(
                    tensors["train_features"], tensors["test_features"], metadata["encoder_weights"], TRANSFORM
                )
            },
        )
        return with_superclasses(dataset, json.loads(metadata["superclasses"]))


def _mapped(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A safetensors file as memory maps, which the library itself gives for torch only, and its metadata."""
    types = {"F16": "<f2", "F32": "<f4", "U8": "u1", "U16": "<u2"}
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    metadata = header.pop("__metadata__", {})
    tensors: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        offset = 8 + size + entry["data_offsets"][0]
        tensors[name] = np.memmap(path, types[entry["dtype"]], "r", offset, tuple(entry["shape"]))
    return tensors, metadata
