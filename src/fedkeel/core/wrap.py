"""Text for a screen: lines end between words; a word that is wider than the screen is broken where it has a seam."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TextIO

HYPHENS, SEAMS = "-", "-=_:/.,"


def width_of(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal that a stream, by default standard output, goes to; None for a file: lines stay whole."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def folded(text: str, width: int) -> list[str]:
    """The lines of a text that is ``width`` columns wide at most."""
    lines = [""]
    for number, word in enumerate(text.split(" ")):
        for k, part in enumerate(_parts(word, width)):
            longer = f"{lines[-1]}{' ' if number and not k else ''}{part}"
            if lines[-1] and len(longer) > width:
                lines.append(part)
            else:
                lines[-1] = longer
    return lines


def wrapped(text: str, width: int | None, indent: int = 0) -> str:
    """The same as one text, further lines indented; whole where there is no width."""
    if width is None or len(text) <= width:
        return text
    first, *rest = folded(text, max(1, width - indent))
    return f"\n{' ' * indent}".join([first, *rest])


def longest(text: str, seams: str) -> int:
    """The length of the longest piece of a text that is broken at blanks and after seams."""
    return max(map(len, re.split(f" |(?<=[{seams}])", text)))


def _parts(word: str, width: int) -> list[str]:
    """A word, in as many pieces as it takes: at its hyphens, at all of its seams, or anywhere."""
    if len(word) <= width:
        return [word]
    for seams in (HYPHENS, SEAMS):
        parts = [part for part in re.split(f"(?<=[{seams}])", word) if part]
        if max(map(len, parts)) <= width:
            return parts
    return [part[k : k + width] for part in parts for k in range(0, len(part), width)]
