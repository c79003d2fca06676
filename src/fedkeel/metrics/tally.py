"""Counting right answers where the test rows are: every client sends, class by class, hits and rows, and no more.

What the server adds up is the accuracy on all clients' test rows together, as if they lay in one place. From a client
with a single test row of a class the server learns whether that row was right: add the counts up under secure
aggregation where it must not; the sums are all that it needs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.method import Method, Phase, State, Update, Visit, from_settings
from fedkeel.core.tree import Tree, select

TALLY, RIGHT, ROWS, OWN = "tally.", "tally.right", "tally.rows", "tally.own"


class Tally(Method):
    """Not registered: it looks at the model of another method and changes nothing."""

    name = "tally"
    of: dict[str, Any]
    """the [method] section of the method whose model is tested"""
    classes: int

    @cached_property
    def base(self) -> Method:
        return from_settings(self.of)

    def asking(self, state: State) -> State:
        """The model as a state of this method, with empty counts."""
        counts = {name: torch.zeros(self.classes, dtype=torch.float64) for name in (RIGHT, ROWS, OWN)}
        return State(state.shared, {**select(state.server, self.base.first_visit), **counts})

    def plan(self, round: int) -> list[Phase]:
        return [Phase("tally", sends=(TALLY,), uniform=(TALLY,), cohort="all", epochs=0, on="test")]

    def private(self, down: Tree) -> Tree:
        return self.base.private(down)

    def measure(self, x: Any, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        model = State({name: value for name, value in visit.down.items() if not name.startswith(TALLY)})

        def right(mine: Tree) -> Tensor:
            with torch.inference_mode():
                return y[self.base.predict(model, mine, x).argmax(1) == y]

        common = right({}) if self.base.common and len(y) else y[:0]
        own = right(visit.mine) if self.base.personal and len(y) else y[:0]
        labels = {RIGHT: common, ROWS: y, OWN: own}
        return {name: torch.bincount(of, minlength=self.classes).double() for name, of in labels.items()}, {}

    def sums(self, update: Update | None) -> dict[str, Any]:
        """Over all clients that answered."""
        mean = update.mean if update is not None else {name: torch.zeros(self.classes) for name in (RIGHT, ROWS, OWN)}
        heard = 0 if update is None else len(update.clients)
        right, rows, own = ((heard * mean[name]).round().tolist() for name in (RIGHT, ROWS, OWN))
        total = max(1.0, sum(rows))
        personal = sum(own) / total if self.base.personal else None
        accuracy = sum(right) / total if self.base.common else personal or 0.0
        return {"accuracy": accuracy, "personal": personal, "right": right, "rows": rows}
