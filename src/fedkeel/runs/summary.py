"""``summary.json``: a finished run in a few numbers, from its events."""

from __future__ import annotations

import json

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
    }
    return json.dumps(summary, indent=2) + "\n"
