"""The append-only record of a run: one JSON object per line, and the only thing a report is built from.

Each line ends with a check over itself and the check of the line before it, so one that was changed, lost, doubled or
moved is noticed. What the record cannot know is whether its end was cut off: checkpoints and the summary do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedkeel.core.errors import FedkeelError
from fedkeel.runs.summary import load_summary

EVENTS, PERSONAL = "events.jsonl", "personal"
SITES = "sites"
"""Real ones, as the name of how rows are spread over clients."""
KEYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **dict.fromkeys(("start", "end", "geometry", "personal_test", "asked"), lambda event: None),
    **dict.fromkeys(("round", "drift", "validation", "balance"), lambda event: event["round"]),
    "exchange": lambda event: (event["round"], event["index"]),
    "lost": lambda event: (event["round"], event["index"], event["attempt"]),
    "personal": lambda event: event["client"],
}
"""What tells events of a kind apart: of those with the same key the last one counts, of starts the first. Once more is
asked for, an end that came before is none.

Other kinds, which observers may write as they like, are told apart by ``round`` and ``client`` where they have a round.
"""
CHECK = b',"check":"'
"""Between what a line tells and its check."""


class Log:
    """Appends events to a file; each line is on disk before the run goes on."""

    def __init__(self, path: Path) -> None:
        self.folder, self.checks = path.parent, list[str]()
        if path.exists():
            self.checks = [check for _, check in _lines(path)]
            data = path.read_bytes()  # a kill can leave half a line: it was never an event
            os.truncate(path, data.rfind(b"\n") + 1)
        self.begun = bool(self.checks)
        self._file = path.open("ab", buffering=0)  # nothing left to write when it is closed

    @property
    def head(self) -> str:
        """The check of the last line, which stands for the whole record up to it."""
        return self.checks[-1] if self.checks else ""

    def write(self, event: str, **fields: Any) -> None:
        told = json.dumps({"event": event, **fields}, separators=(",", ":")).encode()[:-1]
        check = _check(self.head, told)
        line = told + CHECK + check.encode() + b'"}\n'
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = self._file.name  # a failing write does not say where
            raise
        self.checks.append(check)

    def must_hold(self, head: str) -> None:
        """Make sure that nothing is missing of what was on record when something else was written."""
        if head and head not in self.checks:
            raise damaged(self.folder, "is damaged, it ends before the checkpoint in journal/")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


@dataclass(frozen=True)
class Record:
    """A run as its events tell it. A round that was redone after a crash counts once: the last line wins."""

    folder: Path
    start: dict[str, Any]
    """version, provenance, config, data (source, encoder, classes, train_rows, test_rows, dim, mean_energy) and
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
    asked: dict[str, Any] | None = None
    """of personal models made of a finished run, what was asked for last: clients, only (their names, if not all were
    wanted) and words (of the command)"""
    validation: list[dict[str, Any]] = field(default_factory=list)
    """if run.keep is "best": round and accuracy on the clients' validation rows"""
    balance: list[dict[str, Any]] = field(default_factory=list)
    """if run.drift is set, of methods on two towers: round (0 = before training), the global model's per_class, kl, tkl
    and agreement with zero-shot, angle, client_drift, and personal, personal_right and personal_rows of the personal
    models; ``reporting.balance_numbers`` makes numbers of them"""
    lost: list[dict[str, Any]] = field(default_factory=list)
    """exchanges in which nobody's update was accepted, before the one that counts; with the attempt, from 0"""
    observed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """what other observers wrote, by the name of the event"""

    @property
    def method(self) -> str:
        return str(self.start["config"]["method"]["name"])

    @property
    def partition(self) -> str:
        """Who holds which rows: the kind of split, or ``SITES``, to whom nobody has dealt theirs."""
        config = self.start["config"]
        return SITES if config["run"].get("engine") == "flower" else str(config["partition"]["kind"])

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
    def traffic(self) -> list[dict[str, Any]]:
        """All exchanges, those that were lost and tried again too."""
        return sorted([*self.lost, *self.exchanges], key=lambda event: (event["round"], event["index"]))

    @property
    def bytes_up(self) -> int:
        return sum(event["bytes_up"] for event in self.traffic)

    @property
    def bytes_down(self) -> int:
        return sum(event["bytes_down"] for event in self.traffic)

    @property
    def seconds(self) -> float:
        return float(sum(event["seconds"] for event in self.rounds))


def read(folder: str | Path) -> Record:
    """Read ``events.jsonl`` of a run folder; a half-written last line (a crash) is passed over."""
    folder = Path(folder)
    summary = load_summary(folder)
    lines = _lines(folder / EVENTS)
    if summary is not None and (not lines or summary["files"][EVENTS] != lines[-1][1]):
        raise damaged(folder, "is damaged, it is not the one that summary.json was made of")
    record = _record(folder, lines)
    if record is None:
        raise FedkeelError(f"{folder / EVENTS} has no start event: the run never began; run again")
    return record


def begun(folder: Path) -> Record | None:
    """The record of a run, whether or not it is finished; None if it never began."""
    return _record(folder, _lines(folder / EVENTS)) if (folder / EVENTS).exists() else None


def personalised(folder: str | Path, notice: Callable[[str], None] = lambda text: None) -> list[Record]:
    """The records in ``personal/`` of a run folder, sorted by name: one for each way its model was personalised.

    One that has not ended has ``end`` None; one that never began is passed over; a damaged one too, with a notice.
    """
    found = []
    for path in sorted(Path(folder).glob(f"{PERSONAL}/*/{EVENTS}")):
        try:
            found.append(begun(path.parent))
        except (FedkeelError, OSError) as error:
            notice(str(error))
    return [record for record in found if record is not None]


def damaged(folder: Path, what: str) -> FedkeelError:
    """A record that cannot be mended: what it tells has to be done again."""
    again = f"fedkeel run {folder / 'config.toml'} --out OTHER runs it again"
    if folder.absolute().parent.name == PERSONAL:
        run = folder.parent.parent
        again = f"delete {folder}, and fedkeel personalize {run} with the same --method makes it anew"
    return FedkeelError(f"{folder / EVENTS} {what}: {again}")


def _check(before: str, told: bytes) -> str:
    return blake2b(before.encode() + told, digest_size=8).hexdigest()


def _lines(path: Path) -> list[tuple[bytes, str]]:
    """What the lines of a record tell, each with its check, verified; a half-written last line is none."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):
        raise FedkeelError(f"{path.parent} is not a run folder: it holds no events.jsonl") from None
    found, head = list[tuple[bytes, str]](), ""
    for number, line in enumerate(lines, 1):
        told, mark, end = line.rpartition(CHECK)
        head = _check(head, told)
        if not mark or end != head.encode() + b'"}':
            older = number == 1 and not mark and line.startswith(b'{"event":"start"') and line.endswith(b"}")
            what = "is of an older fedkeel" if older else f"is damaged, line {number} is not as it was written"
            raise damaged(path.parent, what)
        found.append((told + b"}", head))
    return found


def _record(folder: Path, lines: list[tuple[bytes, str]]) -> Record | None:
    """None where there is no start."""
    whole: dict[str, dict[Any, dict[str, Any]]] = {}
    for told, _ in lines:
        event = json.loads(told)
        kind = event.get("event")
        if kind == "asked":
            whole.pop("end", None)
        same = whole.setdefault(kind, {})
        key = KEYS[kind](event) if kind in KEYS else _place(event, len(same))
        same[key] = same.get(key, event) if kind == "start" else event
    if "start" not in whole:
        return None
    one: dict[str, Any] = {
        kind: whole.pop(kind, {}).get(None) for kind in ("end", "geometry", "personal_test", "asked")
    }
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
