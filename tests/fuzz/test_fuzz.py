"""A short ``make fuzz``: the same few examples of every target each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.examine import search
from fuzz.targets import SLOW, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_only_a_line_leaves(name: str, tmp_path: Path) -> None:
    examples, _ = search(TARGETS[name](tmp_path), 5 if name in SLOW else 60, tmp_path / "finding.bin", same=True)
    assert examples
