"""The clients that the data name themselves."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.splits.base import Pool, Split, register


@register("the clients named in the data's own client column")
class Column(Split):
    """``clients`` has no use here: the data say how many there are."""

    test_splits: ClassVar[tuple[str, ...]] = ()
    kind: Literal["column"] = "column"

    def names(self, dataset: Dataset) -> tuple[str, ...]:
        if dataset.train_client is None:
            raise FedkeelError(
                f"partition.kind = 'column' but {dataset.name} names no clients: add a client column to the data "
                "(data.client_column says its name; in an npz file the array client) or choose another kind"
            )
        return tuple(np.unique(dataset.train_client.astype(str)).tolist())

    def owners(self, pool: Pool) -> np.ndarray:
        assert pool.client is not None  # names() has told the user already
        return np.searchsorted(self.names(pool.dataset), pool.client.astype(str))

    def tested(self, train: Pool, test: Pool) -> np.ndarray | None:
        """As the data say, unless a share of the client's own rows was asked for."""
        if test.client is None or self.test:
            return None
        strangers = sorted(set(test.client.astype(str).tolist()) - set(self.names(test.dataset)))
        if strangers:
            raise FedkeelError(
                f"{test.dataset.name}: the test rows name {len(strangers)} client(s) without training rows, "
                f"such as {strangers[0]!r}; give them training rows or take them out"
            )
        return self.owners(test)

    def told(self) -> dict[str, Any]:
        return {key: value for key, value in super().told().items() if key != "clients"}
