"""``summary.json``: a finished run in a few numbers, from its events."""

from __future__ import annotations

import json
from typing import Any

from fedkeel.metrics.convergence import acc95_round
from fedkeel.runs.events import Record

SUMMARY = "summary.json"


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
        **({"calibration": _calibration(end["calibration"])} if "calibration" in end else {}),
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


def _calibration(told: dict[str, Any]) -> dict[str, Any]:
    """Without the bins."""
    numbers = ("confidence", "ece")
    return {key: {name: value[name] for name in numbers} if key in ("before", "after") else value
            for key, value in told.items()}  # fmt: skip
