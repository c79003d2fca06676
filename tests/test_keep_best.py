"""run.keep = "best": the finished model is that of the round that is best on validation rows; test rows have no say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import api
from fedkeel.commands.run import carry_out
from fedkeel.core.errors import Stopped
from fedkeel.core.rng import generator
from fedkeel.data.loading import load
from fedkeel.runs.config import Experiment
from fedkeel.runs.events import Record, read
from fedkeel.runs.federation import SILENT, Watch, assemble
from fedkeel.runs.folder import stored
from fedkeel.runs.model import Model


def noisy(folder: Path, name: str, turned: int = 0) -> tuple[str, np.ndarray, np.ndarray]:
    """Rows that a head can only half tell apart, (source, x, y); the classes of the test rows may be turned around."""
    draw = generator(2, "noisy")
    y = draw.integers(0, 3, 150)
    x = (draw.normal(size=(150, 4)) + 1.2 * np.eye(4)[y]).astype(np.float32)
    np.savez(folder / f"{name}.npz", x=x[:120], y=y[:120], x_test=x[120:], y_test=(y[120:] + turned) % 3)
    return f"npz:{folder / name}.npz", x, y


def experiment(source: str) -> Experiment:
    """Large steps, so that accuracy goes up and down."""
    return api.experiment(
        data={"source": source, "features": "raw"},
        partition={"kind": "iid", "clients": 3, "validation": 0.3},
        method={"name": "fedavg", "rounds": 6, "optimizer": "sgd", "lr": 3.0, "batch": 4, "epochs": 1},
        run={"keep": "best", "threads": 1, "seed": 3},
    )


def carried_out(exp: Experiment, folder: Path, resume: bool = False, watch: Watch = SILENT) -> Record:
    """Without the page."""
    carry_out(exp, folder, resume, watch, lambda: load(exp.data), False)
    return read(folder)


def ended(record: Record) -> dict[str, Any]:
    return {key: (record.end or {})[key] for key in ("kept_round", "digest", "accuracy")}


def test_the_kept_round_is_the_best_on_validation_rows(tmp_path: Path) -> None:
    """Recomputed with numpy from the saved model, and equal to a run that stops there."""
    source, x, y = noisy(tmp_path, "a")
    exp = experiment(source)
    record = carried_out(exp, tmp_path / "a")
    reached = [event["accuracy"] for event in record.validation]
    best = 1 + int(np.argmax(reached))
    assert 1 < best < 6, "neither the first nor the last"
    assert ended(record)["kept_round"] == best
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["kept_round"] == best
    model = Model.load(tmp_path / "a" / "model.safetensors")
    held = assemble(exp, load(exp.data)).manifest.validation.rows
    hits = (x[held] @ model.shared["head.weight"].numpy().T).argmax(1) == y[held]
    assert hits.mean() == pytest.approx(max(reached))
    stopped = exp.with_values({"run.keep": "last", "method.rounds": best})
    assert (carried_out(stopped, tmp_path / "last").end or {})["digest"] == ended(record)["digest"]
    assert ended(record)["accuracy"] == pytest.approx(record.accuracy_curve[best - 1]), (
        "and that is what it is tested as"
    )


def test_test_labels_have_no_say(tmp_path: Path) -> None:
    one, other = (
        carried_out(experiment(noisy(tmp_path, name, turned)[0]), tmp_path / name)
        for name, turned in (("a", 0), ("b", 1))
    )
    assert ended(one)["kept_round"] == ended(other)["kept_round"]
    assert ended(one)["digest"] == ended(other)["digest"]
    assert one.accuracy_curve != other.accuracy_curve


def test_of_equals_the_first_is_kept(tmp_path: Path) -> None:
    """Rows so far apart that every round is right about all of them."""
    y = np.arange(90) % 3
    np.savez(tmp_path / "easy.npz", x=np.eye(3, dtype=np.float32)[y], y=y)
    record = carried_out(experiment(f"npz:{tmp_path / 'easy.npz'}"), tmp_path / "easy")
    assert [event["accuracy"] for event in record.validation] == [1.0] * 6
    assert ended(record)["kept_round"] == 1


@pytest.mark.parametrize("last", [1, 3, 5])
def test_an_interrupted_run_keeps_the_same(tmp_path: Path, last: int) -> None:
    exp = experiment(noisy(tmp_path, "a")[0])
    whole = carried_out(exp, tmp_path / "whole")

    def stop(round: int, rounds: int, accuracy: float) -> None:
        if round == last:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        carried_out(exp, tmp_path / "run", watch=Watch(round=stop))
    record = carried_out(stored(tmp_path / "run"), tmp_path / "run", resume=True)
    assert record.validation == whole.validation
    assert ended(record) == ended(whole)
