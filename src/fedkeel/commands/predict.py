"""``fedkeel predict``: a finished model on new rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fedkeel.core.errors import FedkeelError
from fedkeel.data.new_rows import load_rows
from fedkeel.personal.models import personal_model
from fedkeel.runs.model import Model


def predict(run: str | Path, *, input: str | Path, client: str | None = None, personal: str | None = None) -> str:
    """Class and score of new rows by a finished run's model, as CSV text with the columns row, class and score.

    With ``client`` by that client's own model; ``personal`` says which, where the run was personalised in several ways.
    """
    if personal is not None and client is None:
        raise FedkeelError(f"--personal {personal}: whose model? Add --client NAME, or leave --personal out")
    model = Model.of(Path(run)) if client is None else personal_model(Path(run), client, personal)
    if client is None and not model.method.common:
        raise FedkeelError(f"{model.method.name} has no global model: say whose model to use with --client NAME")
    rows = load_rows(Path(input), model.kind, model.settings)
    names, scores = model.predict(rows.rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "class", "score"])
    writer.writerows((row, name, f"{score:.6f}") for row, name, score in zip(rows.names, names, scores, strict=True))
    return text.getvalue()
