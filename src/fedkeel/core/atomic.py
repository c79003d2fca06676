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


SAFE = re.compile(r"[a-z0-9=_-][a-z0-9=._-]{0,99}")
MARKED = re.compile(r".*_[0-9a-f]{16}")
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
"""What Windows keeps for itself, with any ending."""


def safe_name(text: str) -> str:
    """A name that every file system takes, and no two texts become equal, also where FOO and foo are one file.

    One that is not safe by itself carries a mark, and so does one that only looks as if it carried one.
    """
    if SAFE.fullmatch(text) and not MARKED.fullmatch(text) and not RESERVED.fullmatch(text) and text[-1] != ".":
        return text
    clean = re.sub(r"[^A-Za-z0-9=._-]+", "_", text)[:80].lstrip(".")
    clean = f"_{clean}" if RESERVED.fullmatch(clean.lower()) else clean
    return f"{clean}_{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
