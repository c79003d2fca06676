"""What every kind of rows is, so that nobody has to ask which kind there is: features, inputs, items of two towers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self, TypeVar

from fedkeel.core.tree import Tensor

X_co = TypeVar("X_co", covariant=True)


class Picks(Protocol):
    """What a method reads: rows that can be counted and picked among, such as a tensor."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: Tensor | slice, /) -> Self: ...


class Rows(Protocol[X_co]):
    """Rows of a client, of some or of all: picked, never copied unless that is cheap. A method reads them as an X."""

    def __len__(self) -> int: ...

    @property
    def dim(self) -> int:
        """How many features a row has, or would have once it is encoded."""
        ...

    @property
    def reader(self) -> object:
        """What a method starts from besides numbers: the network or the towers that read the rows, or None."""
        ...

    @property
    def tensor(self) -> Tensor | None:
        """All rows as one tensor, where they are one: then an engine may stack clients."""
        ...

    def pick(self, index: Tensor) -> Self:
        """The rows at these places."""
        ...

    def read(self) -> X_co:
        """What a method reads."""
        ...

    def following(self, moves: bool) -> Self:
        """The same; whether the statistics of a network's batch norms follow these rows when they are encoded."""
        ...

    def parts(self, size: int) -> Iterator[Self]:
        """In order, so many at a time."""
        ...

    def beside(self, other: Self) -> Self:
        """The same, read by the network that reads the others."""
        ...

    def twin(self) -> Self:
        """The same for another thread: with a network of its own where rows are read by one."""
        ...
