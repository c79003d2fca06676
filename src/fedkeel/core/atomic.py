"""Files that are whole or absent, whenever the power fails."""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import IO

from fedkeel.core.errors import FedkeelError


def write_atomically(path: Path, data: bytes) -> None:
    """Afterwards the file holds all of the data or is as it was before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failing write does not say where
        raise
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def claim(folder: Path, by: Path, busy: str) -> IO[str]:
    """The folder for this process alone, by a lock on a file, until what is given is closed.

    Half-written files that a killed process left in the folder are cleared away.
    """
    import fcntl

    lock = by.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise FedkeelError(busy) from None
    for unfinished in folder.glob(".*.partial"):
        unfinished.unlink()
    return lock


def safe_name(text: str) -> str:
    """A name that every file system takes; one that had to be changed carries a mark, so that no two become equal."""
    clean = re.sub(r"[^A-Za-z0-9=._-]+", "_", text)
    return clean if clean == text else f"{clean}_{blake2b(text.encode(), digest_size=3).hexdigest()}"
