"""Mistakes a user can mend, each told in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedkeelError(Exception):
    """One line that says who, what, got, expected and what to do; the command ends with exit code 2."""


class Stopped(FedkeelError):
    """The user pressed Ctrl-C; the line says how to go on."""


LONGEST = 300


def shortened(text: str) -> str:
    """Of a text that others had a hand in, no more than fits a record."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


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
