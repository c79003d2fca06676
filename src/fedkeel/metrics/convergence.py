"""How a run compares with its IID twin, and how fast it arrives (OvA-LP Section 4.1, Tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence


def retained(curve: Sequence[float], iid_curve: Sequence[float]) -> list[float]:
    """R(t) = 100 * Acc_nonIID(t) / Acc_IID(t), for the rounds both runs have."""
    return [100.0 * ours / iid if iid > 0 else float("nan") for ours, iid in zip(curve, iid_curve, strict=False)]


def acc95_round(curve: Sequence[float]) -> int | None:
    """Acc@95: the first round (from 1) whose accuracy is at least 95 % of the run's own final accuracy."""
    if not curve:
        return None
    goal = 0.95 * curve[-1]
    return next(round for round, accuracy in enumerate(curve, 1) if accuracy >= goal)


def decline_rate(accuracy: float, reference: float) -> float:
    """Relative loss in percent against the accuracy at the lowest noise: (ref - acc) / ref * 100."""
    return 100.0 * (reference - accuracy) / reference
