"""What heads that are computed, not trained, share: every client is visited once and sends sums over its rows.

The server adds the sums up (they never go down) and computes the head from them, so the model after a round is that of
all clients heard so far, pooled: any partition, order and participation give the same, and a client that joins late
just adds in. With participation p everybody has been heard after 1 / p rounds; rounds after that are idle.

What leaks: the sums tell the server how many rows of each class a client has; of a class with a single row, the sum is
that row's feature. Add them under secure aggregation where the server must not know: the mean is all it needs.
"""

from __future__ import annotations

from fedkeel.core.method import Method, Phase, Rounds, State, Update
from fedkeel.core.tree import Tensor, Tree, select
from fedkeel.methods.heads.base import logits

SUMS = "sum."
# Sums grow with the rows, so they may be far longer than the step of a trained head.
ONCE = Phase("sums", sends=(SUMS,), gets=(), uniform=(SUMS,), cohort="once", epochs=0, sums=True)


class ClosedForm(Method[Tensor]):
    """A method adds ``init`` with empty sums in the server's tree, ``measure`` and ``head``."""

    rounds: Rounds = 1
    """every client is visited once; with participation p that takes 1 / p rounds"""

    def plan(self, round: int) -> list[Phase]:
        return [ONCE]

    def head(self, sums: Tree) -> Tree:
        """The head of all rows in the sums."""
        raise NotImplementedError

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        heard = len(update.clients)  # the mean counts every client alike, so this makes it a sum again
        sums = {name: value + heard * update.mean[name] for name, value in select(state.server, (SUMS,)).items()}
        return State({**state.shared, **self.head(sums)}, {**state.server, **sums})

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        return logits(state.shared, x)
