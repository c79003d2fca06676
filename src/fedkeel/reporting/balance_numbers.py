"""How evenly models serve frequent and rare classes: every number of FedPuReL's tables and figures, from events alone.

Hou et al., Fine-Tuning Impairs the Balancedness of Foundation Models in Long-tailed Personalized Federated Learning,
CVPR 2026, arXiv 2605.02247. GM is the global model on all test rows. PM are the personal models, each on the test rows
of its own client: overall the mean over the clients, each counted once; by class all clients' rows together.

Head classes have more than ``report.head`` training rows over all clients, tail classes at most ``report.tail``, mid is
what is between. The accuracy of a group is the mean over all of its classes that have test rows: a class that is never
named rightly counts with 0. (The released code leaves such classes out, which makes a poor tail look better.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkeel.runs.config import Report
from fedkeel.runs.events import Record

Number = float | None
GROUPS = ("head", "mid", "tail")


def groups(class_rows: Sequence[int], head: int = 100, tail: int = 20) -> dict[str, list[int]]:
    """The classes of each group, by the training rows that they have over all clients."""
    found: dict[str, list[int]] = {name: [] for name in GROUPS}
    for label, rows in enumerate(class_rows):
        found["head" if rows > head else "tail" if rows <= tail else "mid"].append(label)
    return found


def balancedness(per_class: Sequence[Number] | np.ndarray, scale: float = 10.0) -> Number:
    """beta = 1/C^2 sum_i sum_j exp(-scale |a_i - a_j|), a_c the accuracy of class c, between 0 and 1.

    1 where all classes have the same accuracy, near 1/C where all differ widely. This is our reading: the part of the
    paper that defines beta(V) could not be had. Name and symbol are those of Kang et al., Exploring Balanced Feature
    Spaces, ICLR 2021. Why this form and this scale: the accuracies of 100 classes that lie normally around 0.7 and
    deviate by 0.15, 0.20 or 0.25 (none below 0 or above 1) give 0.32, 0.26 or 0.23, and the paper reports 0.25 to 0.30;
    the entropy of class accuracies, the other candidate, would be above 0.98. A class without test rows (None, NaN) is
    left out; None if there is no other.
    """
    values = np.array(per_class, dtype=float)
    known = values[~np.isnan(values)]
    return float(np.exp(-scale * np.abs(known[:, None] - known)).mean()) if len(known) else None


@dataclass(frozen=True, eq=False)
class Scores:
    """One model, or the personal models together: overall, class by class, by group, and how balanced."""

    overall: Number
    per_class: np.ndarray
    """NaN for a class without test rows"""
    groups: Mapping[str, Sequence[int]]
    scale: float

    @property
    def head(self) -> Number:
        return self.group("head")

    @property
    def mid(self) -> Number:
        return self.group("mid")

    @property
    def tail(self) -> Number:
        return self.group("tail")

    @property
    def beta(self) -> Number:
        return balancedness(self.per_class, self.scale)

    def group(self, name: str) -> Number:
        """Mean over the classes of a group, those at 0 included; None if none of them has test rows."""
        return _mean(self.per_class[list(self.groups[name])])


@dataclass(frozen=True)
class Moment:
    """The models after a round, 0 = before training, and how far they have gone from zero-shot."""

    round: int
    gm: Scores
    pm: Scores | None
    kl: Number
    tkl: Number
    """mean over the test rows of KL(zero-shot || model), plain and with both at the same entropy"""
    agreement: Number
    """share of the test rows that the model calls as zero-shot does"""
    angle: Number
    """mean angle in degrees between the gradients of task and alignment, before any projection"""
    client_drift: Number
    """how far the clients' steps pull apart, in lengths of their mean"""


@dataclass(frozen=True, eq=False)
class Balance:
    """What a run's events say of frequent and rare classes; None where they do not say."""

    class_rows: np.ndarray
    """training rows of each class over all clients"""
    groups: Mapping[str, Sequence[int]]
    zero_shot: Scores | None
    gm: Scores | None
    pm: Scores | None
    right: np.ndarray | None
    """right answers of the personal models on the clients' own test rows, by class"""
    by_global: np.ndarray | None
    """how many of these are attributed to the global branch: its logit of the true class is the higher one"""
    moments: tuple[Moment, ...]

    @classmethod
    def of(cls, record: Record) -> Balance:
        data, end = record.start["data"], record.end or {}
        report = Report(**record.start["config"].get("report", {}))  # older records have no such section
        rows = data.get("class_rows")
        if rows is None:
            counts = np.array(record.start["clients"]["label_counts"], dtype=float)
            rows = counts.reshape(-1, len(data["classes"])).sum(axis=0)
        found = groups(rows, report.head, report.tail)
        weights = data.get("class_test_rows")

        def scores(per_class: Sequence[Number] | None, overall: Number = None) -> Scores | None:
            if per_class is None and overall is None:
                return None
            values = np.array([None] * len(rows) if per_class is None else per_class, dtype=float)
            return Scores(_mean(values, weights) if overall is None else overall, values, found, report.balance_scale)

        def moment(event: Mapping[str, Any]) -> Moment:
            gm = scores(event["per_class"])
            assert gm is not None
            pm = scores(_shares(event), _mean(np.array(event.get("personal") or [], dtype=float)))
            drift = (event.get(key) for key in ("kl", "tkl", "agreement", "angle", "client_drift"))
            return Moment(event["round"], gm, pm, *drift)

        named, right, branch = end.get("per_class", []), end.get("personal_right"), end.get("by_global")
        return cls(
            np.array(rows, dtype=float),
            found,
            scores(data.get("zero_shot")),
            # A method without a global model has the personal mean as its accuracy, and no class has one.
            scores(named, end["accuracy"]) if any(value is not None for value in named) else None,
            scores(_shares(end), end.get("personal_mean")),
            None if right is None else np.array(right, dtype=float),
            None if branch is None else np.array(branch, dtype=float),
            tuple(moment(event) for event in record.balance),
        )

    @property
    def branch_by_class(self) -> np.ndarray | None:
        """Of the right answers in each class the share of the global branch; NaN in a class without any."""
        if self.right is None or self.by_global is None:
            return None
        some = self.right > 0
        return np.where(some, self.by_global / np.where(some, self.right, 1), np.nan)

    @property
    def branch_by_group(self) -> dict[str, Number] | None:
        """The same for head, mid and tail (Figure 5b): all right answers of a group together; None without any."""
        if self.right is None or self.by_global is None:
            return None
        sums = {name: (self.by_global[list(c)].sum(), self.right[list(c)].sum()) for name, c in self.groups.items()}
        return {name: float(part / whole) if whole else None for name, (part, whole) in sums.items()}


def _shares(event: Mapping[str, Any]) -> list[Number] | None:
    """Accuracy of the personal models by class: all clients' own test rows together."""
    right, rows = event.get("personal_right"), event.get("personal_rows")
    if right is None or rows is None:
        return None
    return [r / n if n else None for r, n in zip(right, rows, strict=True)]


def _mean(values: np.ndarray, weights: Sequence[float] | None = None) -> Number:
    """Of what is known; the weights of classes are their test rows, all alike where a record does not say."""
    known = ~np.isnan(values)
    if not known.any():
        return None
    return float(np.average(values[known], weights=None if weights is None else np.array(weights)[known]))
