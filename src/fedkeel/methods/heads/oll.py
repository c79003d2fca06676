"""Only Local Labels: the federation's ridge head for everybody, cut down to a client's own classes for the client.

Fanì, Camoriano, Caputo, Ciccone, Resource-Efficient Personalization in Federated Learning with Closed-Form Classifiers,
IEEE Access 13, 2025, Fed3R + OLL without fine-tuning: the personal head of client k has the rows of W* whose classes k
holds, so that nothing is mistaken for a class the client does not know.

Nothing is trained. After the last round the head goes down to everybody; which classes a client keeps of it is private
state, though the class counts it sent for the ridge head say the same (see closed_form.py on what leaks).
"""

from __future__ import annotations

import torch

from fedkeel.core.method import Phase, State, Visit, register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.ncm import NEVER
from fedkeel.methods.heads.ridge import Ridge

ABSENT = "own.absent"


@register("oll", paper="Only Local Labels: the ridge head, cut down to each client's classes (Fanì et al., 2025)")
class OLL(Ridge):
    personal = True

    def plan(self, round: int) -> list[Phase]:
        tell = Phase("tell-head", gets=("head.",), cohort="all", epochs=0)
        phases = super().plan(round)
        return [*phases, tell] if round == self.rounds else phases

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends = super().measure(x, y, visit)[0] if visit.phase.sends else {}
        return sends, {ABSENT: torch.where(visit.counts > 0, 0.0, NEVER)}

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        everything = super().predict(state, mine, x)
        return everything + mine[ABSENT] if mine else everything
