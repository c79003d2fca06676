"""Checkpoints that survive a kill at any moment: each is written whole beside the old one, then renamed into place.

A checkpoint is the server's state and, in the same file, which exchange of each client was accepted last: what clients
keep for themselves is in their store, under the exchange that it belongs to. Every draw is keyed, so work that was lost
with a kill comes out the same when it is done again; a simulation therefore writes one only now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from fedkeel.core.atomic import claim, clear
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import NEVER
from fedkeel.core.method import State
from fedkeel.core.sealed import Unsound, read_tensors, write_tensors
from fedkeel.core.tree import put, take

JOURNAL, PRIVATE, BEST = "journal", "private.sqlite", "best.safetensors"
KEEP = 2
"""Checkpoints kept: the newest, and one to fall back on if it is damaged."""
EVERY = 2.0
"""Seconds of work between two checkpoints of a simulation."""
DEARER = 4
"""So many times as long as a checkpoint took, with what clients keep, is worked before the next."""
CLIENTS, ACCEPTED = "accepted/clients", "accepted/exchanges"
"""Of the clients that were visited, who they are and the exchange of the last update accepted from each."""
COHORT = "cohort"


@dataclass(frozen=True)
class Checkpoint:
    """Everything the server knows after phase ``index`` of ``round``."""

    round: int
    index: int
    state: State
    accepted: np.ndarray
    """of each client, the exchange of the last update that was accepted from it"""
    head: str = ""
    """what the record ended with by then"""
    cohort: list[int] = field(default_factory=list)
    """who took part in the phase: the next one may ask the same clients"""


class Checkpoints:
    """The checkpoints of one run folder. Only one process may hold it."""

    def __init__(self, folder: Path, experiment: str, every: float | None = None) -> None:
        self._folder = folder / JOURNAL
        self._folder.mkdir(parents=True, exist_ok=True)
        self._experiment, self._every = experiment, EVERY if every is None else every
        self._last, self.cost = monotonic(), 0.0
        busy = f"{folder} is in use by another run: wait for it, or choose another --out"
        self._lock = claim(self._folder, self._folder / "lock", busy)
        for other in (folder, folder / "clients"):
            clear(other)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    @property
    def due(self) -> bool:
        """Whether enough has been done since the last one, also measured by what that one cost."""
        wait = max(self._every, DEARER * self.cost) if self._every else 0.0
        return monotonic() - self._last >= wait

    @property
    def private(self) -> Path:
        """Where the clients of a simulation keep what is their own."""
        return self._folder / PRIVATE

    def save(self, point: Checkpoint, name: str | None = None) -> None:
        state = point.state
        tensors = put("shared/", state.shared) | put("server/", state.server) | put("per_client/", state.per_client)
        visited = np.flatnonzero(point.accepted != NEVER)
        tensors[CLIENTS], tensors[ACCEPTED] = (torch.from_numpy(a) for a in (visited, point.accepted[visited]))
        tensors[COHORT] = torch.tensor(point.cohort, dtype=torch.int64)
        about: dict[str, Any] = {"round": point.round, "index": point.index, "clients": len(point.accepted)}
        about |= {"experiment": self._experiment, "head": point.head, "private": self.private.exists()}
        write_tensors(self._folder / (name or f"{point.round:06d}-{point.index:02d}.safetensors"), tensors, about)
        for old in self._files()[:-KEEP]:
            old.unlink(missing_ok=True)
        self._last = monotonic()

    def newest(self) -> Checkpoint | None:
        """The last checkpoint, verified; None if there is none."""
        files = self._files()
        before = "the checkpoint before it" if len(files) > 1 else "the start"
        return self._read(files[-1], f"delete it, and --resume continues from {before}") if files else None

    def keep(self, round: int, state: State) -> None:
        """Remember the state after a round as the best one so far."""
        self.save(Checkpoint(round, 0, state, np.empty(0, dtype=np.int64)), BEST)

    @property
    def kept(self) -> Path:
        """Where the best state is."""
        return self._folder / BEST

    def best(self) -> Checkpoint | None:
        """What was kept last, verified."""
        return self._read(self.kept, self._again) if self.kept.exists() else None

    @property
    def _again(self) -> str:
        return f"fedkeel run {self._folder.parent / 'config.toml'} --out OTHER runs it again"

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.safetensors"))

    def _read(self, path: Path, remedy: str) -> Checkpoint:
        try:
            tensors, about = read_tensors(path)
        except Unsound:
            raise FedkeelError(f"{path} is damaged: {remedy}") from None
        if about["experiment"] != self._experiment:
            raise FedkeelError(f"{path} belongs to another configuration: restore config.toml or choose another --out")
        state = State(take("shared/", tensors), take("server/", tensors), take("per_client/", tensors))
        accepted = np.full(about["clients"], NEVER, dtype=np.int64)
        accepted[tensors[CLIENTS].numpy()] = tensors[ACCEPTED].numpy()
        if about["private"] and not self.private.exists():
            raise FedkeelError(f"{self.private}, where clients keep what is their own, is gone: {self._again}")
        cohort = tensors[COHORT].tolist()
        return Checkpoint(about["round"], about["index"], state, accepted, about["head"], cohort)
