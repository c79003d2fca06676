"""A run folder: opened once, never overwritten, described by its own config.toml."""

from __future__ import annotations

from pathlib import Path

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.data.partition import Manifest
from fedkeel.runs.config import Experiment, load

CONFIG, MANIFEST = "config.toml", "manifest.json"


def label(experiment: Experiment) -> str:
    """A short name of the run, e.g. ova-lp-bernoulli-dirichlet-seed0."""
    return f"{experiment.method['name']}-{experiment.partition.kind}-seed{experiment.run.seed}"


def fresh(experiment: Experiment) -> Path:
    """A folder under runs/ that does not exist yet."""
    path, number = Path("runs") / label(experiment), 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{label(experiment)}-{number}"
    return path


def stored(folder: Path) -> Experiment:
    """The experiment of the run in a folder."""
    if not (folder / CONFIG).exists():
        raise FedkeelError(f"{folder} holds no run: there is no {CONFIG} in it")
    return load(folder / CONFIG)


def check(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Make sure that the folder is free, or that the run in it is the same and may go on."""
    if not (folder / CONFIG).exists():
        return
    if not resume:
        raise FedkeelError(f"{folder} already holds a run: add --resume to continue it, or choose another --out")
    if stored(folder).digest() != experiment.digest():
        change = _difference(stored(folder), experiment)
        raise FedkeelError(f"{folder} holds a run with another {change}; choose another --out")


def begin(folder: Path, experiment: Experiment, manifest: Manifest) -> None:
    """Write down what is to be run and on which split, or make sure that it was begun with the same."""
    path = folder / MANIFEST
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        manifest.save(path)
        write_atomically(folder / CONFIG, experiment.toml().encode())
    elif Manifest.load(path).hash != manifest.hash:
        raise FedkeelError(
            f"{path} changed: the data or the split is not the one this run began with; choose another --out"
        )


def _difference(before: Experiment, now: Experiment) -> str:
    old, new = before.model_dump(), now.model_dump()
    for section, values in old.items():
        for key in sorted(values.keys() | new[section].keys()):
            there, here = values.get(key), new[section].get(key)
            if there != here:
                return f"{section}.{key} ({there!r} there, {here!r} now)"
    return "configuration"
