"""``fedkeel predict``: a finished model on new rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.new_rows import Rows, load_rows, source_of
from fedkeel.data.sources.base import Source
from fedkeel.metrics.calibration import judged
from fedkeel.models.cache import encoded_by
from fedkeel.models.encoders import Encoder
from fedkeel.personal.models import personal_model
from fedkeel.runs.config import assignment, build, nested
from fedkeel.runs.model import Model

KEPT = ("source", "features", "limit", "holdout", "class_names")
"""Settings of the data that are the model's, or say nothing about new rows."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets take for a formula where a cell begins with it."""
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?").fullmatch
MOST_NAMED = 5


@dataclass(frozen=True)
class Predictions:
    """What a model says of new rows."""

    names: Sequence[str]
    """What each row is called: its number from 0, or the path of an image."""
    class_names: Sequence[str]
    scores: np.ndarray
    """(rows, classes): the probability of each class; docs/predict.md says how far they can be trusted."""
    temperature: float | None
    """What the scores were calibrated with; None where they are not."""
    labels: Sequence[str | None] | None = None
    """The classes that the input gives its rows, if it does."""

    @property
    def classes(self) -> list[str]:
        return [self.class_names[best] for best in self.scores.argmax(1)]

    @cached_property
    def metrics(self) -> dict[str, Any] | None:
        """Accuracy and the like on the rows whose class the model knows; None where there are none."""
        number = {name: at for at, name in enumerate(self.class_names)}
        known = [(row, number[name]) for row, name in enumerate(self.labels or ()) if name in number]
        if not known:
            return None
        rows, labels = np.array(known).T
        return judged(self.scores[rows], labels)

    @property
    def unknown(self) -> dict[str, int]:
        """Classes of the input that the model does not know, with how many rows each has."""
        names = [name for name in self.labels or () if name is not None and name not in self.class_names]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    def csv(self, probabilities: bool = False) -> str:
        """A line for each row: row, class and score, and with ``probabilities`` the score of every class.

        A cell that a spreadsheet would take for a formula is quoted and begins with an apostrophe.
        """
        head = ["row", "class", "score", *([f"p({name})" for name in self.class_names] if probabilities else [])]
        lines = [head]
        for name, chosen, scores in zip(self.names, self.classes, self.scores, strict=True):
            shown = [scores.max(), *(scores if probabilities else ())]
            lines.append([name, chosen, *(f"{score:.6f}" for score in shown)])
        return "".join(",".join(map(cell, line)) + "\n" for line in lines)


def cell(text: str) -> str:
    """A cell of a CSV file that no spreadsheet runs."""
    formula = text.startswith(FORMULAS) and not NUMBER(text)
    if not formula and not re.search(r'[,"\r\n]', text):
        return text
    return '"' + ("'" if formula else "") + text.replace('"', '""') + '"'


def predict(
    run: str | Path,
    *,
    input: str | Path,
    client: str | None = None,
    personal: str | None = None,
    set: Iterable[str] = (),
    probabilities: bool = False,
    watch: Watch = SILENT,
) -> str:
    """Class and score of new rows by a finished run's model, as CSV text with the columns row, class and score.

    With ``client`` by that client's own model; ``personal`` says which, where the run was personalised in several ways.
    ``set`` takes settings of how rows are read, such as ``data.text_column=body``; ``probabilities`` adds a column for
    each class.
    """
    return predictions(run, input=input, client=client, personal=personal, set=set, watch=watch).csv(probabilities)


def predictions(
    run: str | Path,
    *,
    input: str | Path,
    client: str | None = None,
    personal: str | None = None,
    set: Iterable[str] = (),
    watch: Watch = SILENT,
) -> Predictions:
    """The same as numbers, with ``metrics`` where the input has labels."""
    if personal is not None and client is None:
        raise FedkeelError(f"--personal {personal}: whose model? Add --client NAME, or leave --personal out")
    changes, path = changes_of(set), Path(input)
    model = Model.of(Path(run)) if client is None else personal_model(Path(run), client, personal)
    if client is None and not model.method.common:
        raise FedkeelError(f"{model.method.name} has no global model: say whose model to use with --client NAME")
    data = reading(model, path, changes)
    rows = load_rows(path, model.kind, data)
    if "label_column" in changes and rows.labels is None:
        raise FedkeelError(f"--set data.label_column={changes['label_column']}: {path} has no such column")
    scores = encoded_once(replace(model, data={**model.data, **data.model_dump(include={"encoder", "pooling"})}),
                          rows, path, data, watch)  # fmt: skip
    labels = rows.labels
    if source_of(path, model.kind) == "images" and not {*model.class_names} & {*(labels or ())}:
        labels = None  # folders that have nothing to do with classes
    if model.temperature is None:
        watch.notice(uncalibrated(client))
    return Predictions(rows.names, model.class_names, scores, model.temperature, labels)


def changes_of(texts: Iterable[str]) -> dict[str, Any]:
    """The settings of the data that ``data.key=value`` texts give."""
    said = nested(dict(assignment(text) for text in texts))
    for section in said:
        if section != "data":
            raise FedkeelError(
                f"--set {section}: a finished model is used as it was trained; set data.* only, e.g. "
                "data.text_column=body"
            )
    changes = said.get("data", {})
    if not isinstance(changes, dict):
        raise FedkeelError("--set data: set one of its keys, e.g. data.text_column=body")
    for key in KEPT:
        if key in changes:
            raise FedkeelError(
                f"--set data.{key}: the model keeps its own, and --input names the rows; set how these are read, "
                "e.g. data.text_column=body, or data.encoder, data.cache"
            )
    return changes


def reading(model: Model, path: Path, changes: dict[str, Any]) -> Source:
    """How new rows are read: as those of the run, as far as they are alike, and as the user says."""
    source = f"{source_of(path, model.kind)}:{path}"
    fields = Source.named({"source": source}).model_fields
    same = {key: value for key, value in model.settings.said().items() if key in fields and key not in KEPT}
    return build({"data": {**same, **changes, "source": source}}, where="--set").data


def encoded_once(model: Model, rows: Rows, path: Path, data: Source, watch: Watch) -> np.ndarray:
    """The scores of the rows, whose features are kept in the cache for the next model with this encoder."""

    def encode(encoder: Encoder, given: Any) -> np.ndarray:
        told: dict[str, Any] = {"progress": watch.encoded, "notice": watch.notice}
        return encoded_by(encoder, data, rows.dataset(str(path), model.kind), **told).train

    return model.scores(rows.rows, encode)


def uncalibrated(client: str | None) -> str:
    whose = "the run" if client is None else f"client {client}"
    return (
        f"scores are not calibrated, {whose} held no validation rows back: set partition.validation=0.1 and run again"
    )


def told(found: Predictions) -> list[str]:
    """What there is to say where the input has labels."""
    lines = []
    if unknown := found.unknown:
        named = ", ".join(list(unknown)[:MOST_NAMED]) + (", ..." if len(unknown) > MOST_NAMED else "")
        lines.append(f"{_rows(sum(unknown.values()))} of classes that the model does not know, not counted: {named}")
    if (metrics := found.metrics) is not None:
        lines.append(
            f"{_rows(metrics['rows'])} with a label: accuracy {metrics['accuracy']:.2%}, mean over classes "
            f"{metrics['macro']:.2%}, log loss {metrics['log_loss']:.3f}, mean confidence {metrics['confidence']:.2%}, "
            f"expected calibration error {metrics['ece']:.2%}"
        )
    return lines


def _rows(count: int) -> str:
    return f"{count:,} row" + ("" if count == 1 else "s")


def write(text: str, out: Path) -> None:
    """The file is whole or as it was before; what is no file, such as /dev/stdout, is written to."""
    if out.exists() and not out.is_file():
        out.write_text(text, encoding="utf-8")
    else:
        write_atomically(out.resolve(), text.encode())
