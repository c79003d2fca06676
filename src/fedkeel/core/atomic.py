"""Files and folders that are whole or absent, whenever the power fails."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO

from fedkeel.core.errors import FedkeelError

PARTIAL = ".*.partial"
"""What is being written; whoever writes it holds it."""


def write_atomically(path: Path, data: bytes) -> None:
    """Afterwards the file holds all of the data or is as it was before."""
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            hold(file.fileno())
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


@contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """A place to put files into: afterwards the folder is there with all of them, or is as it was before.

    Where somebody else was faster and the folder is there already, it stays as it is.
    """
    clear(path.parent, f".{glob.escape(path.name)}{PARTIAL[1:]}")
    beside = _beside(path)
    beside.mkdir(parents=True)
    handle = os.open(beside, os.O_RDONLY)
    try:
        hold(handle)
        yield beside
        os.fsync(handle)
        try:
            beside.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    finally:
        os.close(handle)
        shutil.rmtree(beside, ignore_errors=True)
    sync_folder(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def sync_folder(folder: Path) -> None:
    """Make new names in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hold(handle: int) -> bool:
    """Lock an open file or folder until it is closed; false if another process has it."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def claim(folder: Path, by: Path, busy: str) -> IO[str]:
    """The folder for this process alone, by a lock on a file, until what is given is closed.

    What killed processes left half-written in the folder is cleared away.
    """
    lock = by.open("a")
    if not hold(lock.fileno()):
        lock.close()
        raise FedkeelError(busy)
    clear(folder)
    return lock


def clear(folder: Path, pattern: str = PARTIAL) -> None:
    """Delete what was being written in a folder by processes that are no more."""
    for left in folder.glob(pattern):
        with suppress(FileNotFoundError):
            handle = os.open(left, os.O_RDONLY)
            try:
                if hold(handle):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            finally:
                os.close(handle)


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
