"""What every source of rows has: the settings they share, and the function that reads the rows."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from fedkeel.core.errors import FedkeelError
from fedkeel.core.registry import Registry
from fedkeel.core.settings import Open
from fedkeel.data.dataset import Dataset
from fedkeel.data.presence import Lack, lack_of_marks, lack_of_path

SOURCES: Registry[Source] = Registry("source", "fedkeel.data.sources")
EMBEDDED = Path(__file__).parents[1] / "embedded"
"""Packs that come with fedkeel."""
AUTO = "auto"
Empty = Literal["error", "drop"]
TEXT = "text"
"""What the column of texts is called, unless the user says otherwise."""


class Source(Open):
    """Base of all sources. A source gives ``read``."""

    registry: ClassVar[Registry[Any]] = SOURCES
    naming: ClassVar[str] = "source"
    usual: ClassVar[str] = "newsgroups20"
    spellings: ClassVar[Mapping[str, str]]
    """How ``source`` may be written, such as npz:FILE, with one line about each for lists."""
    by_content: ClassVar[bool] = False
    """Whether what stands after the colon is a fingerprint of the rows: then they cannot change under it."""
    general: ClassVar[bool] = False
    """Whether it reads any dataset of its format: then what stands after the colon says which one it is."""

    marks: ClassVar[tuple[str, ...]] = ()
    """Files or folders of which a downloaded dataset has one, in its folder or in a folder there."""

    source: str
    """newsgroups20, digits, digits5, coloured-digits, cifar10, npz:FILE, csv:FILE, images:FOLDER, table:FILE.csv,
    hf:ID-or-folder or a dataset as it is downloaded, such as cifar100:FOLDER: fedkeel list sources has all of them"""
    encoder: str = "auto"
    """auto (what the source names), none, pixels, minilm, efficientnet-lite0, hf:ID-or-folder or random:NAME"""
    pooling: Literal["auto", "cls", "mean", "pooled"] = "auto"
    """which output of an hf: encoder is the feature"""
    features: Literal["centred", "l2", "raw"] = "centred"
    """centred: minus the federation's mean, then unit length; l2: unit length; raw: as encoded"""
    dtype: Literal["float16", "float32"] = "float16"
    """how the cache stores features"""
    limit: int | None = Field(None, ge=1)
    """use at most this many training rows (a stratified, keyed sample) and as large a share of the test rows"""
    holdout: float = Field(0.2, gt=0, lt=1)
    """share of rows kept for testing where the source brings no test rows"""
    duplicates: Literal["keep", "drop"] = "keep"
    """of test rows that are training rows as well: keep the training copies, or drop them; the test rows stay"""
    class_names: str | None = None
    """text file of what to call the classes: one name in each line, in the order of the labels, or an old name, a tab
    and the new one, for those that are to be called otherwise"""
    cache: str | None = None
    """folder of the feature cache; by default the user's cache folder"""

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        name, _, rest = self.source.partition(":")
        if not rest and name not in self.spellings:
            raise FedkeelError(f"source {self.source!r} needs to say which: {next(iter(self.spellings))}")
        if rest and not any(":" in spelling for spelling in self.spellings):
            raise FedkeelError(f"source {self.source!r}: {name} takes nothing after it")
        return self

    @property
    def reference(self) -> str:
        """What stands after the colon."""
        return self.source.partition(":")[2]

    @property
    def path(self) -> Path:
        """The file or folder that stands after the colon."""
        return Path(self.reference).expanduser()

    @property
    def dataset(self) -> str:
        """What its dataset is called, wherever it lies: cifar10 of cifar10:FOLDER, owner/name of hf:owner/name."""
        name, _, rest = self.source.partition(":")
        return rest if self.general else name

    def missing(self) -> Lack | None:
        """What it names that is not here, as far as that can be told without reading."""
        if not self.reference or self.by_content:
            return None
        return lack_of_path(self.path) or (lack_of_marks(self.path, self.marks) if self.marks else None)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """All rows, as far as the source is whole; ``notice`` is told what takes long."""
        raise NotImplementedError


class Texts(Source):
    """A source that may hold texts."""

    text_column: str = TEXT
    """the column of texts, in the source and in a CSV file of new rows to predict"""
    separator: str = AUTO
    """what stands between the columns of a CSV file: auto (a comma, semicolon, tab or bar, as its first lines say), or
    one character, or tab"""
    encoding: str = AUTO
    """of a CSV file: auto (UTF-8, or what a mark at its start says), or any that Python knows, e.g. cp1252"""
    empty: Empty = "error"
    """rows of a CSV file with empty cells, in columns that are read: error (they are told), drop (they are left out)"""

    @field_validator("separator")
    @classmethod
    def _one_character(cls, text: str) -> str:
        mark = "\t" if text == "tab" else text
        if text != AUTO and (len(mark) != 1 or mark in '"\r\n'):
            raise ValueError("expected auto, tab or one character such as ;")
        return mark

    @field_validator("encoding")
    @classmethod
    def _known(cls, text: str) -> str:
        try:
            return text if text == AUTO else codecs.lookup(text).name
        except (LookupError, ValueError):
            raise ValueError("expected auto or an encoding that Python knows, such as utf-8, cp1252, latin-1") from None


class Columns(Texts):
    """A source whose columns have names."""

    label_column: str = "label"
    """the class of a row; of a csv or table also several columns of ones and zeros, with commas: its class is the one
    that has a one"""
    client_column: str = "client"
    attribute_column: str = "attribute"
    """what else is known of a row, for partition.kind = spurious; of a csv or table also several columns, with
    commas"""
    superclass_column: str = "superclass"
    """the group that a row's class belongs to, for partition.kind = pachinko"""

    def chosen(self, key: str) -> bool:
        """Whether the user named this column: then it must exist."""
        return bool(getattr(self, key) != type(self).model_fields[key].default)


def cache_folder(data: Source) -> Path:
    """Where features and fetched sources are kept: data.cache, else FEDKEEL_CACHE, else the user's cache folder."""
    chosen = data.cache or os.environ.get("FEDKEEL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedkeel"


Kind = TypeVar("Kind", bound=Source)


def register(spellings: Mapping[str, str]) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator that makes a source known by what stands before the colon in its spellings."""

    def keep(cls: type[Kind]) -> type[Kind]:
        cls.spellings = spellings
        SOURCES[next(iter(spellings)).partition(":")[0]] = cls
        return cls

    return keep
