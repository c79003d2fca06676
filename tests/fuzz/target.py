"""What is fuzzed: a target makes bytes, whole ones that were changed mostly, and says what must hold of them.

What it raises must be a ``FedkeelError``; what it accepts must be what was written, or, where a user wrote it,
something that makes sense.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedkeel.core.tree import Tree
from fuzz.mutations import Make


@dataclass(frozen=True)
class Target:
    make: Make
    check: Callable[[bytes], None]
    megabytes: int = 300
    """Memory that an example may take."""


TARGETS: dict[str, Callable[[Path], Target]] = {}
"""By name, each made with a folder of its own."""


def target(make: Callable[[Path], Target]) -> Callable[[Path], Target]:
    TARGETS[make.__name__.replace("_", "-")] = make
    return make


def tree(start: float = 0.0) -> Tree:
    """A small model."""
    return {"head.weight": torch.arange(12.0).reshape(3, 4) + start, "head.bias": torch.full((3,), start)}
