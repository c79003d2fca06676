"""The gate in front of aggregation: an update passes whole or not at all, and a refusal says why.

The same for every engine. What an update must be is known beforehand: the names, shapes and dtypes that were asked for,
numbers, and the weight that the client enrolled with. How long it may be is not. It is judged by its length per step of
training (per row where sums are sent), which clients with many rows and with few have in common:
- against the cohort: not more than ``FAR`` times its median;
- where rows of features have a known greatest length, sums against what such rows can add up to;
- by itself, which is all there is where a single client replies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

import numpy as np
import torch

from fedkeel.core.message import Down, Up
from fedkeel.core.method import Phase
from fedkeel.core.roster import Roster
from fedkeel.core.tree import Tensor, Tree
from fedkeel.engines.base import steps_of

FAR = 1000.0
"""An update this many times as long as is usual in its cohort is refused: legitimate ones differ by far less."""
LONGEST_STEP, LONGEST_ROW = 1e6, 1e12
"""Limits where nothing else is known, of what one step moves and of what one row adds."""
PER_ROW = 16.0
"""Sums of products of unit rows, of class counts and of hits are at most a few per row."""


def addressed(message: Down | Up, due: Up) -> str | None:
    """Why the message is not the one that was due; None if it is."""
    if not isinstance(message, Up):
        return "the reply is not an update"
    if message.run != due.run:
        return f"the reply is for another run, {message.run[:40]!r}"
    got, expected = (message.client, message.round, message.phase), (due.client, due.round, due.phase)
    if got != expected:
        return (
            f"the reply is for {got[0]}, round {got[1]}, {got[2]}; due was {due.client}, round {due.round}, {due.phase}"
        )
    if message.weight != due.weight:
        return f"weight is {message.weight:g}, but the client enrolled with {due.weight:g} rows"
    return None


def misfits(arrays: Tree, expected: Tree, stacked: int = 0) -> str | None:
    """Why the arrays are not those that were asked for; of a stack, axes in front are left out."""
    if missing := sorted(expected.keys() - arrays.keys()):
        return f"{missing[0]} is missing"
    if extra := sorted(arrays.keys() - expected.keys()):
        return f"{extra[0]} was not asked for"
    for name, wanted in expected.items():
        got = arrays[name]
        if got.dtype != wanted.dtype:
            return f"{name} has dtype {str(got.dtype)[6:]}, expected {str(wanted.dtype)[6:]}"
        if got.shape[stacked:] != wanted.shape:
            return f"{name} has shape {tuple(got.shape[stacked:])}, expected {tuple(wanted.shape)}"
    return None


def no_numbers(arrays: Tree) -> str | None:
    """Which array holds something that is no number."""
    for name, array in arrays.items():
        if not torch.isfinite(array).all():
            return f"{name} holds {'NaN' if array.isnan().any() else 'Inf'}"
    return None


def lengths(stacked: Tree) -> np.ndarray:
    """The length of each update of a stack; NaN or Inf where it holds one."""
    flat = [array.reshape(len(array), -1) for array in stacked.values()]
    norms = [torch.linalg.vector_norm(_as_float(array), dim=1).double() for array in flat]
    found: np.ndarray = torch.linalg.vector_norm(torch.stack(norms), dim=0).numpy()
    return found


def _as_float(array: Tensor) -> Tensor:
    return array if array.dtype in (torch.float32, torch.float64) else array.double()


def effort(roster: Roster, phase: Phase, clients: Sequence[int]) -> np.ndarray:
    """By what the length of a client's update is divided before it is compared."""
    rows = roster.rows[list(clients)]
    if phase.epochs:
        return steps_of(rows, phase)
    return rows if phase.sums else np.ones(len(rows))


def usual(found: Sequence[float]) -> float:
    """The median of some lengths; of two the smaller."""
    return median_low(found)


def known_beforehand(phase: Phase, roster: Roster) -> bool:
    """Whether the limit does not depend on the cohort."""
    return phase.looks or (phase.sums and roster.longest is not None)


def limit(median: float, phase: Phase, roster: Roster) -> tuple[float, str]:
    """The greatest length, per step or per row, that may pass, and why; a median of 0 says nothing."""
    most, why = (LONGEST_ROW if phase.sums else LONGEST_STEP), "more is never right"
    if phase.sums and roster.longest is not None:
        most, why = PER_ROW * max(1.0, roster.longest) ** 2, f"for features of length {roster.longest:g}"
    if phase.looks:  # sums over rows that nobody enrolled with
        return LONGEST_ROW, why
    if known_beforehand(phase, roster):
        return most, why
    return (FAR * median, f"{FAR:g} times the cohort's median") if 0 < FAR * median < most else (most, why)


def too_long(length: float, median: float, phase: Phase, roster: Roster) -> str | None:
    """Why an update of that length, per step or per row, may not pass."""
    most, why = limit(median, phase, roster)
    if length <= most:
        return None
    what = "per step" if phase.epochs else "per row" if phase.sums else "in all"
    if not math.isfinite(length):
        return "the update's norm overflows"
    return f"the update's norm is {length:.3g} {what}, the limit is {most:.3g}, {why}"
