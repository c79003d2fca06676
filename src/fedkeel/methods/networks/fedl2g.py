"""FedL2G: clients share nothing but vectors that guide their training, learnt so that the guidance helps.

Zhang, Liu, Hua, Cao, Yang, FedL2G: Learning to Guide Local Training in Heterogeneous Federated Learning, arXiv
2410.06490, in the space of logits (FedL2G-l). The server holds a vector G_c for every class. A client's model theta is
its own as a whole and is trained on
    L(theta; G) = cross-entropy + mean squared error between the logits of a row and G_y.
With a study batch and a quiz batch of other rows the client then finds what G does to it,
    theta' = theta - eta grad_theta L_study(theta; G),   d_c = grad_{G_c} cross-entropy_quiz(theta'),
and sends d. The server takes the mean of d_c over the clients that have class c, and a step G_c <- G_c - eta_s d_c. In
the first rounds, the warm-up, only G is learnt.

Models are never averaged, so what is shared is no model by itself. Our choices: study and quiz are the halves of a
batch, d is the mean over one pass, and no rows are kept from training for the quiz, as the paper does; theta' is a
plain step with eta = 0.01, batch norms in evaluation; G starts normal, models start alike; eta_s and the length of
the warm-up. Which classes have a d_c tells the server which ones a client holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fedkeel.core.method import Batch, Phase, State, Task, Update, Visit, register
from fedkeel.core.optim import SGD
from fedkeel.core.rng import generator
from fedkeel.core.tree import NETWORK, Tensor, Tree, learnt, select
from fedkeel.methods.networks.base import Network, copied, halves
from fedkeel.models.losses import softmax_rows
from fedkeel.rows.inputs import Inputs

GUIDE = "guide.logits"
GUIDES = ("guide.",)


@register("fedl2g", paper="learnt vectors guide models that are never averaged (Zhang et al., arXiv 2410.06490)")
class FedL2G(Network):
    common: ClassVar[bool] = False

    warmup: int = Field(1, ge=0)
    """first rounds, in which only the guiding vectors are learnt"""
    inner_lr: float = Field(0.01, gt=0)
    """eta"""
    server_lr: float = Field(1.0, gt=0)
    """eta_s; 10 and more make the vectors grow without end on coloured-digits"""

    @model_validator(mode="after")
    def trains_models(self) -> FedL2G:
        if self.warmup >= self.rounds:
            found = f"warmup = {self.warmup} of rounds = {self.rounds}"
            raise PydanticCustomError("warmup", f"{found} leaves no round that trains models: lower warmup")
        return self

    def start(self, task: Task) -> State:
        guide = generator(task.seed, "guide").normal(size=(task.classes, task.classes))
        return State({GUIDE: torch.from_numpy(guide).float()}, super().start(task).shared)

    @property
    def first_visit(self) -> tuple[str, ...]:
        return NETWORK

    def private(self, down: Tree) -> Tree:
        return copied(select(down, self.first_visit))

    def plan(self, round: int) -> list[Phase]:
        guide = self.phase("guide", GUIDES, GUIDES, gets=GUIDES, each=GUIDES, epochs=1, optim=SGD(1.0))
        if round <= self.warmup:
            return [guide]
        return [self.phase("train", NETWORK, gets=GUIDES), replace(guide, cohort="same")]

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        if GUIDE not in params:
            return self.guided(params, visit.down[GUIDE], batch)
        study, quiz = halves(batch)
        guide = visit.down[GUIDE] + (params[GUIDE] - params[GUIDE].detach())  # every step at the G that came down
        theta = {name: value.clone().requires_grad_() for name, value in learnt(visit.mine).items()}
        whole = {**visit.mine, **theta}
        grads = torch.autograd.grad(self.guided(whole, guide, study), list(theta.values()), create_graph=True)
        after = {name: w - self.inner_lr * grad for (name, w), grad in zip(theta.items(), grads, strict=True)}
        return self.network.cross_entropy({**whole, **after}, quiz)

    def guided(self, tree: Tree, guide: Tensor, batch: Batch[Tensor | Inputs]) -> Tensor:
        """L(theta; G) on one batch."""
        logits = self.network.logits(tree, batch.x)
        return batch.mean(softmax_rows(logits, batch.y) + (logits - guide[batch.y]).square().mean(1))

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        """With steps of 1 the vectors moved by minus the sum of all d."""
        sends, mine = super().end(params, steps, visit)
        return {name: -moved / steps for name, moved in sends.items()}, mine

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        d = update.each[GUIDE]
        holders = (d != 0).any(2).sum(0).clamp(min=1).unsqueeze(1)
        return replace(state, shared={GUIDE: state.shared[GUIDE] - self.server_lr * d.sum(0) / holders})
