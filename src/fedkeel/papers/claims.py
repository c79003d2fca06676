"""What a paper says, as data: its numbers, each with its figure or table, and the settings it had them with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Setting:
    """What a paper says that a method was run with; ``key`` is the dotted key that fedkeel has for it."""

    method: str
    words: str
    value: str
    key: str


@dataclass(frozen=True)
class Paper:
    title: str
    authors: str
    where: str
    spread: str
    """what its own ± is taken over, in a sentence"""
    settings: Mapping[str, tuple[Setting, ...]]
    """by the section or table that says so"""


@dataclass(frozen=True)
class Claim:
    """One number of a paper: what was measured, for which runs.

    Several partitions: the mean over them. None: the one that ``where`` lets pass, whatever it is called.
    """

    metric: str
    """a key of ``measures.METRICS``"""
    value: float | None
    """None: the paper has no number, but perhaps a mark, ``printed``"""
    std: float | None = None
    method: str = field(kw_only=True)
    """as a recipe writes it; of a number of personal models what they were made with"""
    partitions: tuple[str, ...] = field(kw_only=True)
    where: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """dotted keys that a run must have to be set beside it, or ``dataset``; a tuple: any of these values"""
    setting: str = field(default="", kw_only=True)
    """the same in words"""
    against: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """decline: the dotted keys in which the reference run differs"""
    called: str = field(default="", kw_only=True)
    """what the method is called in this claim, where that is not its name"""
    printed: str = field(default="", kw_only=True)
    """what the paper has instead of a number, such as ✓"""


@dataclass(frozen=True)
class Averaged:
    """Curves of a figure: of each method the mean over some partitions round by round, beside the IID run."""

    what: Literal["retained", "accuracy"]
    methods: tuple[str, ...]
    """as a recipe writes them"""
    partitions: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A figure or table of a paper."""

    name: str
    title: str
    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()
    by: str | None = None
    """a bar plot: what its bars differ in, "method", "partition" or a dotted key"""
    wide: bool = False
    """a table whose columns are metrics"""
    averaged: Averaged | None = None
    """curves that are drawn of our runs"""
