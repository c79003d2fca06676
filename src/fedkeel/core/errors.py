"""Mistakes a user can mend, each told in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class FedkeelError(Exception):
    """One line that says who, what, got, expected and what to do; the command ends with exit code 2."""


class Missing(FedkeelError):
    """What is named is not here and could not be fetched: whatever does without it may go on."""


class Stopped(FedkeelError):
    """The user pressed Ctrl-C; the line says how to go on."""


LONGEST = 300


def shortened(text: str, longest: int = LONGEST) -> str:
    """Of a text that others had a hand in, no more than fits a record."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def printable(text: str) -> str:
    """A text that others had a hand in, for a terminal: on one line, and nothing in it is a command to the terminal."""
    line = re.sub(r"\s*[^\S ]\s*", " ", text.strip())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


NO_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "can't start new thread",
)
"""What libraries say, torch among them, where Python says MemoryError."""


def memory_ran_out(error: BaseException | None) -> str | None:
    """One line about memory that was asked for and not there, if that is what an error or its cause says."""
    while error is not None:
        text = str(error)
        if isinstance(error, MemoryError) or any(words in text.lower() for words in NO_MEMORY):
            what = shortened(printable(text)) or "the machine or a limit set for this process has no more"
            return (
                f"out of memory ({what}): give it more, or lower what grows with the data: data.limit (rows), "
                "partition.clients, method.batch, run.threads"
            )
        error = error.__cause__
    return None


class BadMessage(FedkeelError):
    """Bytes that are not a message of ours, or not the one that was due."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


class UnknownName(FedkeelError, KeyError):
    """A name that does not exist."""

    def __str__(self) -> str:  # a KeyError would put it in quotes
        return str(self.args[0])


def unknown(what: str, got: str, options: Iterable[str]) -> UnknownName:
    """The error for a name that does not exist: suggests the nearest one, else lists what there is."""
    names = sorted(options)
    near = get_close_matches(got, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(names)}"
    return UnknownName(f"unknown {what} {got!r}: {hint}")


class MethodFailed(FedkeelError):
    """A method raised something: the line says which method, where, for which client and in which round."""
