"""Co-teaching: two heads that choose each other's rows, for noisy labels.

Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama, Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy
Labels, NeurIPS 2018, Algorithm 1. Of every batch each head learns from the share R(T) of rows on which its peer's loss
is smallest, the ones likely to be labelled rightly:
    R(T) = 1 - min(T / T_k * tau, tau),   tau the share of wrong labels, T_k = 10.

Our choices: T is the round, where the paper counts epochs, and tau = 0.2; of a batch R(T) times its rows are kept, as
the nearest whole number, at least one. Both heads are averaged by rows; the first one predicts. They differ by their
start, normal with deviation 0.01, and by nothing else: from zero they would be one head.

Small loss means a right label only next to rows of other classes: a client that holds a single class is refused.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Batch, State, Task, Visit, register
from fedkeel.core.rng import generator
from fedkeel.core.roster import Enrolment
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.heads.base import LinearProbe, logits
from fedkeel.models.losses import softmax_rows

FIRST, PEER = "head.", "head.peer."
START = 0.01


@register("co-teaching", paper="two heads choose each other's small-loss rows (Han et al., NeurIPS 2018)")
class CoTeaching(LinearProbe):
    forget: float = Field(0.2, ge=0, lt=1)
    """tau: share of the rows that is left out in the end; the share of wrong labels, if known"""
    warmup: int = Field(10, ge=1)
    """T_k: rounds until that share is reached"""

    def check(self, enrolment: Enrolment) -> None:
        super().check(enrolment)
        single = np.flatnonzero(enrolment.kinds == 1)
        if len(single):
            raise FedkeelError(
                f"client {enrolment.names[single[0]]!r} holds rows of one class only ({len(single)} such clients): "
                "co-teaching compares the losses of different classes; take another partition, e.g. iid or shard-2, or "
                "method"
            )

    def start(self, task: Task) -> State:
        start = super().start(task).shared
        heads = {prefix + name.removeprefix(FIRST): value for prefix in (FIRST, PEER) for name, value in start.items()}
        return State({name: drawn(task.seed, name, value) for name, value in heads.items()})

    def remembered(self, round: int) -> float:
        """R(T)."""
        return 1 - min(round / self.warmup * self.forget, self.forget)

    def loss(self, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tensor:
        first = softmax_rows(logits(params, batch.x), batch.y)
        peer = softmax_rows(logits(peer_of(params), batch.x), batch.y)
        share = self.remembered(visit.round)
        return (first * smallest(peer, batch, share) + peer * smallest(first, batch, share)).sum()


def drawn(seed: int, name: str, like: Tensor) -> Tensor:
    start = generator(seed, "co-teaching", name).normal(scale=START, size=tuple(like.shape))
    return torch.from_numpy(start).to(like.dtype)


def peer_of(params: Tree) -> Tree:
    """The second head, under the names of a head."""
    return {FIRST + name.removeprefix(PEER): value for name, value in params.items() if name.startswith(PEER)}


def smallest(losses: Tensor, batch: Batch[Tensor], share: float) -> Tensor:
    """Weights that average over the given share of the real rows, those with the smallest losses."""
    real = batch.weight > 0
    rank = losses.detach().where(real, torch.inf).argsort(stable=True).argsort()
    kept = (share * real.sum() + 0.5).floor().clamp(min=1)
    return (rank < kept) / kept
