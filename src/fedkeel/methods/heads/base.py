"""What all linear heads on frozen features share: h(x) -> W h(x), with a bias if asked for, trained from zero.

A method adds ``rows``, its loss per row as a function of the logits, and, to be fast, ``residual``, the gradient of
that loss with respect to the logits. Engines use grad W = residual^T x, grad b = sum of residual, and no autograd.
"""

from __future__ import annotations

import torch

from fedkeel.core.method import Batch, Phase, State, Task, Trained, Visit
from fedkeel.core.tree import HEAD, Tensor, Tree

WEIGHT, BIAS = "head.weight", "head.bias"


class LinearProbe(Trained[Tensor]):
    bias: bool = False
    """a bias is a feature that all rows share: under label skew it drifts as an uncentred mean does"""

    @property
    def tuned(self) -> tuple[str, ...]:
        """Prefixes of what is trained and averaged."""
        return (HEAD,)

    @property
    def levels(self) -> int:
        """So many evenly spaced draws stand for all of them, where the expectation over them is measured."""
        return 100

    def start(self, task: Task) -> State:
        head = no_head(task.dim, task.classes)
        return State(head if self.bias else {WEIGHT: head[WEIGHT]})

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", self.tuned, self.tuned)]

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        """The loss of each row; works on a stack of clients as well as on one."""
        raise NotImplementedError

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        """d rows / d logits; works on a stack of clients as well as on one. A closed form is faster than this one."""
        gradient: Tensor = torch.func.grad(lambda z: self.rows(z, batch, visit).sum())(logits)
        return gradient

    @property
    def in_closed_form(self) -> bool:
        """Whether the gradient is that of ``rows`` by the head alone, so that ``residual`` gives it."""
        return type(self).loss is LinearProbe.loss

    def loss(self, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return batch.mean(self.rows(logits(params, batch.x), batch, visit))

    def predict(self, state: State, mine: Tree, x: Tensor) -> Tensor:
        return logits(state.shared, x)


def logits(head: Tree, x: Tensor) -> Tensor:
    """One row per row of x; of a stack of heads if both are stacked."""
    scores = x @ head[WEIGHT].mT
    return scores + head[BIAS].unsqueeze(-2) if BIAS in head else scores


def no_head(dim: int, classes: int) -> Tree:
    """A head of zeros."""
    return {WEIGHT: torch.zeros(classes, dim), BIAS: torch.zeros(classes)}


def per_class(values: Tensor, head: Tensor) -> Tensor:
    """One value per class, shaped to multiply the head's weight or bias."""
    return values.reshape(-1, *[1] * (head.ndim - 1))
