"""A finished model, ready to predict, and what clients keep of their own beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from fedkeel.core.atomic import safe_name, write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Method, State, from_settings, settings
from fedkeel.core.tree import Tree, digest
from fedkeel.data.dataset import Kind
from fedkeel.data.settings import Data
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.transformer.base import tokens_of
from fedkeel.models.backbone import Backbone
from fedkeel.models.dual import items, open_dual
from fedkeel.models.encoders import Encoder, open_named
from fedkeel.models.prepare import Preparation, as_rows, prepare, prepared

MODEL, CLIENTS = "model.safetensors", "clients"
PREPARED_MEAN = "prepare.mean"


@dataclass(frozen=True)
class Model:
    """Everything prediction needs: the head, how features are made and prepared, the names of the classes."""

    method: Method
    shared: Tree
    mean: torch.Tensor | None
    data: dict[str, Any]
    """The [data] section with the encoder's real name, and ``kind``, ``weights`` and ``dim`` of what was encoded."""
    class_names: tuple[str, ...]
    mine: Tree = field(default_factory=dict)
    """What a client keeps for itself, if this is a personal model."""

    @property
    def digest(self) -> str:
        """sha256 over the final parameters."""
        return digest(self.shared)

    def save(self, path: str | Path) -> None:
        tensors = {name: value.contiguous() for name, value in self.shared.items()}
        if self.mean is not None:
            tensors[PREPARED_MEAN] = self.mean
        about = {"method": settings(self.method), "data": self.data, "class_names": self.class_names}
        write_atomically(Path(path), to_bytes(tensors, metadata={"fedkeel": json.dumps(about)}))

    @classmethod
    def load(cls, path: str | Path) -> Model:
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads(file.metadata()["fedkeel"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        except FileNotFoundError:
            raise FedkeelError(f"there is no {path}: the run is not finished; continue it with --resume") from None
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise FedkeelError(f"{path} is damaged or no fedkeel model: run again to make it anew") from None
        mean = tensors.pop(PREPARED_MEAN, None)
        return cls(from_settings(about["method"]), tensors, mean, about["data"], tuple(about["class_names"]))

    @property
    def trained_on_features(self) -> bool:
        """Whether the run trained a head on prepared features, even if its model was personalised with the network."""
        return cast(Method, getattr(self.method, "base", self.method)).reads == "features"

    @property
    def kind(self) -> Kind:
        """What the model's rows are before they are encoded."""
        return cast(Kind, self.data["kind"])

    @property
    def settings(self) -> Data:
        return Data(**{key: value for key, value in self.data.items() if key in Data.model_fields})

    def encode(self, rows: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Features of new rows; the encoder must be the one the model was trained with."""
        if self.data["encoder"] == "none":
            return np.asarray(rows, dtype=np.float32)
        return self.encoder(rows).encode(rows)

    def encoder(self, rows: Sequence[Any] | np.ndarray) -> Encoder:
        encoder = open_named(self.data["encoder"], self.settings.pooling, self.kind, rows, "the input")
        if (encoder.weights, encoder.transform) != (self.data["weights"], self.data["transform"]):
            raise FedkeelError(
                f"the encoder {encoder.name} is not the one this model was trained with (weights or preparation): "
                "give that one, or train again"
            )
        return encoder

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Probabilities (rows, classes) from encoded features."""
        dim = self.data["dim"]
        if features.ndim != 2 or features.shape[1] != dim:
            raise FedkeelError(f"the rows have shape {features.shape}: this model expects (rows, {dim})")
        how: Preparation = self.data["features"]
        with torch.inference_mode():
            x = prepare(as_rows(features), how, self.mean)
            return self.method.scores(self.method.predict(State(self.shared), self.mine, x)).numpy()

    def predict(self, rows: Sequence[Any] | np.ndarray) -> tuple[list[str], np.ndarray]:
        """(class name, score) of each new row: texts or images as the source had them, or encoded features (n, d)."""
        if self.method.reads == "inputs":
            inputs: Any = Backbone.of(self.encoder(rows)).inputs(rows, tokens_of(self.method))
            how: Preparation = self.data["features"] if self.trained_on_features else "raw"
            if how != "raw":
                inputs = replace(inputs, prepared=partial(prepared, how=how, mean=self.mean))
            with torch.inference_mode():
                scores = self.method.scores(self.method.predict(State(self.shared), self.mine, inputs)).numpy()
            return self._named(scores)
        if isinstance(self.method, DualTuned):
            return self._named(self._paired(rows, self.method))
        encoded = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype.kind == "f"
        scores = self.scores(cast(np.ndarray, rows) if encoded else self.encode(rows))
        return self._named(scores)

    def _paired(self, rows: Sequence[Any] | np.ndarray, method: DualTuned) -> np.ndarray:
        """Probabilities (rows, classes) of a model that tunes a dual encoder."""
        item, module = self.encoder(rows), method.module
        towers = self.data["encoder"], self.settings, self.kind, self.class_names, "the model"
        dual = replace(open_dual(*towers, method.template, method.scale), upper=module.upper(item))
        arrays = {name: encoder.encode(rows) for name, encoder in {"features": item, **module.encoders(item)}.items()}
        with torch.inference_mode():
            return method.scores(method.predict(State(self.shared), self.mine, items(dual, **arrays))).numpy()

    def _named(self, scores: np.ndarray) -> tuple[list[str], np.ndarray]:
        best = scores.argmax(1)
        return [self.class_names[index] for index in best], scores[np.arange(len(best)), best]


def client_file(folder: Path, name: str) -> Path:
    """Where a client's own part of a model is kept."""
    return folder / CLIENTS / f"{safe_name(name)}.safetensors"


def save_client(path: Path, tree: Tree) -> None:
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, to_bytes({name: value.contiguous() for name, value in tree.items()}))


def load_client(path: Path) -> Tree:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise FedkeelError(f"{path} is damaged: delete it, and the same command makes it anew") from None
