"""``summary.json``: a finished run in a few numbers, from its events, and which files it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.core.errors import FedkeelError
from fedkeel.core.sealed import BLANK, KEY, Unsound, seal, seal_of
from fedkeel.metrics.convergence import acc95_round

if TYPE_CHECKING:
    from fedkeel.runs.events import Record

SUMMARY = "summary.json"


def load_summary(folder: Path) -> dict[str, Any] | None:
    """What ``summary.json`` of a run holds, verified; None while there is none."""
    try:
        data = (folder / SUMMARY).read_bytes()
        seal_of(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Unsound as error:
        again = f"fedkeel run --out {folder} --resume writes it again"
        raise FedkeelError(f"{folder / SUMMARY} is damaged ({error}): {again}") from None
    summary: dict[str, Any] = json.loads(data)
    return summary


def summarise(record: Record, files: dict[str, str]) -> bytes:
    """``summary.json`` of a finished run, from its events; ``files`` is what tells others of the run apart."""
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
        **({"calibration": _calibration(end["calibration"])} if "calibration" in end else {}),
        "accuracy_curve": record.accuracy_curve,
        "acc95_round": acc95_round(record.accuracy_curve),
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "seconds": record.seconds,
        "seconds_per_round": record.seconds / rounds,
        "refused": sum(len(exchange["refused"]) for exchange in record.traffic),
        "lost": len(record.lost),
        "digest": end["digest"],
        "manifest": record.start["data"]["manifest"],
        "provenance": record.start.get("provenance"),
        "version": record.start["version"],
        "experiment": record.start["experiment"],
        "files": files,
        KEY: BLANK,
    }
    return seal((json.dumps(summary, indent=2) + "\n").encode())


def _calibration(told: dict[str, Any]) -> dict[str, Any]:
    """Without the bins."""
    numbers = ("confidence", "ece")
    return {key: {name: value[name] for name in numbers} if key in ("before", "after") else value
            for key, value in told.items()}  # fmt: skip
