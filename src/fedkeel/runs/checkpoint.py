"""Checkpoints that survive a kill at any moment: each is written whole beside the old one, then renamed into place.

A checkpoint is the server's state and, in the same file, which exchange of each client was accepted last: what clients
keep for themselves is in their store, under the exchange that it belongs to. Every draw is keyed, so work that was lost
with a kill comes out the same when it is done again; a simulation therefore writes one only now and then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fedkeel.core.atomic import claim, write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import NEVER
from fedkeel.core.method import State
from fedkeel.core.tree import Tree, digest, put, take, to_bytes

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
        tensors = {name: value.contiguous() for name, value in tensors.items()}
        about: dict[str, Any] = {"round": point.round, "index": point.index, "clients": len(point.accepted)}
        about |= {"experiment": self._experiment, "digest": digest(tensors)}
        path = self._folder / (name or f"{point.round:06d}-{point.index:02d}.safetensors")
        write_atomically(path, to_bytes(tensors, {"fedkeel": json.dumps(about)}))
        for old in self._files()[:-KEEP]:
            old.unlink(missing_ok=True)
        self._last = monotonic()

    def newest(self) -> Checkpoint | None:
        """The last checkpoint, verified; None if there is none."""
        files = self._files()
        return self._read(files[-1]) if files else None

    def keep(self, round: int, state: State) -> None:
        """Remember the state after a round as the best one so far."""
        self.save(Checkpoint(round, 0, state, np.empty(0, dtype=np.int64)), BEST)

    def best(self) -> Checkpoint | None:
        """What was kept last, verified."""
        path = self._folder / BEST
        return self._read(path) if path.exists() else None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.safetensors"))

    def _read(self, path: Path) -> Checkpoint:
        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, Any] = json.loads(file.metadata()["fedkeel"])
                # Copied, because arithmetic may round differently where memory is not aligned, as it is in the file.
                tensors: Tree = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            sound = digest(tensors) == about["digest"]
        except (SafetensorError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise FedkeelError(f"{path} is damaged: delete it, and --resume continues from the checkpoint before it")
        if about["experiment"] != self._experiment:
            raise FedkeelError(f"{path} belongs to another configuration: restore config.toml or choose another --out")
        state = State(take("shared/", tensors), take("server/", tensors), take("per_client/", tensors))
        accepted = np.full(about["clients"], NEVER, dtype=np.int64)
        accepted[tensors[CLIENTS].numpy()] = tensors[ACCEPTED].numpy()
        return Checkpoint(about["round"], about["index"], state, accepted, tensors[COHORT].tolist())
