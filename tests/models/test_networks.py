"""Networks that start at random weights: against another implementation, and as trees that methods train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree, digest
from fedkeel.models.backbone import Backbone, network_weights
from fedkeel.models.encoders import open_named
from fedkeel.models.networks import NETWORKS, ResNet18, as_pixels, fresh, whole_patches
from fedkeel.rows.inputs import features_of
from fedkeel.rows.inputs import inputs as inputs_of

SIDES = {"cnn": 8, "resnet18": 224, "resnet18-small": 16, "vit-tiny": 8}


def pictures(count: int, width: int, height: int | None = None) -> np.ndarray:
    return generator(0, "pictures").integers(0, 256, (count, height or width, width, 3), dtype=np.uint8)


def opened(name: str, rows: Any) -> Backbone:
    return Backbone.of(open_named(name, "auto", "images", rows, "pictures"))


def stirred(network: nn.Module) -> nn.Module:
    """With statistics and scales of batch norms that are not those of the start."""
    for name, value in network.state_dict().items():
        if value.is_floating_point() and value.ndim == 1:
            value.copy_(torch.from_numpy(generator(1, name).uniform(0.5, 1.5, value.shape)))
    return network.eval().requires_grad_(False)


def resnet_of_transformers(ours: ResNet18) -> nn.Module:
    """The ResNet-18 of another library, with our weights under its names."""
    from transformers import ResNetConfig, ResNetModel

    shape = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"}
    theirs: nn.Module = ResNetModel(ResNetConfig(**shape))  # type: ignore[arg-type]
    places = {"stem.": "embedder.embedder.convolution.", "norm.": "embedder.embedder.normalization."}
    for block in range(8):
        here, there = f"blocks.{block}.", f"encoder.stages.{block // 2}.layers.{block % 2}."
        for number, word in enumerate(("first", "second")):
            places[f"{here}{word}."] = f"{there}layer.{number}.convolution."
            places[f"{here}norm_{word}."] = f"{there}layer.{number}.normalization."
        places[f"{here}shortcut.0."] = f"{there}shortcut.convolution."
        places[f"{here}shortcut.1."] = f"{there}shortcut.normalization."
    weights = {}
    for name, value in ours.state_dict().items():
        place = next(place for place in places if name.startswith(place))
        weights[places[place] + name.removeprefix(place)] = value
    theirs.load_state_dict(weights)  # every name, and none left over
    return theirs.eval().requires_grad_(False)


def test_resnet18_is_that_of_another_library() -> None:
    ours = stirred(fresh("resnet18", 224, 0))
    assert isinstance(ours, ResNet18)
    assert sum(value.numel() for value in ours.parameters()) == 11_176_512  # 11,689,512 less 513,000 of its last layer
    images = as_pixels(pictures(3, 64), np.arange(3), (64, 64), (64, 64))
    expected: Tensor = resnet_of_transformers(ours)(images).pooler_output.flatten(1)
    got = ours(images)
    assert got.shape == (3, 512)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_the_stem_for_small_images_keeps_their_size() -> None:
    """One convolution of stride 1, then three stages that halve: 16 pixels end as 2, 224 of the other stem as 7."""
    small = fresh("resnet18-small", 16, 0)
    assert isinstance(small, ResNet18)
    assert small.stem.weight.shape == (64, 3, 3, 3)
    images = torch.zeros(2, 3, 16, 16)
    assert small.blocks(small.stem(images)).shape == (2, 512, 2, 2)
    assert small(images).shape == (2, 512)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fresh_network_is_keyed_by_the_seed(name: str) -> None:
    """And draws nothing from the generator that everybody shares."""
    before = torch.random.get_rng_state()
    one, again, other = (fresh(name, SIDES[name], seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert digest(one) == digest(again)
    changed = {key for key, value in one.items() if not torch.equal(value, other[key])}
    assert all(key in changed for key, value in one.items() if value.ndim > 1 and not key.endswith("cls_token"))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_tree_holds_every_parameter_and_statistic(name: str) -> None:
    network = fresh(name, SIDES[name], 5)
    tree = opened(name, pictures(2, SIDES[name])).tree(5)
    expected: Tree = {}
    for key, value in network.named_parameters():
        module = network.get_submodule(key.rpartition(".")[0])
        expected[("norm." if isinstance(module, nn.BatchNorm2d) else "body.") + key] = value
    for key, value in network.named_buffers():
        if "running" in key:
            expected["stats." + key] = value
    assert digest(tree) == digest(expected)
    assert bool([key for key in tree if key.startswith("stats.")]) == (name != "vit-tiny")


@pytest.mark.parametrize("name", ["cnn", "resnet18-small", "vit-tiny"])
def test_features_are_those_of_the_tree_and_leave_the_network_alone(name: str) -> None:
    """In both modes; in training the statistics handed in move, and nothing of the network itself does."""
    rows = pictures(6, SIDES[name])
    backbone = opened(name, rows)
    tree, network = backbone.tree(5), fresh(name, SIDES[name], 5)
    inputs = inputs_of(backbone, rows, 0)
    kept = {key: value.clone() for key, value in backbone.whole.network.state_dict().items()}
    images = torch.from_numpy(rows).permute(0, 3, 1, 2).float() / 127.5 - 1

    def plain() -> Tensor:
        output = network(images)
        return output if isinstance(output, Tensor) else output.last_hidden_state[:, 0]  # type: ignore[no-any-return]

    torch.testing.assert_close(features_of(tree, inputs), plain())
    first = digest(tree)
    moved = inputs.backbone.features(inputs.source(np.arange(6)), weights=network_weights(tree), moves=True)
    network.train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    torch.testing.assert_close(moved, plain(), rtol=1e-4, atol=1e-5)
    assert (digest(tree) == first) == (name == "vit-tiny"), "batch norms bring the statistics up to date in place"
    for key, value in network.named_buffers():
        if "running" in key:
            torch.testing.assert_close(tree["stats." + key], value)
    assert all(torch.equal(value, kept[key]) for key, value in backbone.whole.network.state_dict().items())
    assert not any(module.training for module in backbone.whole.network.modules())


def test_images_of_another_size_are_refused_in_one_line() -> None:
    rows = [pictures(1, 8)[0], pictures(1, 9)[0]]
    inputs = inputs_of(opened("cnn", rows), rows, 0)
    with pytest.raises(FedkeelError, match=r"image 1 has 9 x 9 pixels: expected 8 x 8 like the first") as error:
        inputs.features()
    assert "\n" not in str(error.value)
    assert inputs_of(opened("resnet18", rows), rows, 0).source(np.arange(2))["pixel_values"].shape == (2, 3, 224, 224)


def test_a_batch_of_one_row_does_not_move_statistics() -> None:
    """At the last stage it may be a single number per channel, which has no variance: PyTorch would fail there."""
    rows = pictures(1, 8)
    backbone = opened("resnet18-small", rows)
    tree = backbone.tree(0)
    before, inputs = digest(tree), inputs_of(backbone, rows, 0)
    got = backbone.features(inputs.source(np.arange(1)), weights=network_weights(tree), moves=True)
    assert digest(tree) == before
    torch.testing.assert_close(got, features_of(tree, inputs))


def test_images_that_are_too_small_are_refused_in_one_line() -> None:
    with pytest.raises(FedkeelError, match=r"encoder cnn reads images of 4 x 4 pixels or more, these have 6 x 3: enl"):
        opened("cnn", pictures(2, 6, 3))
    assert inputs_of(opened("cnn", pictures(2, 4)), pictures(2, 4), 0).features().shape == (2, 128)


@pytest.mark.parametrize(("size", "read"), [((8, 8), 8), ((9, 9), 8), ((28, 28), 28), ((30, 40), 28), ((3, 3), 3)])
def test_a_vit_reads_whole_patches_of_images_of_any_size(size: tuple[int, int], read: int) -> None:
    rows = pictures(2, *size)
    assert whole_patches(size) == (read, read)
    backbone = opened("vit-tiny", rows)
    assert inputs_of(backbone, rows, 0).source(np.arange(2))["pixel_values"].shape == (2, 3, read, read)
    assert inputs_of(backbone, rows, 0).features().shape == (2, 64)


def test_grey_and_wide_images_are_read_too() -> None:
    assert inputs_of(opened("cnn", pictures(2, 12, 8)), pictures(2, 12, 8), 0).features().shape == (2, 128)
    grey = list(pictures(2, 8)[..., 0])
    pixels = inputs_of(opened("cnn", grey), grey, 0).source(np.arange(2))["pixel_values"]
    assert torch.equal(pixels[:, 0], pixels[:, 2])
    assert 0.9 < float(pixels.abs().max()) <= 1
