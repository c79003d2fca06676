"""Checkpoints that survive a kill at any moment: each is written whole beside the old one, then renamed into place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedkeel.core.atomic import claim, write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import State
from fedkeel.core.tree import Tree, digest

BEST = "best.safetensors"
KEEP = 2
"""Checkpoints kept: the newest, and one to fall back on if it is damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything after phase ``index`` of ``round``: the server's state and what each client keeps for itself."""

    round: int
    index: int
    state: State
    private: dict[int, Tree]


class Journal:
    """The checkpoints of one run folder. Only one process may hold it."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self._folder = folder / "journal"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._experiment = experiment
        busy = f"{folder} is in use by another run: wait for it, or choose another --out"
        self._lock = claim(self._folder, self._folder / "lock", busy)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def save(self, point: Checkpoint, name: str | None = None) -> None:
        tensors = {f"shared/{name}": value for name, value in point.state.shared.items()}
        tensors |= {f"server/{name}": value for name, value in point.state.server.items()}
        tensors |= {f"told/{name}": value for name, value in point.state.told.items()}
        for client, tree in point.private.items():
            tensors |= {f"private/{client}/{name}": value for name, value in tree.items()}
        tensors = {name: value.contiguous() for name, value in tensors.items()}
        about = {"round": point.round, "index": point.index, "experiment": self._experiment, "digest": digest(tensors)}
        path = self._folder / (name or f"{point.round:06d}-{point.index:02d}.safetensors")
        write_atomically(path, save(tensors, metadata={"fedkeel": json.dumps(about)}))
        for old in self._files()[:-KEEP]:
            old.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """The last checkpoint, verified; None if there is none."""
        files = self._files()
        return self._read(files[-1]) if files else None

    def keep(self, round: int, state: State) -> None:
        """Remember the state after a round as the best one so far."""
        self.save(Checkpoint(round, 0, state, {}), BEST)

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
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  not a dict
            sound = digest(tensors) == about["digest"]
        except (SafetensorError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise FedkeelError(f"{path} is damaged: delete it, and --resume continues from the checkpoint before it")
        if about["experiment"] != self._experiment:
            raise FedkeelError(f"{path} belongs to another configuration: restore config.toml or choose another --out")
        private: dict[int, Tree] = {}
        for name, value in tensors.items():
            if name.startswith("private/"):
                _, client, rest = name.split("/", 2)
                private.setdefault(int(client), {})[rest] = value
        state = State(_scope(tensors, "shared/"), _scope(tensors, "server/"), _scope(tensors, "told/"))
        return Checkpoint(about["round"], about["index"], state, private)


def _scope(tensors: Tree, prefix: str) -> Tree:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
