"""A finished model, ready to predict, and what clients keep of their own beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from fedkeel.core.atomic import safe_name
from fedkeel.core.errors import FedkeelError, UnknownName
from fedkeel.core.method import AnyMethod, State, from_settings, settings
from fedkeel.core.sealed import KEY, Unsound, read_tensors, write_tensors
from fedkeel.core.tree import Tree, digest
from fedkeel.data.dataset import Kind
from fedkeel.data.sources.base import Source
from fedkeel.models.encoders import Encoder, open_named
from fedkeel.runs.events import EVENTS, PERSONAL
from fedkeel.runs.opening import Encode, at_once, open_new
from fedkeel.runs.summary import load_summary

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
    temperature: float | None = None
    """By which logits are divided before they become scores; None where no validation rows were there to fit it on."""
    seal: str = ""
    """Of the file that it was read from."""

    @property
    def digest(self) -> str:
        """sha256 over the final parameters."""
        return digest(self.shared)

    def save(self, path: str | Path) -> str:
        """Write the model to a file; gives the file's seal."""
        mean = {} if self.mean is None else {PREPARED_MEAN: self.mean}
        about: dict[str, Any] = {"method": settings(self.method), "data": self.data, "class_names": self.class_names}
        about["temperature"] = self.temperature
        return write_tensors(Path(path), {**self.shared, **mean}, about)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        try:
            tensors, about = read_tensors(Path(path))
            method, data, names = from_settings(about["method"]), dict(about["data"]), tuple(about["class_names"])
            temperature = None if about["temperature"] is None else float(about["temperature"])
            if not (temperature is None or 0 < temperature < inf) or not all(isinstance(name, str) for name in names):
                raise Unsound("it makes no sense")
        except FileNotFoundError:
            raise FedkeelError(f"there is no {path}, the run is not finished: {_makes(Path(path).parent)}") from None
        except UnknownName:  # of a method that is not installed here
            raise
        except (Unsound, KeyError, TypeError, ValueError, AttributeError):  # a seal tells damage, not who wrote it
            raise FedkeelError(f"{path} is damaged or no fedkeel model: {_makes(Path(path).parent)}") from None
        mean = tensors.pop(PREPARED_MEAN, None)
        return cls(method, tensors, mean, data, names, temperature=temperature, seal=about[KEY])

    @classmethod
    def of(cls, run: Path) -> Model:
        """The model of a run in its folder."""
        model, summary = cls.load(run / MODEL), load_summary(run)
        if summary is not None and summary["files"][MODEL] != model.seal:
            raise FedkeelError(f"{run / MODEL} is not the one that {run} ended with: {_makes(run)}")
        return model

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

    def scores(self, rows: Sequence[Any] | np.ndarray, encode: Encode = at_once) -> np.ndarray:
        """Probabilities (rows, classes) of new rows: texts or images as the source had them, or encoded features."""
        encoded = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype.kind == "f"
        given = encoded or self.data["encoder"] == "none"
        x = open_new(rows, self, None if given else self.encoder(rows), encode)
        with torch.inference_mode():
            logits = self.method.predict(State(self.shared), self.mine, x.read())
            found: np.ndarray = self.method.scores(logits / (self.temperature or 1.0)).numpy()
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
    write_tensors(path, tree, {"client": path.stem})


def load_client(path: Path) -> Tree:
    try:
        tree, about = read_tensors(path)
    except Unsound:
        raise FedkeelError(f"{path} is damaged: delete it, and {makes_clients(path.parent.parent)}") from None
    if about.get("client") != path.stem:
        raise FedkeelError(f"{path} is of another client: delete it, and {makes_clients(path.parent.parent)}")
    return tree


def makes_clients(folder: Path) -> str:
    """What makes the clients' own models in a folder."""
    if folder.absolute().parent.name == PERSONAL:
        return f"fedkeel personalize {folder.parent.parent} with the same --method makes it anew"
    return _makes(folder)


def _makes(run: Path) -> str:
    return f"fedkeel run --out {run} --resume makes it" if (run / EVENTS).exists() else "run again to make it"
