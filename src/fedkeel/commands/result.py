"""A finished run: its curves and tables, and its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.runs.events import Record, read
from fedkeel.runs.model import Model
from fedkeel.runs.summary import SUMMARY, load_summary


@dataclass(frozen=True)
class Result:
    """A run folder. ``summary`` is what ``summary.json`` holds."""

    folder: Path
    summary: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        summary = load_summary(Path(folder))
        if summary is None:
            raise FedkeelError(f"{folder} holds no finished run: there is no {SUMMARY}")
        return cls(Path(folder), summary)

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
        return Model.of(self.folder)

    def table(self, width: int | None = None) -> str:
        """The summary as text, in whole lines or so many columns wide: accuracy, Acc@95, bytes and seconds."""
        from fedkeel.reporting.tables import as_text

        return as_text([self.record], width)

    def predict(self, rows: Sequence[Any] | np.ndarray) -> tuple[list[str], np.ndarray]:
        """(class name, score) of each new row: see ``Model.predict``."""
        return self.model.predict(rows)

    def save(self, path: str | Path) -> None:
        """Write the model to a file of its own."""
        self.model.save(path)

    def __repr__(self) -> str:
        about = self.summary
        return f"Result({about['method']} on {about['partition']}, accuracy {about['accuracy']:.4f}, {self.folder})"
