"""What a command prints, whatever the terminal or the file behind stdout can take."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path

from fedkeel.core.errors import FedkeelError

PLAIN = str.maketrans(
    {"─": "-", "━": "=", "│": "|", "–": "-", "±": "~", "…": ".", "·": " ", "░": ".", "▒": ":", "▓": "+", "█": "#"}
)
"""What stands for the marks of tables and heat maps where they cannot be written, one character for one."""


def _in_its_place(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    plain = error.object[error.start : error.end].translate(PLAIN)
    return plain.encode("ascii", "backslashreplace").decode(), error.end


def take_any_text() -> None:
    """From here on no text is too much for stdout: what it cannot write has something plain in its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before we came, as by >&-
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  it stays open
    codecs.register_error("fedkeel", _in_its_place)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="fedkeel")


def exactly(text: str) -> None:
    """Print what another program will read: all of it or nothing."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError as error:
        raise FedkeelError(
            f"stdout is {encoding}, which has no {text[error.start]!a}: write to a file with --out, or set "
            "PYTHONIOENCODING=utf-8"
        ) from None
    print(text, end="")


def nobody_reads() -> None:
    """Stdout was closed by who read it, as ``head`` does: what is still in its buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
