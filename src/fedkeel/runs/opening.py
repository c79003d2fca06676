"""The place where rows are opened: what a method reads decides whether they are encoded before, read in every step, or
taken to a dual encoder. Nobody else asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod
from fedkeel.core.rows import Rows
from fedkeel.core.tree import Tensor
from fedkeel.core.watch import Watch
from fedkeel.data.dataset import Dataset
from fedkeel.data.sources.base import Source
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.peft.prompt import Prompt
from fedkeel.methods.transformer.base import Tuned
from fedkeel.models.backbone import Backbone
from fedkeel.models.cache import encoded_by, features
from fedkeel.models.dual import open_dual
from fedkeel.models.encoders import NETWORKS, Encoder, encoder_name, open_encoder
from fedkeel.models.prepare import Preparation, as_rows, prepare, prepared
from fedkeel.rows.features import Features
from fedkeel.rows.inputs import Inputs, inputs
from fedkeel.rows.items import items

UNCUT = 10**6


@dataclass(frozen=True)
class Opened:
    """The training and test rows of a dataset as a method reads them, and by which encoder."""

    train: Rows[Any]
    test: Rows[Any]
    encoder: str
    weights: str
    transform: str


class Trained(Protocol):
    """What a finished model says of the rows that it was trained on."""

    @property
    def method(self) -> AnyMethod: ...
    @property
    def mean(self) -> Tensor | None: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> Source: ...
    @property
    def dim(self) -> int: ...


def same_rows(one: AnyMethod, other: AnyMethod) -> bool:
    """Whether two methods read rows in the same way."""
    return one.reads == other.reads


def preparation(method: AnyMethod, data: Source) -> Preparation:
    """What is done to features before a head sees them: nothing where a method makes its own."""
    return data.features if method.reads == "features" else "raw"


def open_rows(data: Source, dataset: Dataset, method: AnyMethod, watch: Watch) -> Opened:
    if method.reads == "inputs":
        return as_inputs(data, dataset, method)
    if isinstance(method, DualTuned):
        return _as_items(data, dataset, method, watch)
    _must_be_trained(data, dataset)
    made = features(data, dataset, progress=watch.encoded, notice=watch.notice)
    train, test = (Features(as_rows(part)) for part in (made.train, made.test))
    return Opened(train, test, made.encoder, made.weights, made.transform)


def encoder_of(data: Source, dataset: Dataset, method: AnyMethod) -> tuple[str, str, str]:
    """Name, weights and transform of the encoder with which rows are opened for a method; no network is loaded."""
    name = encoder_name(data, dataset, trains=method.reads == "inputs")
    if method.reads == "features" and name in dataset.ready:
        return name, dataset.ready[name].weights, dataset.ready[name].transform
    encoder = open_encoder(data, dataset, trains=method.reads == "inputs")
    return encoder.name, encoder.weights, encoder.transform


def tokens_of(method: AnyMethod) -> int:
    """How many tokens of a text a method reads, or the one whose model it personalises.

    A head on features was trained on all that the encoder reads, so nothing may be cut off there.
    """
    of: AnyMethod = getattr(method, "base", method)
    return UNCUT if of.reads == "features" else int(getattr(of, "tokens", 128))


def _must_be_trained(data: Source, dataset: Dataset) -> None:
    """A head on features that nobody ever trained learns nothing worth having, unless that was asked for."""
    if (name := encoder_name(data, dataset)) in NETWORKS:
        raise FedkeelError(
            f"encoder {name} has no trained weights, so a head alone would learn little: train it as well with "
            "method.name=fedavg method.tune=network, or set data.encoder to one that is trained, or to pixels"
        )


def as_inputs(data: Source, dataset: Dataset, method: AnyMethod) -> Opened:
    """The rows themselves, for a method that encodes them in every step."""
    backbone = Backbone.of(open_encoder(data, dataset, trains=True))
    if isinstance(method, Tuned):
        backbone.must_be_transformer()
    train, test = (inputs(backbone, part, tokens_of(method)) for part in (dataset.train, dataset.test))
    return Opened(train, test, backbone.encoder, backbone.weights, backbone.transform)


def said_of_names(method: DualTuned) -> tuple[str, float | None, str]:
    """How a method has class names read: the template, the scale of the logits, and the ending after soft prompts."""
    return method.template, method.scale, method.module.ending if isinstance(method.module, Prompt) else ""


def _as_items(data: Source, dataset: Dataset, method: DualTuned, watch: Watch) -> Opened:
    """The items of a dual encoder, with all that the method needs of them."""
    name = encoder_name(data, dataset)
    dual = open_dual(name, data, dataset.kind, dataset.class_names, dataset.name, *said_of_names(method))
    item = open_encoder(data, dataset)
    dual = replace(dual, upper=method.module.upper(item))
    method.module.fresh(dual, 0)  # a start that cannot be made is told before a run begins
    told: dict[str, Any] = {"progress": watch.encoded, "notice": watch.notice}
    arrays = {
        array: encoded_by(encoder, data, dataset, **told) for array, encoder in method.module.encoders(item).items()
    }
    if "features" not in arrays:
        arrays["features"] = features(data, dataset, **told)
    train = items(dual, **{array: made.train for array, made in arrays.items()})
    test = items(dual, **{array: made.test for array, made in arrays.items()})
    return Opened(train, test, item.name, item.weights, item.transform)


def prepared_inputs(rows: Inputs, how: Preparation, mean: Tensor | None) -> Inputs:
    """Inputs of which a network makes features that a head was trained on."""
    return rows if how == "raw" else replace(rows, prepared=partial(prepared, how=how, mean=mean))


Encode = Callable[[Encoder, Any], np.ndarray]
"""From an encoder and rows to features."""


def at_once(encoder: Encoder, rows: Any) -> np.ndarray:
    return encoder.encode(rows)


def open_new(
    rows: Sequence[Any] | np.ndarray, model: Trained, item: Encoder | None, encode: Encode = at_once
) -> Rows[Any]:
    """Rows that a finished model has not seen, as its method reads them; without an encoder they are features."""
    method, how = model.method, preparation(getattr(model.method, "base", model.method), model.settings)
    if method.reads == "features":
        made = np.asarray(rows) if item is None else encode(item, rows)
        if made.ndim != 2 or made.shape[1] != model.dim:
            raise FedkeelError(f"the rows have shape {made.shape}: this model expects (rows, {model.dim})")
        return Features(prepare(as_rows(made), how, model.mean))
    assert item is not None
    if not isinstance(method, DualTuned):
        return prepared_inputs(inputs(Backbone.of(item), rows, tokens_of(method)), how, model.mean)
    module, towers = method.module, (item.name, model.settings, item.kind, model.class_names, "the model")
    dual = replace(open_dual(*towers, *said_of_names(method)), upper=module.upper(item))
    arrays = {name: encode(encoder, rows) for name, encoder in {"features": item, **module.encoders(item)}.items()}
    return items(dual, **arrays)
