"""Rows that were encoded before: a tensor with a row of features for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedkeel.core.tree import Tensor


@dataclass(frozen=True)
class Features:
    tensor: Tensor

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def dim(self) -> int:
        return self.tensor.shape[1]

    @property
    def reader(self) -> None:
        return None

    def pick(self, index: Tensor) -> Features:
        return Features(self.tensor[index])

    def read(self) -> Tensor:
        return self.tensor

    def following(self, moves: bool) -> Features:
        return self

    def parts(self, size: int) -> Iterator[Features]:
        return (Features(self.tensor[first : first + size]) for first in range(0, len(self), size))

    def beside(self, other: Features) -> Features:
        return self

    def twin(self) -> Features:
        return self
