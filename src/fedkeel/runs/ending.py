"""How a run ends, wherever its clients are: the finished model, the last event, the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import State
from fedkeel.runs.checkpoint import Checkpoint
from fedkeel.runs.events import EVENTS, Log, read
from fedkeel.runs.model import MODEL, Model
from fedkeel.runs.observers.base import Observer, Running
from fedkeel.runs.summary import SUMMARY, summarise


def end(run: Running, state: State, made: Callable[[State], Model], observers: Sequence[Observer]) -> Model:
    """The finished model, ``made`` of the last state or of the best one, and the last event."""
    kept = best_of(run) if run.experiment.run.keep == "best" else None
    if kept is not None:
        state = kept.state
    found: dict[str, Any] = {} if kept is None else {"kept_round": kept.round}
    for observer in observers:
        found |= observer.ended(state)
    model = replace(made(state), temperature=found.get("calibration", {}).get("temperature"))
    seal = model.save(run.log.folder / MODEL)
    run.log.write("end", digest=model.digest, model=seal, **found)
    return model


def best_of(run: Running) -> Checkpoint | None:
    """The state that was kept as the best one, which is the one on record; None if no round was judged."""
    kept, judged = run.checkpoints.best(), read(run.log.folder).validation
    if not judged:
        return None
    best = max(judged, key=lambda event: float(event["accuracy"]))
    if kept is None or kept.round != best["round"]:
        raise FedkeelError(
            f"{run.checkpoints.kept} is not the state after round {best['round']}, which is the best one on record: "
            f"fedkeel run {run.log.folder / 'config.toml'} --out OTHER runs it again"
        )
    return kept


def sum_up(folder: Path, log: Log) -> None:
    """``summary.json``, of a run that has ended."""
    record = read(folder)
    files = {EVENTS: log.head, MODEL: str((record.end or {})["model"])}
    write_atomically(folder / SUMMARY, summarise(record, files))
