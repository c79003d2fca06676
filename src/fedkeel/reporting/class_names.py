"""What the classes of some runs are called, and how an encoder of names reads that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.data.dataset import named
from fedkeel.runs.events import Record

MOST = 2000
"""Names that are shown."""


@dataclass(frozen=True)
class Called:
    """The names of the classes of one dataset."""

    count: int
    names: Sequence[str]
    """the first of them"""
    how: Sequence[str]
    """sentences about where they are from and how they are read"""


def called(records: Sequence[Record]) -> list[Called]:
    """Each set of names once, with all the ways in which it is read; none where names are only numbers."""
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for record in records:
        data = record.start["data"]
        read_as = data.get("read_as") or {}
        ways = found.setdefault(tuple(map(_read, data["classes"], read_as.get("names") or data["classes"])), {})
        ways |= dict.fromkeys(_said(record.start["config"]["data"].get("class_names"), read_as))
    return [Called(len(names), names[:MOST], list(ways)) for names, ways in found.items() if named(names)]


def _read(name: str, said: str) -> str:
    return name if name == said else f"{name} (read as “{said}”)"


def _said(file: str | None, read_as: dict[str, Any]) -> list[str]:
    lines = [f"Names are those of the file {file} (data.class_names)."] if file else []
    if template := read_as.get("template"):
        lines.append(f"Zero-shot reads each of them in “{template}”.")
    if (ending := read_as.get("ending")) is not None:
        lines.append(f"Behind a soft prompt stands the name{f' and “{ending}”' if ending else ', and nothing else'}.")
    return lines
