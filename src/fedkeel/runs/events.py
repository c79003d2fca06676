"""The append-only record of a run: one JSON object per line, and the only thing a report is built from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkeel.core.errors import FedkeelError

EVENTS, PERSONAL = "events.jsonl", "personal"
KEYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **dict.fromkeys(("start", "end", "geometry", "personal_test"), lambda event: None),
    **dict.fromkeys(("round", "drift", "validation", "balance"), lambda event: event["round"]),
    "exchange": lambda event: (event["round"], event["index"]),
    "personal": lambda event: event["client"],
}
"""What tells events of a kind apart: of those with the same key the last one counts, of starts the first.

Other kinds, which observers may write as they like, are told apart by ``round`` and ``client`` where they have a round.
"""


class Log:
    """Appends events to a file; each line is on disk before the run goes on."""

    def __init__(self, path: Path) -> None:
        if path.exists():  # a kill can leave half a line: it was never an event
            whole = path.read_bytes().rpartition(b"\n")
            os.truncate(path, len(whole[0]) + len(whole[1]))
        self.folder = path.parent
        self.begun = path.exists() and path.stat().st_size > 0
        self._file = path.open("ab", buffering=0)  # nothing left to write when it is closed

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = self._file.name  # a failing write does not say where
            raise

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


@dataclass(frozen=True)
class Record:
    """A run as its events tell it. A round that was redone after a crash counts once: the last line wins."""

    folder: Path
    start: dict[str, Any]
    """config, data (source, encoder, classes, train_rows, test_rows, dim, mean_energy) and
    clients (count, empty, names, rows, label_counts)"""
    exchanges: list[dict[str, Any]]
    """round, phase, clients, refused [{client, reason}], bytes_up, bytes_down, client_seconds, server_seconds"""
    rounds: list[dict[str, Any]]
    """round, accuracy, seconds"""
    end: dict[str, Any] | None
    """accuracy, per_class, per_client, per_client_basis, digest, seconds; calibration (temperature, validation_rows,
    and before and after it accuracy, confidence, ece and bins on the test rows); and of methods with personal
    models personal, personal_mean; of a folder of personal models the digest alone; None while not finished"""
    geometry: dict[str, Any] | None = None
    """of the prepared training features: alignment, intra, inter, ratio, intra_distance, inter_distance"""
    drift: list[dict[str, Any]] = field(default_factory=list)
    """if run.drift is set: round (0 = before training), phase and what ``metrics.drift.Drift`` holds"""
    personal_test: dict[str, Any] | None = None
    """of personal models: what they are tested on, basis, names and rows of each client's test set, and before, the
    accuracy of the global model on each (None where there is no such model)"""
    personal: list[dict[str, Any]] = field(default_factory=list)
    """of each personal model: client, name, rows (of training), on (accuracy on each client's test set), distortion,
    temperature, seconds and flops by phase; ``reporting.personal_numbers`` makes numbers of them"""
    validation: list[dict[str, Any]] = field(default_factory=list)
    """if run.keep is "best": round and accuracy on the clients' validation rows"""
    balance: list[dict[str, Any]] = field(default_factory=list)
    """if run.drift is set, of methods on two towers: round (0 = before training), the global model's per_class, kl, tkl
    and agreement with zero-shot, angle, and personal, personal_right and personal_rows of the personal models;
    ``reporting.balance_numbers`` makes numbers of them"""
    observed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """what other observers wrote, by the name of the event"""

    @property
    def method(self) -> str:
        return str(self.start["config"]["method"]["name"])

    @property
    def partition(self) -> str:
        return str(self.start["config"]["partition"]["kind"])

    @property
    def seed(self) -> int:
        return int(self.start["config"]["run"]["seed"])

    @property
    def post_hoc(self) -> bool:
        """Whether it is of personal models that were made of a finished run, in ``RUN/personal/``."""
        return self.folder.absolute().parent.name == PERSONAL and self.personal_test is not None

    @property
    def accuracy_curve(self) -> list[float]:
        return [event["accuracy"] for event in self.rounds]

    @property
    def bytes_up(self) -> int:
        return sum(event["bytes_up"] for event in self.exchanges)

    @property
    def bytes_down(self) -> int:
        return sum(event["bytes_down"] for event in self.exchanges)

    @property
    def seconds(self) -> float:
        return float(sum(event["seconds"] for event in self.rounds))


def read(folder: str | Path) -> Record:
    """Read ``events.jsonl`` of a run folder; a half-written last line (a crash) is passed over."""
    record = _read(Path(folder))
    if record is None:
        raise FedkeelError(f"{Path(folder) / EVENTS} has no start event: the run never began; run again")
    return record


def personalised(folder: str | Path) -> list[Record]:
    """The records in ``personal/`` of a run folder, sorted by name: one for each way its model was personalised.

    One that has not ended has ``end`` None; one that never began is passed over.
    """
    found = (_read(path.parent) for path in sorted(Path(folder).glob(f"{PERSONAL}/*/{EVENTS}")))
    return [record for record in found if record is not None]


def _read(folder: Path) -> Record | None:
    """None where there is no start."""
    path = folder / EVENTS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        raise FedkeelError(f"{folder} is not a run folder: it holds no events.jsonl") from None
    whole: dict[str, dict[Any, dict[str, Any]]] = {}
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise FedkeelError(f"{path} line {number} is not JSON, the file is damaged: run again elsewhere") from None
        kind = event.get("event")
        same = whole.setdefault(kind, {})
        key = KEYS[kind](event) if kind in KEYS else _place(event, len(same))
        same[key] = same.get(key, event) if kind == "start" else event
    if "start" not in whole:
        return None
    one: dict[str, Any] = {kind: whole.pop(kind, {}).get(None) for kind in ("end", "geometry", "personal_test")}
    start = whole.pop("start")[None]
    several: dict[str, Any] = {
        kind: _in_order(whole.pop(kind, {})) for kind in KEYS if kind not in one and kind != "start"
    }
    exchanges, rounds = several.pop("exchange"), several.pop("round")
    observed = {kind: list(events.values()) for kind, events in whole.items()}
    return Record(folder, start, exchanges, rounds, **one, **several, observed=observed)


def _place(event: Mapping[str, Any], number: int) -> Any:
    return (event["round"], event.get("client")) if "round" in event else number


def _in_order(events: Mapping[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    return [events[key] for key in sorted(events)]
