"""A frozen transformer and what may be done to it, on the families of models that methods adapt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from backbones import WIDTH, seeded, small_bert
from fedkeel.core.errors import FedkeelError
from fedkeel.models.backbone import Backbone
from fedkeel.models.encoders import Encoder, Model, open_named
from fedkeel.rows.inputs import inputs as inputs_of

SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
IMAGES = {"pixel_values": torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))}


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(image_size=16, patch_size=8, **SHAPE), add_pooling_layer=False)


def dinov2() -> nn.Module:
    from transformers import Dinov2Config, Dinov2Model

    small = {key: value for key, value in SHAPE.items() if key != "intermediate_size"}
    return Dinov2Model(Dinov2Config(image_size=16, patch_size=8, mlp_ratio=2, **small))


def clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    text = {**SHAPE, "vocab_size": 30, "max_position_embeddings": 8}
    config = CLIPConfig(text_config=text, vision_config={**SHAPE, "image_size": 16, "patch_size": 8}, projection_dim=8)
    return CLIPModel(config)


def open_images(make: Callable[[], nn.Module]) -> Backbone:
    network = seeded(make)
    tower: Any = getattr(network, "vision_model", network)

    def apply(inputs: dict[str, Tensor]) -> Tensor:
        return tower(**inputs).last_hidden_state[:, 0]  # type: ignore[no-any-return]

    def read(rows: list[Any], positions: np.ndarray) -> dict[str, Tensor]:
        return {"pixel_values": torch.stack(rows)}

    return Backbone.of(Encoder("hf:small", "images", "", "", lambda: Model(WIDTH, None, network, apply, read)))


families = pytest.mark.parametrize("make", [vit, dinov2, clip], ids=lambda make: make.__name__)


@families
def test_layers_are_found_in_the_tower_that_reads_images(make: Callable[[], nn.Module]) -> None:
    backbone = open_images(make)
    assert len(backbone.attention) == 4, "query and value of two blocks"
    assert len(backbone.mlps) == 2
    assert all(backbone.weight(name).shape == (WIDTH, WIDTH) for name in backbone.attention)
    assert backbone.width == WIDTH
    assert not [name for name in backbone.attention if name.startswith("text_model")]


@families
def test_what_is_added_to_an_mlp_is_a_shift_of_its_last_bias(make: Callable[[], nn.Module]) -> None:
    """Adding the constant c to the output of a linear layer is the same as a bias b + c."""
    backbone = open_images(make)
    shifts = [torch.linspace(-1, 1, WIDTH), torch.linspace(2, 0, WIDTH)]
    ours = backbone.features(IMAGES, added=[lambda x, c=c: c.expand_as(x) for c in shifts])  # type: ignore[misc]
    biases = {
        f"{second}.bias": backbone.weight(f"{second}.bias") + c
        for (_, second), c in zip(backbone.mlps, shifts, strict=True)
    }
    torch.testing.assert_close(ours, backbone.features(IMAGES, weights=biases))
    assert (ours - backbone.features(IMAGES)).abs().max() > 0.1


@families
def test_prompts_are_read_and_learn(make: Callable[[], nn.Module]) -> None:
    """The prompts change the features, get gradients, and leave the network as it was."""
    backbone = open_images(make)
    before = backbone.features(IMAGES)
    prompts = torch.ones(3, WIDTH).mul(0.5).requires_grad_()
    prompted = backbone.features(IMAGES, prompts=prompts)
    assert prompted.shape == before.shape
    assert (prompted - before).abs().max() > 1e-3
    prompted[:, 0].sum().backward()  # the sum over a normalised vector would be constant
    assert prompts.grad is not None
    assert prompts.grad.abs().sum(1).min() > 0
    torch.testing.assert_close(backbone.features(IMAGES), before)
    assert all(parameter.grad is None for parameter in backbone.whole.parameters())


def test_prompts_of_a_text_are_not_masked() -> None:
    """Shorter and longer rows both see the prompts: the mask grows by as many ones, and padding stays unseen."""
    backbone = small_bert()
    ids = torch.tensor([[3, 7, 9, 11], [5, 8, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": ids.ne(0).long()}
    prompts = torch.ones(2, WIDTH)
    both = backbone.features(inputs, prompts=prompts)
    alone = backbone.features({k: v[1:, :2] for k, v in inputs.items()}, prompts=prompts)
    torch.testing.assert_close(both[1:], alone)
    assert (both - backbone.features(inputs)).abs().max() > 1e-3


def test_texts_are_read_up_to_the_tokens_asked_for_and_no_padding_more() -> None:
    rows = [np.array([3, 7, 9, 11, 13]), np.array([5, 8, 0, 0, 0])]
    inputs = inputs_of(small_bert(), rows, tokens=3)
    assert (len(inputs), inputs.dim) == (2, WIDTH)
    assert inputs.source(np.array([0, 1]))["input_ids"].tolist() == [[3, 7, 9], [5, 8, 0]]
    assert inputs[torch.tensor([1])].source(np.array([1]))["input_ids"].tolist() == [[5, 8]]
    assert [len(part) for part in inputs.parts(1)] == [1, 1]


def test_an_encoder_without_blocks_is_refused_in_one_line() -> None:
    rows = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    with pytest.raises(FedkeelError, match=r"encoder efficientnet-lite0 is no transformer .* set data.encoder"):
        Backbone.of(open_named("efficientnet-lite0", "auto", "images", rows, "photos")).must_be_transformer()
