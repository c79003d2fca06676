"""Runs as a recipe made them, and every number that a paper's claim may be set against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkeel.data.sources.base import Source
from fedkeel.reporting.balance_numbers import GROUPS, Balance
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.tables import summary_row
from fedkeel.runs.events import Record, personalised
from fedkeel.runs.variant import Variant

KB, MB, GB = 2**10, 2**20, 2**30


def meets(value: Any, wanted: Any) -> bool:
    """A tuple is met by any of its values."""
    return bool(value in wanted if isinstance(wanted, tuple) else value == wanted)


@dataclass(frozen=True)
class Ran:
    """A run of a recipe: the federation, the method and the partition it was made for, as the recipe calls them.

    Or the personal models of a run: then the method is what they were made with, and the record is theirs.
    """

    column: str
    method: str
    partition: str
    record: Record
    twin: Record | None
    dataset: str | None = None
    """what the recipe calls its dataset, wherever that lies; by default what its source says"""

    def has(self, conditions: Mapping[str, Any]) -> bool:
        return all(meets(self.value(key), wanted) for key, wanted in conditions.items())

    def value(self, key: str) -> Any:
        """Of a dotted key of its configuration, or its dataset; ``pretrained``: has its encoder its trained weights?"""
        if key == "dataset":
            return self.dataset or Source.of(source=self.value("data.source")).dataset
        if key == "pretrained":
            return not str(self.value("data.encoder")).startswith("random:")
        section, _, name = key.partition(".")
        return self.record.start["config"][section].get(name)

    @property
    def row(self) -> dict[str, Any]:
        return summary_row(self.record, self.twin)

    def personalised(self, strategies: Sequence[str], called: Sequence[str] = ()) -> list[Ran]:
        """The run's model personalised with each of the strategies, as far as that was done.

        ``called`` is what the recipe calls them, where settings were laid over its own.
        """
        done = {record.folder.name: record for record in personalised(self.record.folder)}
        variants = [(Variant.parse(text).label, str(Variant.parse(name)))
                    for text, name in zip(strategies, called or strategies, strict=True)]  # fmt: skip
        found = [(name, done[label]) for label, name in variants if label in done]
        return [replace(self, method=name, record=record, twin=None) for name, record in found]


@dataclass(frozen=True)
class Metric:
    words: str
    digits: int
    of: Callable[[Ran], float | None]


def _scaled(key: str, factor: float) -> Callable[[Ran], float | None]:
    def value(ran: Ran) -> float | None:
        number = ran.row[key]
        return None if number is None else factor * number

    return value


def _uplink(ran: Ran, *, until: bool, each: bool, unit: int) -> float | None:
    """Bytes up in a mean round or in all rounds until Acc@95, of all clients or (``each``) of one of them."""
    last = ran.row["acc95"] if until else len(ran.record.rounds)
    sent = [e for e in ran.record.traffic if 1 <= e["round"] <= (last or 0)]
    if not sent or last is None:
        return None
    total = sum(event["bytes_up"] / (event["clients"] if each else 1) for event in sent if event["clients"])
    return float(total / (1 if until else last) / unit)


def _sent(until: bool, each: bool, unit: int) -> Callable[[Ran], float | None]:
    return lambda ran: _uplink(ran, until=until, each=each, unit=unit)


def _geometry(name: str, over: str | None = None) -> Callable[[Ran], float | None]:
    """One of the numbers of the features' geometry, or one over another."""

    def value(ran: Ran) -> float | None:
        found = ran.record.geometry or {}
        number, divisor = found.get(name), found.get(over or "", 1.0)
        return number / divisor if number is not None and divisor else None

    return value


def _drift(value: Callable[[Mapping[str, Any]], float | None]) -> Callable[[Ran], float | None]:
    """Mean over the rounds of a number of each event of drift."""

    def mean(ran: Ran) -> float | None:
        found = [number for event in ran.record.drift if (number := value(event)) is not None]
        return statistics.fmean(found) if found else None

    return mean


def _deviation(event: Mapping[str, Any]) -> float | None:
    """The deviation of the averaged gradient over the length of the common one."""
    return float(event["variance"] ** 0.5 / event["gradient"]) if event["gradient"] else None


def _personal(name: str) -> Callable[[Ran], float | None]:
    """One of the numbers of ``Personal``, in percent."""

    def value(ran: Ran) -> float | None:
        models = _models(ran.record)
        number = None if models is None else getattr(models, name)
        return None if number is None else 100 * float(number)

    return value


def _models(record: Record) -> Personal | None:
    """The personal models; of a run without any the global model in the place of each."""
    if record.personal:
        return Personal.of(record)
    if record.end is None or record.post_hoc:
        return None
    everywhere = record.end["per_client"]
    return Personal.of_matrix([everywhere] * len(everywhere))


def _balance(model: str, what: str) -> Callable[[Ran], float | None]:
    """Of the global model (gm) or the personal ones (pm) one of the numbers of ``Balance``, in percent."""

    def value(ran: Ran) -> float | None:
        scores = getattr(Balance.of(ran.record), model)
        number = None if scores is None else getattr(scores, what)
        return None if number is None else 100 * float(number)

    return value


def _moment(name: str, over: Callable[[Sequence[float]], float]) -> Callable[[Ran], float | None]:
    """Of how a dual encoder leaves zero-shot: over the rounds one of the numbers of ``Moment``."""

    def value(ran: Ran) -> float | None:
        found = [number for moment in Balance.of(ran.record).moments if (number := getattr(moment, name)) is not None]
        return float(over(found)) if found else None

    return value


def _last(values: Sequence[float]) -> float:
    return values[-1]


METRICS: dict[str, Metric] = {
    "retained": Metric("R(final), %", 1, lambda ran: ran.row["retained"]),
    "accuracy": Metric("Accuracy, %", 2, _scaled("accuracy", 100)),
    "decline": Metric("Decline, %", 2, lambda ran: None),  # needs a second run: see _value
    "acc95": Metric("Acc@95, rounds", 1, lambda ran: ran.row["acc95"]),
    "seconds_until": Metric("Time until Acc@95, s", 2, _scaled("seconds_until", 1)),
    "client_mb_until": Metric("Up until Acc@95, one client, MB", 2, _sent(True, True, MB)),
    "server_gb_until": Metric("Up until Acc@95, all clients, GB", 2, _sent(True, False, GB)),
    "client_ms": Metric("Client per round, ms", 2, _scaled("client_seconds", 1000)),
    "server_ms": Metric("Server per round, ms", 2, _scaled("server_seconds", 1000)),
    "client_kb": Metric("Up per round, one client, KB", 2, _sent(False, True, KB)),
    "client_mb": Metric("Up per round, one client, MB", 4, _sent(False, True, MB)),
    "server_mb": Metric("Up per round, all clients, MB", 2, _sent(False, False, MB)),
    "bias": Metric("Label bias, lengths", 2, _drift(lambda event: event["decision_bias"])),
    "deviation": Metric("Variance, lengths", 2, _drift(_deviation)),
    "alignment": Metric("Alignment", 3, _geometry("alignment")),
    "intra": Metric("Intra, squared", 3, _geometry("intra")),
    "inter": Metric("Inter, squared", 3, _geometry("inter")),
    "ratio": Metric("Ratio, squared", 3, _geometry("intra", "inter")),
    "intra_distance": Metric("Intra, distances", 3, _geometry("intra_distance")),
    "inter_distance": Metric("Inter, distances", 3, _geometry("inter_distance")),
    "ratio_distance": Metric("Ratio, distances", 3, _geometry("intra_distance", "inter_distance")),
    "local": Metric("Local (own test set), %", 2, _personal("local")),
    "global_incl": Metric("Global (all test sets), %", 2, _personal("global_incl")),
    "c_std": Metric("C-Std (over all test sets), %", 2, _personal("c_std")),
    "worst": Metric("Worst (of the others' test sets), %", 2, _personal("worst")),
    "average_lgw": Metric("Average (Local, Global, Worst), %", 2, _personal("average_lgw")),
    "gm": Metric("GM, %", 2, _balance("gm", "overall")),
    "pm": Metric("PM, %", 2, _balance("pm", "overall")),
    **{f"{m}_{g}": Metric(f"{m.upper()}, {g}, %", 2, _balance(m, g)) for m in ("gm", "pm") for g in GROUPS},
    "gm_balance": Metric("GM, balancedness, %", 2, _balance("gm", "beta")),
    "kl": Metric("KL from zero-shot, nats", 3, _moment("kl", _last)),
    "tkl": Metric("TKL from zero-shot, nats", 3, _moment("tkl", _last)),
    "client_drift": Metric("Client drift, lengths", 2, _moment("client_drift", statistics.fmean)),
    "pm_balance": Metric("PM, balancedness, %", 2, _balance("pm", "beta")),
}
HEADLINE = {"retained", "accuracy", "decline", "alignment", "intra_distance", "inter_distance", "ratio_distance"}
HEADLINE |= {"local", "global_incl", "average_lgw", "gm", "pm", "gm_balance", "pm_balance"}
"""What a terminal shows; the page has everything."""
