"""A finished model, ready to predict, and what clients keep of their own beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fedkeel.core.atomic import safe_name, write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, State, from_settings, settings
from fedkeel.core.tree import Tree, digest, to_bytes
from fedkeel.data.dataset import Kind
from fedkeel.data.sources.base import Source
from fedkeel.models.encoders import Encoder, open_named
from fedkeel.runs.opening import open_new

MODEL, CLIENTS = "model.safetensors", "clients"
PREPARED_MEAN = "prepare.mean"


@dataclass(frozen=True)
class Model:
    """Everything prediction needs: the head, how features are made and prepared, the names of the classes."""

    method: AnyMethod
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
        write_atomically(Path(path), to_bytes(tensors, {"fedkeel": json.dumps(about)}))

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
    def kind(self) -> Kind:
        """What the model's rows are before they are encoded."""
        return cast(Kind, self.data["kind"])

    @property
    def dim(self) -> int:
        return int(self.data["dim"])

    @property
    def settings(self) -> Source:
        own = Source.named(self.data).model_fields
        return Source.of(**{key: value for key, value in self.data.items() if key in own})

    def encoder(self, rows: Sequence[Any] | np.ndarray) -> Encoder:
        encoder = open_named(self.data["encoder"], self.settings.pooling, self.kind, rows, "the input")
        if (encoder.weights, encoder.transform) != (self.data["weights"], self.data["transform"]):
            raise FedkeelError(
                f"the encoder {encoder.name} is not the one this model was trained with (weights or preparation): "
                "give that one, or train again"
            )
        return encoder

    def scores(self, rows: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Probabilities (rows, classes) of new rows: texts or images as the source had them, or encoded features."""
        encoded = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype.kind == "f"
        given = encoded or self.data["encoder"] == "none"
        x = open_new(rows, self, None if given else self.encoder(rows))
        with torch.inference_mode():
            found: np.ndarray = self.method.scores(self.method.predict(State(self.shared), self.mine, x.read())).numpy()
        return found

    def predict(self, rows: Sequence[Any] | np.ndarray) -> tuple[list[str], np.ndarray]:
        """(class name, score) of each new row."""
        return self._named(self.scores(rows))

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
