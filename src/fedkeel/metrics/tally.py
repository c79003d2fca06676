"""Counting right answers where the test rows are: every client sends, class by class, hits and rows, and no more.

What the server adds up is the accuracy on all clients' test rows together, as if they lay in one place. From a client
with a single test row of a class the server learns whether that row was right: add the counts up under secure
aggregation where it must not; the sums are all that it needs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from fedkeel.core.method import AnyMethod, Method, Phase, State, Update, Visit, from_settings
from fedkeel.core.tree import Tensor, Tree, select

TALLY, RIGHT, ROWS = "tally.", "tally.right", "tally.rows"
OWN, TESTED = "tally.own", "tally.tested"
"""The accuracy of the client's own model, and 1 where it has test rows to measure that on."""


class Tally(Method[Any]):
    """Not registered: it looks at the model of another method and changes nothing."""

    name = "tally"
    of: dict[str, Any]
    """the [method] section of the method whose model is tested"""
    classes: int

    @cached_property
    def base(self) -> AnyMethod:
        return from_settings(self.of)

    @property
    def first_visit(self) -> tuple[str, ...]:
        return self.base.first_visit

    def asking(self, state: State) -> State:
        """The model as a state of this method, with empty counts."""
        return State(state.shared, {**select(state.server, self.base.first_visit), **self.nothing()})

    def nothing(self) -> Tree:
        sizes = {RIGHT: self.classes, ROWS: self.classes, OWN: 1, TESTED: 1}
        return {name: torch.zeros(size, dtype=torch.float64) for name, size in sizes.items()}

    def plan(self, round: int) -> list[Phase]:
        return [Phase("tally", sends=(TALLY,), uniform=(TALLY,), cohort="all", epochs=0, on="test", looks=True)]

    def private(self, down: Tree) -> Tree:
        return self.base.private({name: value for name, value in down.items() if not name.startswith(TALLY)})

    def measure(self, x: Any, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        model = State({name: value for name, value in visit.down.items() if not name.startswith(TALLY)})

        def right(mine: Tree) -> Tensor:
            with torch.inference_mode():
                return y[self.base.predict(model, mine, x).argmax(1) == y]

        sends = self.nothing()
        if len(y):
            sends |= {ROWS: self.count(y), TESTED: torch.ones(1).double()}
            sends |= {RIGHT: self.count(right({}))} if self.base.common else {}
            sends |= (
                {OWN: torch.tensor([len(right(visit.mine)) / len(y)], dtype=torch.float64)}
                if self.base.personal
                else {}
            )
        return sends, {}

    def count(self, labels: Tensor) -> Tensor:
        return torch.bincount(labels, minlength=self.classes).double()

    def sums(self, update: Update | None) -> dict[str, Any]:
        """Over all clients that answered: as if their test rows lay in one place; own models as a mean over clients."""
        mean, heard = (self.nothing(), 0) if update is None else (update.mean, len(update.clients))
        right, rows = ((heard * mean[name]).round().tolist() for name in (RIGHT, ROWS))
        personal = float(mean[OWN] / mean[TESTED]) if self.base.personal and float(mean[TESTED]) else None
        accuracy = sum(right) / max(1.0, sum(rows)) if self.base.common else personal or 0.0
        return {"accuracy": accuracy, "personal": personal, "right": right, "rows": rows}
