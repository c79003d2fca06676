"""A finished run: its curves and tables, and its model, ready to predict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from fedkeel.atomic import safe_name, write_atomically
from fedkeel.config import Data
from fedkeel.data.dataset import Kind
from fedkeel.errors import FedkeelError
from fedkeel.events import Record, read
from fedkeel.method import Method, State, from_settings, settings
from fedkeel.methods.dual_tuned import DualTuned
from fedkeel.methods.tuned import tokens_of
from fedkeel.metrics.convergence import acc95_round
from fedkeel.models.backbone import Backbone
from fedkeel.models.dual import items, open_dual
from fedkeel.models.encoders import Encoder, open_named
from fedkeel.models.prepare import Preparation, as_rows, prepare, prepared
from fedkeel.tree import Tree, digest

MODEL, SUMMARY, CLIENTS = "model.safetensors", "summary.json", "clients"
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


@dataclass(frozen=True)
class Result:
    """A run folder. ``summary`` is what ``summary.json`` holds."""

    folder: Path
    summary: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        path = Path(folder) / SUMMARY
        try:
            return cls(Path(folder), json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise FedkeelError(f"{folder} holds no finished run: there is no {SUMMARY}") from None
        except ValueError:
            raise FedkeelError(f"{path} is damaged: fedkeel run --out {folder} --resume writes it again") from None

    @property
    def accuracy(self) -> float:
        return float(self.summary["accuracy"])

    @property
    def digest(self) -> str:
        return str(self.summary["digest"])

    @property
    def curve(self) -> list[float]:
        """Test accuracy after each round."""
        return list(self.summary["accuracy_curve"])

    @cached_property
    def record(self) -> Record:
        """Everything the run's events tell: exchanges, bytes, times, per-class and per-client accuracy."""
        return read(self.folder)

    @cached_property
    def model(self) -> Model:
        return Model.load(self.folder / MODEL)

    def table(self) -> str:
        """The summary as text: accuracy, Acc@95, bytes and seconds."""
        from fedkeel.reporting.tables import as_text

        return as_text([self.record])

    def predict(self, rows: Sequence[Any] | np.ndarray) -> tuple[list[str], np.ndarray]:
        """(class name, score) of each new row: see ``Model.predict``."""
        return self.model.predict(rows)

    def save(self, path: str | Path) -> None:
        """Write the model to a file of its own."""
        self.model.save(path)

    def __repr__(self) -> str:
        about = self.summary
        return f"Result({about['method']} on {about['partition']}, accuracy {about['accuracy']:.4f}, {self.folder})"


def summarise(record: Record) -> str:
    """``summary.json`` of a finished run, from its events."""
    end = record.end or {}
    rounds = len(record.rounds)
    summary = {
        "method": record.method,
        "partition": record.partition,
        "seed": record.seed,
        "clients": record.start["clients"]["count"],
        "rounds": rounds,
        "accuracy": end["accuracy"],
        **{str(key): end[key] for key in ("personal_mean", "kept_round") if key in end},
        "accuracy_curve": record.accuracy_curve,
        "acc95_round": acc95_round(record.accuracy_curve),
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "seconds": record.seconds,
        "seconds_per_round": record.seconds / rounds,
        "refused": sum(len(exchange["refused"]) for exchange in record.exchanges),
        "digest": end["digest"],
        "manifest": record.start["data"]["manifest"],
        "version": record.start["version"],
    }
    return json.dumps(summary, indent=2) + "\n"
