"""A small transformer with random weights and a federation of clients whose rows it reads."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.engines.base import Clients
from fedkeel.method import Task
from fedkeel.models.backbone import Backbone
from fedkeel.models.encoders import Encoder, Model
from fedkeel.rng import generator

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
    network = seeded(lambda: BertModel(BertConfig(vocab_size=WORDS, **shape), add_pooling_layer=False))

    def apply(inputs: dict[str, Tensor]) -> Tensor:
        mask = inputs["attention_mask"].unsqueeze(2).float()
        return (network(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)

    def read(rows: list[Any], positions: np.ndarray) -> dict[str, Tensor]:
        ids = torch.from_numpy(np.stack(rows))
        return {"input_ids": ids, "attention_mask": ids.ne(0).long()}

    return Backbone.of(Encoder("bert", "texts", "", "", lambda: Model(WIDTH, None, network, apply, read)))


def reading(who: Clients, classes: int) -> tuple[Clients, Task]:
    """The same clients with rows of words, a few of which tell the class."""
    draw = generator(0, "words")
    ids = draw.integers(10, WORDS, (len(who.y), LENGTH))
    ids[:, 1] = 1 + who.y.numpy()
    ids[::3, 4] = 0  # some rows are shorter
    backbone = small_bert()
    inputs: Any = backbone.inputs(list(ids), LENGTH)
    clients = Clients(who.names, inputs, who.y, who.owned, who.seed, classes)
    return clients, Task(WIDTH, classes, len(who.names), 0, len(who.y), backbone)
