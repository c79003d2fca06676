"""Two towers that share a space: one reads items, the other the names of their classes, and their cosine is the logit.

CLIP is such a pair; a sentence encoder that reads posts and class names alike is another. Without any training the pair
classifies: logits z = scale * item feature . class feature, where the class feature is that of a template such as
"a photo of a {}." filled with the name (zero-shot). What methods tune is handed in with every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Task
from fedkeel.core.tree import Tensor
from fedkeel.data.class_names import in_words
from fedkeel.data.dataset import Kind, named
from fedkeel.data.sources.base import Source
from fedkeel.models.encoders import Encoder, Model
from fedkeel.models.layers import changing

TEMPLATES: dict[Kind, str] = {"texts": "a post about {}", "images": "a photo of a {}."}
"""What ``template = "auto"`` stands for."""
ENDINGS: dict[Kind, str] = {"texts": "", "images": "."}
"""What ``ending = "auto"`` stands for: CoOp's released code, and all that is made of it, ends names so."""
SCALE = 20.0
"""Of a pair whose model has no logit scale of its own: sentence encoders, which are trained with about this one."""
REMEMBERED = 64
"""Sets of class features that are kept while nothing is trained."""


@dataclass(frozen=True)
class Dual:
    """The class-name tower, ready for soft prompts, and what both towers share."""

    encoder: str
    class_names: tuple[str, ...]
    """as they are read: in words"""
    scale: float
    zero_shot: Tensor
    """(classes, d): the features of the filled template, unit length"""
    tower: Model
    load: Callable[[], Model]
    template: str = "{}"
    """what zero-shot was filled with names of"""
    ending: str = ""
    """what stands behind a name after a soft prompt"""
    upper: Any = None
    """the part of the item tower that a method tunes, if it does"""
    _known: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def in_task(cls, task: Task) -> Dual:
        """The towers that a method starts from."""
        assert isinstance(task.reader, Dual)
        return task.reader

    @property
    def dim(self) -> int:
        return self.zero_shot.shape[1]

    @property
    def width(self) -> int:
        """The length of a token's vector in the class-name tower."""
        return int(self._embedding.weight.shape[1])

    def twin(self) -> Dual:
        """The same with a tower of its own, so that another thread may use it."""
        upper = None if self.upper is None else self.upper.twin()
        return replace(self, tower=self.load(), upper=upper, _known={})

    def words(self, text: str) -> Tensor:
        """The token vectors of some words: where a soft prompt may start."""
        first, ids = self._first, self._ids([text])[0]
        count = self._length(text) - self._length("a") + 1
        found: Tensor = self._embedding.weight[ids[first : first + count]].detach().clone()
        return found

    def _length(self, text: str) -> int:
        """In tokens, without what a text is ended or filled up with."""
        ids = self._ids([text])[0]
        return int(ids.ne(ids[-1]).sum())

    def class_features(self, context: Tensor) -> Tensor:
        """(classes, d), unit length, of soft tokens (n, width) before each name; of a stack of them (m, classes, d).

        Nothing is computed twice for the same tokens while no gradient is asked for.
        """
        if context.requires_grad and torch.is_grad_enabled():
            return self._class_features(context)
        key = sha256(context.detach().contiguous().numpy().tobytes()).hexdigest() + str(tuple(context.shape))
        if key not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            with torch.inference_mode(False), torch.no_grad():  # a later step may need them in its backward pass
                self._known[key] = self._class_features(context)
        return self._known[key]

    def _class_features(self, context: Tensor) -> Tensor:
        stacked = context.reshape(-1, *context.shape[-2:])
        groups = self._prompted(stacked.shape[1])
        parts = [self._of_some(stacked, inputs).view(len(stacked), len(which), -1) for which, inputs in groups]
        in_order = torch.cat([which for which, _ in groups]).argsort()
        return torch.cat(parts, dim=1)[:, in_order].view(*context.shape[:-2], len(self.class_names), -1)

    def _of_some(self, stacked: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Features of every name with every prompt (prompts x names, d)."""
        prompts, tokens = stacked.shape[:2]
        every = stacked.repeat_interleave(len(inputs["input_ids"]), 0)
        first, repeated = self._first, {name: value.repeat(prompts, 1) for name, value in inputs.items()}

        def put_in(words: Tensor) -> Tensor:
            return torch.cat([words[:, :first], every, words[:, first + tokens :]], dim=1)

        assert self.tower.apply is not None
        with changing(self._embedding, put_in):
            return torch.nn.functional.normalize(self.tower.apply(repeated), dim=-1)

    def _prompted(self, tokens: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """The names behind as many one-token words as a soft prompt has tokens; the words' vectors are replaced.

        In two groups, the shorter names and the longer ones, cut so that both together hold least padding.
        """
        whole = self._read([" ".join(["a"] * tokens + [name + self.ending]) for name in self.class_names])
        if "attention_mask" not in whole:  # of a model that reads its padding
            return [(torch.arange(len(self.class_names)), whole)]
        lengths, order = whole["attention_mask"].sum(1).sort()
        count = torch.arange(1, len(order) + 1)
        size = count * lengths + (len(order) - count) * lengths[-1]
        groups = [group for group in order.tensor_split([int(size.argmin()) + 1]) if len(group)]
        longest = [int(whole["attention_mask"][group].sum(1).max()) for group in groups]
        return [
            (group, {name: value[group, :most] for name, value in whole.items()})
            for group, most in zip(groups, longest, strict=True)
        ]

    @cached_property
    def _embedding(self) -> Any:
        network = self.tower.network
        return getattr(network, "text_model", network).get_input_embeddings()

    @cached_property
    def _first(self) -> int:
        """Where the first word of a text stands, after what the tokenizer puts before it."""
        one, other = self._ids(["a"])[0], self._ids(["the"])[0]
        return int((one[: len(other)] != other[: len(one)]).nonzero()[0])

    def _ids(self, texts: list[str]) -> Tensor:
        ids: Tensor = self._read(texts)["input_ids"]
        return ids

    def _read(self, texts: list[str]) -> dict[str, Tensor]:
        assert self.tower.read is not None
        return self.tower.read(texts, np.arange(len(texts)))


def open_dual(
    encoder: str,
    data: Source,
    kind: Kind,
    class_names: Sequence[str],
    source: str,
    template: str = "auto",
    scale: float | None = None,
    ending: str = "auto",
) -> Dual:
    """The pair of towers that an encoder's name stands for, with the class names read."""
    if not named(class_names):
        raise FedkeelError(
            f"{source} has no class names, only numbers such as {class_names[0]}, and a dual encoder classifies by "
            "names: give them in the labels (csv, folders), as the array class_names (npz) or in a file, "
            "data.class_names=FILE"
        )
    if kind == "features":
        raise FedkeelError(
            f"{source} holds features, which no second tower can read: give images or texts, and a model of two towers"
        )
    names = _names_tower(encoder, data)
    if names is None:
        raise FedkeelError(
            f"encoder {encoder} has one tower and reads no class names: set data.encoder to a model of two, such as "
            "hf:openai/clip-vit-base-patch16 or hf:FOLDER for images, or to minilm for texts"
        )
    tower = names.model
    paired = hasattr(tower.network, "get_image_features")
    if kind == "images" and not paired:
        raise FedkeelError(
            f"encoder {encoder} has no tower for images beside the one for texts: set data.encoder to a model of two, "
            "such as hf:openai/clip-vit-base-patch16 or hf:FOLDER"
        )
    if scale is None:
        own = getattr(tower.network, "logit_scale", None)
        scale = SCALE if own is None else float(own.detach().exp())
    template = TEMPLATES[kind] if template == "auto" else template
    said = in_words(class_names)
    filled = [template.replace("{}", name) for name in said]
    features = torch.nn.functional.normalize(torch.from_numpy(tower.encode(filled)), dim=-1)
    ending = ENDINGS[kind] if ending == "auto" else ending
    return Dual(encoder, tuple(said), scale, features, tower, names.load, template, ending)


def _names_tower(encoder: str, data: Source) -> Encoder | None:
    """The tower of that encoder which reads texts, if it has one."""
    from fedkeel.models.transformers_encoder import open_hf, open_minilm

    if encoder == "minilm":
        return open_minilm()
    family, _, reference = encoder.partition(":")
    found = open_hf(reference, "texts", data.pooling) if family == "hf" and reference else None
    return found if found is not None and found.kind == "texts" else None
