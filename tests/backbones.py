"""Small networks with random weights, a transformer and a CNN, and a federation of clients whose rows they read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.core.method import Task
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree, learnt
from fedkeel.data.ownership import Ownership
from fedkeel.engines.sites import Sites
from fedkeel.models.backbone import Backbone
from fedkeel.models.encoders import Encoder, Model
from fedkeel.rows.inputs import inputs as inputs_of

WIDTH, WORDS, LENGTH = 16, 40, 5


def seeded(make: Any, seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = make()
    return network.eval().requires_grad_(False)


@cache
def small_bert() -> Backbone:
    from transformers import BertConfig, BertModel

    shape = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}

    def read(rows: list[Any], positions: np.ndarray) -> dict[str, Tensor]:
        ids = torch.from_numpy(np.stack(rows))
        return {"input_ids": ids, "attention_mask": ids.ne(0).long()}

    def load() -> Model:
        network = seeded(lambda: BertModel(BertConfig(vocab_size=WORDS, **shape), add_pooling_layer=False))

        def apply(inputs: dict[str, Tensor]) -> Tensor:
            mask = inputs["attention_mask"].unsqueeze(2).float()
            return (network(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)

        return Model(WIDTH, None, network, apply, read)

    return Backbone.of(Encoder("bert", "texts", "", "", load))


def reading(who: Sites, classes: int) -> tuple[Sites, Task]:
    """The same clients with rows of words, a few of which tell the class."""
    draw = generator(0, "words")
    ids = draw.integers(10, WORDS, (len(who.y), LENGTH))
    ids[:, 1] = 1 + who.y.numpy()
    ids[::3, 4] = 0  # some rows are shorter
    backbone = small_bert()
    inputs: Any = inputs_of(backbone, list(ids), LENGTH)
    clients = Sites(who.names, inputs, who.y, who.owned, who.seed, classes)
    return clients, Task(WIDTH, classes, len(who.names), 0, len(who.y), backbone)


SIDE, CHANNELS = 8, 4


class SmallCnn(nn.Module):
    """One convolution with batch norm, and one layer on the 2 x 2 places that are left."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, CHANNELS, 3, 2, 1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.last = nn.Linear(4 * CHANNELS, WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        places = nn.functional.avg_pool2d(torch.relu(self.norm(self.conv(images))), 2)
        return torch.tanh(self.last(places.flatten(1)))


@cache
def small_cnn() -> Backbone:
    def read(rows: np.ndarray, positions: np.ndarray) -> dict[str, Tensor]:
        return {"pixel_values": torch.from_numpy(rows)}

    def load() -> Model:
        network = seeded(SmallCnn)

        def apply(inputs: dict[str, Tensor]) -> Tensor:
            return network(inputs["pixel_values"])  # type: ignore[no-any-return]

        return Model(WIDTH, None, network, apply, read, lambda seed: seeded(SmallCnn, seed))

    return Backbone.of(Encoder("small-cnn", "images", "", "", load))


def reading_images(who: Sites, classes: int, shift: float = 1.0) -> tuple[Sites, Task]:
    """The same clients with noisy pictures of their classes, brighter from client to client.

    Of every client with three rows or more, copies of the first two come last and are held back for validation.
    """
    draw = generator(0, "pictures")
    shapes = draw.normal(size=(classes, 3, SIDE, SIDE))
    y = who.y.numpy()
    pictures = shapes[y] + 0.5 * draw.normal(size=(len(y), 3, SIDE, SIDE))
    for client in range(len(who.names)):
        pictures[who.owned.of(client)] += shift * client / len(who.names)
    held = [
        who.owned.of(client)[:2] if who.owned.sizes[client] > 2 else np.empty(0) for client in range(len(who.names))
    ]
    flat = np.concatenate(held).astype(np.int64)
    added = np.split(len(y) + np.arange(len(flat)), np.cumsum([len(rows) for rows in held])[:-1])
    inputs: Any = inputs_of(small_cnn(), np.concatenate([pictures, pictures[flat]]).astype(np.float32), 0)
    labels = torch.cat([who.y, who.y[torch.from_numpy(flat)]])
    validation = Ownership.of_lists(added)
    clients = Sites(who.names, inputs, labels, who.owned, who.seed, classes, validation=validation)
    able = int(np.count_nonzero(who.owned.sizes))
    return clients, Task(WIDTH, classes, len(who.names), 0, len(who.y), small_cnn(), able=able)


def logits_by_hand(tree: Tree, images: Tensor, moves: bool = False) -> Tensor:
    """What the small CNN with a head computes, written down again; two rows or more move the statistics if asked."""
    f = nn.functional
    x = f.conv2d(images, tree["body.conv.weight"], stride=2, padding=1)
    mean, variance = tree["stats.norm.running_mean"], tree["stats.norm.running_var"]
    x = f.batch_norm(
        x, mean, variance, tree["norm.norm.weight"], tree["norm.norm.bias"], training=moves and len(images) > 1
    )
    x = f.linear(f.avg_pool2d(f.relu(x), 2).flatten(1), tree["body.last.weight"], tree["body.last.bias"])
    return f.linear(x.tanh(), tree["head.weight"], tree["head.bias"])


def pictures_of(who: Sites, client: int) -> tuple[Tensor, Tensor]:
    """The pictures and labels of a client."""
    rows: Any = who.x
    return rows.source(who.owned.of(client))["pixel_values"], who.y[who.rows(client)]


def gradient_by_hand(tree: Tree, images: Tensor, labels: Tensor, moves: bool = False) -> Tree:
    """Of the mean cross-entropy, with respect to all that an optimizer moves."""
    leaves = {name: value.clone().requires_grad_() for name, value in learnt(tree).items()}
    loss = nn.functional.cross_entropy(logits_by_hand({**tree, **leaves}, images, moves), labels)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def plain_step(tree: Tree, grads: Tree, size: float) -> Tree:
    return {name: value - size * grads[name] if name in grads else value for name, value in tree.items()}


def same(ours: Tree, expected: Tree) -> None:
    """Up to rounding, and not by being empty."""
    assert expected
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            ours[name], value, rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def tiny_resnet(folder: Path) -> None:
    """A ResNet of two layers, as save_pretrained writes it."""
    import transformers
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    seeded(lambda: transformers.ResNetModel(transformers.ResNetConfig(**shape))).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
