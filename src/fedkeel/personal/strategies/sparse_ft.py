"""Sparse FT: only the weights that matter most to the client's loss are tuned.

LP-FT (arXiv 2511.12695), Appendix B.3, after SNIP (Lee, Ajanthan, Torr, ICLR 2019): the score of a weight is |g w|, g
the gradient of the loss on all the client's rows at the global model. Scores of all convolutions and linear layers
together are ranked; the gradients of the lowest share, ``sparsity``, are masked: these weights stay as they are.

Our choices, after the code base of the same authors: sparsity 0.9; biases and batch norms have no score and are tuned.
The paper's "regularization coefficient 0.001" has no counterpart: nothing says what it multiplies.
"""

from __future__ import annotations

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from fedkeel.core.method import Batch, Phase, Visit
from fedkeel.core.tree import Tensor, Tree, learnt, put, select
from fedkeel.personal.strategy import Strategy, register
from fedkeel.rows.inputs import Inputs

MASK = "mask."


@register("sparse-ft", paper="only the weights with the largest |gradient x weight| are tuned (SNIP, ICLR 2019)")
class SparseFT(Strategy):
    sparsity: float = Field(0.9, ge=0, lt=1)
    """share of the weights that stay; 0 = ft"""

    @field_validator("weight_decay")
    @classmethod
    def no_decay(cls, value: float) -> float:
        if value:
            raise PydanticCustomError("decay", "weight decay would move the weights that sparse-ft keeps: use 0")
        return value

    def plan(self, round: int) -> list[Phase]:
        return [Phase("score", cohort="all", epochs=0), *super().plan(round)]

    def measure(self, x: Tensor | Inputs, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        scores = self.scores_of(visit.down, x, y)
        flat = torch.cat([score.flatten() for score in scores.values()])
        stays = int(self.sparsity * flat.numel())
        threshold = flat.kthvalue(stays).values if stays else flat.new_tensor(-1.0)
        return {}, put(MASK, {name: (score > threshold).float() for name, score in scores.items()})

    def scores_of(self, tree: Tree, x: Tensor | Inputs, y: Tensor) -> Tree:
        """|g w| of every weight with at least two dimensions."""
        assert self.batch is not None
        weights = {
            name: value.clone().requires_grad_()
            for name, value in learnt(select(tree, self.full)).items()
            if value.ndim > 1
        }
        for first in range(0, len(y), self.batch):
            part = slice(first, first + self.batch)
            share = torch.full((len(y[part]),), 1 / len(y))
            loss = self.network.cross_entropy({**tree, **weights}, Batch(x[part], y[part], share, torch.empty(0)))
            loss.backward()  # type: ignore[no-untyped-call]  # adds up over the parts
        return {
            name: torch.zeros_like(value) if value.grad is None else (value.grad * value).abs().detach()
            for name, value in weights.items()
        }

    def adjust(self, grads: Tree, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tree:
        masks = visit.mine
        return {name: grad * masks[MASK + name] if MASK + name in masks else grad for name, grad in grads.items()}
