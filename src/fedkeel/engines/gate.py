"""The gate in front of aggregation: an update passes whole or not at all, and a refusal names client and reason."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.core.message import Down, Up
from fedkeel.core.method import Phase
from fedkeel.core.tree import Tree


@dataclass(frozen=True)
class Refusal:
    client: str
    reason: str


def refusal(message: Down | Up, client: str, rows: int, round: int, phase: Phase, expected: Tree) -> str | None:
    """Why the message may not count as this client's update in this round and phase; None if it may."""
    if not isinstance(message, Up):
        return "the reply is not an update"
    got, due = (message.client, message.round, message.phase), (client, round, phase.name)
    if got != due:
        return f"the reply is for {got[0]}, round {got[1]}, {got[2]}; due was {due[0]}, round {due[1]}, {due[2]}"
    return _bad_weight(message.weight, rows) or _bad_arrays(message.arrays, expected) or _bad_values(message, phase)


def _bad_weight(weight: float, rows: int) -> str | None:
    if not math.isfinite(weight) or weight <= 0:
        return f"weight is {weight}, expected a positive number of rows"
    if weight > rows:
        return f"weight is {weight:g}, but the client enrolled with {rows} rows"
    return None


def _bad_arrays(arrays: Tree, expected: Tree) -> str | None:
    if missing := sorted(expected.keys() - arrays.keys()):
        return f"{missing[0]} is missing"
    if extra := sorted(arrays.keys() - expected.keys()):
        return f"{extra[0]} was not asked for"
    for name, wanted in expected.items():
        got = arrays[name]
        if got.dtype != wanted.dtype:
            return f"{name} has dtype {str(got.dtype)[6:]}, expected {str(wanted.dtype)[6:]}"
        if got.shape != wanted.shape:
            return f"{name} has shape {tuple(got.shape)}, expected {tuple(wanted.shape)}"
    return None


def _bad_values(message: Up, phase: Phase) -> str | None:
    for name, array in message.arrays.items():
        if not torch.isfinite(array).all():
            return f"{name} holds {'NaN' if array.isnan().any() else 'Inf'}"
    norm = math.sqrt(sum(float(array.double().square().sum()) for array in message.arrays.values()))
    return f"the update's norm is {norm:.3g}, the limit is {phase.max_norm:g}" if norm > phase.max_norm else None


def refused_in_stack(stacked: Tree, phase: Phase) -> dict[int, str]:
    """The same check of values for a stack of updates that were never on a wire: index in the stack -> reason."""
    flat = [array.reshape(len(array), -1) for array in stacked.values()]
    lengths: list[Tensor] = [torch.linalg.vector_norm(array, dim=1) for array in flat]
    norms = torch.linalg.vector_norm(torch.stack(lengths).double(), dim=0)
    bad = ~(norms <= phase.max_norm)  # also true for NaN and for Inf
    if not bad.any():
        return {}
    reasons = {}
    for index in bad.nonzero().flatten().tolist():
        update = {name: array[index] for name, array in stacked.items()}
        reasons[index] = _bad_values(Up(0, phase.name, "", 1.0, update), phase) or "the update's norm overflows"
    return reasons
