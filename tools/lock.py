"""Writes requirements.lock anew: the versions in it, or the ones given, each with the hashes of all its files.

    pip install uv
    python tools/lock.py                    # the same versions
    python tools/lock.py numpy==2.5.0       # another version, or a package more

What a package needs must be in the lock as well: it is installed with --no-deps.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
HEADER = """\
# Exact versions for development, tests and the demo, with the hashes of all files of each: pip takes nothing else.
# torch comes from the public index or as a CPU build of the same version, and pip takes what it finds: its hashes are
# those of all public files and of the CPU build for Python 3.11 on Linux (x86_64). The CUDA packages that the public
# build needs on Linux are not in here, because the CPU build must not get them: pip takes these without a hash.
# Written by tools/lock.py.
"""


def normal(name: str) -> str:
    """A package's name as indices know it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(text: str) -> dict[str, tuple[str, set[str]]]:
    """(version, hashes) of every package of a lock."""
    found = {}
    for name, version, hashes in re.findall(r"^([\w.-]+)==([^\s;\\]+)((?:\s*\\\n\s+--hash=\S+)*)", text, re.M):
        found[normal(name)] = (version, set(re.findall(r"--hash=(\S+)", hashes)))
    return found


def public(versions: dict[str, str]) -> dict[str, tuple[str, set[str]]]:
    """The entries of these versions with the hashes that the index has of all their files."""
    wanted = "\n".join(f"{name}=={version}" for name, version in versions.items())
    uv = ["uv", "pip", "compile", "-", "--quiet", "--universal", "--no-deps", "--generate-hashes", "--no-header"]
    return entries(subprocess.run(uv, input=wanted, check=True, capture_output=True, text=True).stdout)


def found_here(requirement: str) -> str:
    """The hash of the file that pip takes on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, requirement]
        subprocess.run(pip, check=True)
        (file,) = Path(folder).iterdir()
        return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def main() -> None:
    before = entries(LOCK.read_text(encoding="utf-8"))
    asked = {normal(name): version for name, _, version in (word.partition("==") for word in sys.argv[1:])}
    versions = {**{name: version for name, (version, _) in before.items()}, **asked}
    if not all(versions.values()):
        raise SystemExit("a package is given as NAME==VERSION")
    after = public(versions)
    if after.keys() != versions.keys():
        raise SystemExit(f"not in the index: {', '.join(sorted(versions.keys() - after.keys()))}")
    version, hashes = after["torch"]
    hashes.add(found_here(f"torch=={version}"))
    if before["torch"][0] == version:
        hashes |= before["torch"][1]
    text = HEADER
    for name, (version, hashes) in sorted(after.items()):
        text += " \\\n    ".join([f"{name}=={version}", *(f"--hash={one}" for one in sorted(hashes))]) + "\n"
    LOCK.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
