"""What is on this machine of what data and encoders name: told without a network, and without loading anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from fedkeel.core.errors import FedkeelError
from fedkeel.data.files import folder_or_id


class Lack(NamedTuple):
    """Something that is not here."""

    what: str
    fetched: bool = False
    """whether it is fetched when it is used"""
    elsewhere: bool = True
    """whether another file or folder could be named instead"""


def lack_of_path(path: Path) -> Lack | None:
    return None if os.path.exists(path) else Lack(f"there is no {path.absolute()}")


def lack_of_marks(folder: Path, marks: Sequence[str]) -> Lack | None:
    """Of a dataset that is unpacked there, or in a folder there: it has one of these files or folders."""
    try:
        places = [folder, *(Path(entry) for entry in os.scandir(folder) if entry.is_dir())]
    except OSError as error:
        return Lack(f"{folder.absolute()} cannot be looked into ({error.strerror})")
    if any(os.path.exists(place / mark) for place in places for mark in marks):
        return None
    return Lack(f"neither {folder.absolute()} nor a folder in it has {' or '.join(marks)}")


def lack_of_package(name: str, extra: str) -> Lack | None:
    what = f'the package {name} is not installed: pip install "fedkeel[{extra}]"'
    return None if find_spec(name) else Lack(what, elsewhere=False)


def lack_of_hub(kind: Literal["datasets", "models"], reference: str) -> Lack | None:
    """Of what ``hf:reference`` names: a folder, or an id of the hub that the local cache has or lacks."""
    package = lack_of_package("datasets" if kind == "datasets" else "transformers", "hf")
    if package is not None:
        return package
    try:
        folder = folder_or_id("hf", reference)
    except FedkeelError:
        return lack_of_path(Path(reference).expanduser())
    if folder is not None or _cached(kind, reference):
        return None
    from huggingface_hub import constants

    what = f"not in {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        return Lack(f"{what}, and HF_HUB_OFFLINE keeps it from being fetched")
    return Lack(f"{what}, fetched once from the Hugging Face hub", fetched=True)


def _cached(kind: Literal["datasets", "models"], reference: str) -> bool:
    """Whether the hub's files are here or, of a dataset, the tables that were made of them."""
    from huggingface_hub import constants

    files = Path(constants.HF_HUB_CACHE, f"{kind}--{reference.replace('/', '--')}", "snapshots")
    tables = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME, "datasets"))
    made = kind == "datasets" and (tables / reference.replace("/", "___").lower()).is_dir()
    return made or any(files.glob("*/*"))
