"""A run folder: born whole, opened once, never overwritten, described by its own config.toml."""

from __future__ import annotations

from pathlib import Path

from fedkeel.core.atomic import folder_atomically, write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.sealed import BLANK, KEY, MARK, Unsound, seal, seal_of
from fedkeel.data.manifest import Manifest
from fedkeel.runs.config import Experiment, build, load
from fedkeel.runs.events import EVENTS, begun, read
from fedkeel.runs.model import Model, client_file, load_client
from fedkeel.runs.summary import load_summary

CONFIG, MANIFEST = "config.toml", "manifest.json"
NAMES = ("source", "kind", "name")
"""The settings on which it depends what others there are."""


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
    """The experiment of the run in a folder; of one that has lost its config.toml, as its record has it."""
    if (folder / CONFIG).exists():
        sealed_text(folder / CONFIG, f"fedkeel run --out {folder} --resume")
        return load(folder / CONFIG)
    record = begun(folder)
    if record is None:
        raise FedkeelError(f"{folder} holds no run: there is no {CONFIG} in it")
    config = {name: {k: v for k, v in part.items() if v is not None} for name, part in record.start["config"].items()}
    return build(config, where=str(folder / EVENTS))


def sealed(text: str) -> bytes:
    """A TOML text with its seal in a comment."""
    return seal(f'# As fedkeel wrote it. "{KEY}": "{BLANK}"\n{text}'.encode())


def sealed_text(path: Path, command: str) -> str:
    """A TOML text that is as it was written; else it is said which command writes it again."""
    try:
        data = path.read_bytes()
        seal_of(data)
    except FileNotFoundError:
        raise FedkeelError(f"there is no {path}: {command} writes it again") from None
    except Unsound:
        if MARK.search(data) is None:
            raise FedkeelError(f"{path} is of an older fedkeel: fedkeel run {path} --out OTHER runs it again") from None
        raise FedkeelError(
            f"{path} is not as it was written: restore it; or delete it, and {command} writes it again"
        ) from None
    return data.decode()


def check(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Make sure that the folder is free, or that the run in it is the same and may go on."""
    if not any((folder / name).exists() for name in (CONFIG, EVENTS)):
        return
    if not resume:
        raise FedkeelError(f"{folder} already holds a run: add --resume to continue it, or choose another --out")
    if stored(folder).digest() != experiment.digest():
        change = _difference(stored(folder), experiment)
        raise FedkeelError(f"{folder} holds a run with another {change}; choose another --out")


def begin(folder: Path, experiment: Experiment, manifest: Manifest) -> None:
    """Write down what is to be run and on which split, or make sure that it was begun with the same."""
    if not folder.exists():
        with folder_atomically(folder) as new:
            _write_down(new, experiment, manifest)
    record = begun(folder)
    if record is None and not (folder / CONFIG).exists():
        (folder / MANIFEST).unlink(missing_ok=True)  # there is no run without a config.toml, which is written last
    known = set() if record is None else {record.start["data"]["manifest"]}
    if (folder / MANIFEST).exists():
        known.add(_split_of(folder).hash)
    if known - {manifest.hash}:
        raise FedkeelError(
            f"{folder / MANIFEST} changed: the data or the split is not the one this run began with; "
            "choose another --out"
        )
    _write_down(folder, experiment, manifest)


def _write_down(folder: Path, experiment: Experiment, manifest: Manifest) -> None:
    """What is not there yet."""
    if not (folder / MANIFEST).exists():
        manifest.save(folder / MANIFEST)
    if not (folder / CONFIG).exists():
        write_atomically(folder / CONFIG, sealed(experiment.toml()))


def _split_of(folder: Path) -> Manifest:
    try:
        return Manifest.load(folder / MANIFEST)
    except FedkeelError:
        again = f"fedkeel run --out {folder} --resume writes it again"
        raise FedkeelError(f"{folder / MANIFEST} is damaged: delete it, and {again}") from None


def finished(folder: Path) -> bool:
    """Whether all files of a finished run are there, sound and of the same run.

    Without one that can be made anew, or with a damaged one, it is not finished, and --resume makes it.
    """
    try:
        summary = load_summary(folder)
    except FedkeelError:
        return False
    if summary is None or not all((folder / name).exists() for name in (CONFIG, MANIFEST)):
        return False
    end = read(folder).end
    if stored(folder).digest() != summary["experiment"] or _split_of(folder).hash != summary["manifest"]:
        raise FedkeelError(
            f"{folder}: {CONFIG} or {MANIFEST} is of another run than summary.json; restore it or choose another --out"
        )
    try:
        Model.of(folder)
        for name in (end or {}).get("own", ()):
            load_client(client_file(folder, name))
    except (FedkeelError, FileNotFoundError):
        return False
    return end is not None


def _difference(before: Experiment, now: Experiment) -> str:
    """The first setting that is another; what a section names comes before what goes with it."""
    old, new = before.model_dump(), now.model_dump()
    for section, values in old.items():
        for key in sorted(values.keys() | new[section].keys(), key=lambda key: (key not in NAMES, key)):
            there, here = values.get(key), new[section].get(key)
            if there != here:
                return f"{section}.{key} ({there!r} there, {here!r} now)"
    return "configuration"
