"""What papers have to say of runs: a page leaves room for it, and knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fedkeel.reporting.balance_plots import Served
from fedkeel.reporting.canvas import Picture
from fedkeel.reporting.personalised import Way


@dataclass(frozen=True)
class Commentary:
    """Remarks and figures on the runs of one split or group; each is also told where it stands, for its titles."""

    on_balance: Callable[[Sequence[Served], str], Iterable[str]]
    balance_figures: Callable[[Sequence[Served], str], list[Picture]]
    on_personal: Callable[[Sequence[Way], str], Iterable[str]]


SILENCE = Commentary(lambda *_: (), lambda *_: [], lambda *_: ())
