"""Rows that are at real sites: a server never reads them, so its configuration names the contract instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.sources.base import Texts, register

PREFIX = "sites:"


@register({f"{PREFIX}CONTRACT": "rows at real sites, which nobody reads here: fedkeel deploy init"})
class AtSites(Texts):
    by_content: ClassVar[bool] = True
    general: ClassVar[bool] = True

    def read(self, notice: Callable[[str], None]) -> Dataset:
        raise FedkeelError(
            f"data.source = {self.source!r}: the rows are at the sites of a contract and stay there; fedkeel server "
            "DIR runs it, and fedkeel site site.toml each site"
        )
