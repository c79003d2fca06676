"""APFL: a client's model is a mixture of one of its own and the shared one, and it learns how much of each.

Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, arXiv 2003.13461, Algorithm 1. Client i starts at w_i =
w, what came down, and takes in every step, all three at the values before it,
    w_i <- w_i - eta grad f_i(w_i)
    v_i <- v_i - eta alpha_i grad f_i(vbar_i),   vbar_i = alpha_i v_i + (1 - alpha_i) w_i
    alpha_i <- alpha_i - eta <v_i - w_i, grad f_i(vbar_i)>,   kept within [0, 1].
w_i is averaged as in FedAvg; v_i and alpha_i never leave the client, which predicts with vbar_i. The last two steps are
the gradients of f_i(vbar_i) by v_i and alpha_i, so one loss, f_i(w_i) + f_i(vbar_i) with w_i held fixed in the second
part, gives all three.

Our choices: alpha starts at 0.5; it moves by the optimizer of the models, and a step that takes it out of [0, 1] is its
last one of the visit, which ends at that bound; v_i starts at the w that the client is first
visited with; vbar has statistics of batch norms of its own; between visits and in the end it mixes with the w of the
moment.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Visit, register
from fedkeel.core.tree import NETWORK, STATS, Tensor, Tree
from fedkeel.methods.networks.base import OWN, Network
from fedkeel.rows.inputs import Inputs

ALPHA = "alpha"


@register("apfl", paper="a learnt mixture of own and shared model (Deng, Kamani, Mahdavi, arXiv 2003.13461)")
class APFL(Network):
    alpha: float = Field(0.5, ge=0, le=1)
    """share of a client's own model in its mixture, at the start"""
    adaptive: bool = True
    """whether clients learn their alpha"""

    def private(self, down: Tree) -> Tree:
        return {ALPHA: torch.tensor([self.alpha]), **{own(name): value.clone() for name, value in down.items()}}

    def plan(self, round: int) -> list[Phase]:
        moving = (*NETWORK, OWN, *((ALPHA,) if self.adaptive else ()))
        return [self.phase("train", moving, NETWORK)]

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        w = {name: params[name] for name in visit.down}
        fixed = {name: value.detach() for name, value in w.items()}
        vbar = mixture(fixed, {**visit.mine, **params})
        return self.network.cross_entropy(w, batch) + self.network.cross_entropy(vbar, batch)

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends = {name: params[name] - value for name, value in visit.down.items()}
        mine = {name: params.get(name, value) for name, value in visit.mine.items()}
        return sends, {**mine, ALPHA: mine[ALPHA].clamp(0, 1)}

    def predict(self, state: State, mine: Tree, x: Tensor | Inputs) -> Tensor:
        return self.network.predict(mixture(state.shared, mine) if mine else state.shared, x)


def own(name: str) -> str:
    """What a client calls its own version of a tensor; statistics remain some, which no optimizer touches."""
    return f"{STATS}{OWN}{name.removeprefix(STATS)}" if name.startswith(STATS) else OWN + name


def mixture(w: Tree, mine: Tree) -> Tree:
    """vbar; the gradient by alpha is a sum in the order of the names, which a resumed run has in another one."""
    alpha = mine[ALPHA].clamp(0, 1)
    return {
        name: mine[own(name)] if name.startswith(STATS) else alpha * mine[own(name)] + (1 - alpha) * value
        for name, value in sorted(w.items())
    }
