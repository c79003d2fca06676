"""Fed-GraB's gradient balancer: at the logits, what pulls a class up and what pushes it down come to the same sum.

Xiao et al., Fed-GraB: Federated Long-tailed Learning with Self-Adjusting Gradient Balancer, NeurIPS 2023, with the
constants of the released code. The loss is the binary cross-entropy of q = sigmoid(z), summed over classes, mean over
rows. Its gradient at the logits is reweighted, class by class, by a PID controller:

    g_c = w_c (q_c - 1[y = c]) / rows,   w_c = m(u_c) for rows of class c and m(-u_c) for all others
    e_c <- e_c + sum of |g_c| over other rows - sum of |g_c| over rows of class c        (over all steps so far)
    u_c <- u_c + K_P (e - e') + K_I e + K_D (e - 2 e' + e''),   K_P = 10, K_I = 0.01, K_D = 0.1
    m(x) = (10 / 9) / (1 / 9 + exp(-x / 2)) = 10 sigmoid(x / 2 - log 9),   m(0) = 1, between 0 and 10

with e' and e'' the errors one and two steps ago. A rare class is pushed down by everybody else's rows: its error grows,
and with it the weight of its own rows.

Our choices. Every class has a balancer, as in the released script; the paper picks tail classes by a prior analyser. No
balancer is switched off at random. u is not clipped: the released clip has no effect, and m saturates. A client's
controllers stay with it and go on from visit to visit and from phase to phase. How FedPuReL's tables put the balancer
on top of another method is not said: here it takes the place of the cross-entropy on that method's logits.
"""

from __future__ import annotations

import math

import torch

from fedkeel.core.method import Batch
from fedkeel.core.tree import STATS, Tensor, Tree
from fedkeel.models.losses import binary_residual, one_hot
from fedkeel.rows.items import Items

PROPORTIONAL, INTEGRAL, DERIVATIVE = 10.0, 0.01, 0.1
CONTROL, ERROR, BEFORE = f"{STATS}grab.u", f"{STATS}grab.error", f"{STATS}grab.before"
"""u, e' and e'' of every class. No optimizer touches them: ``balanced`` moves them."""


def fresh(classes: int) -> Tree:
    """The controllers of a client before its first step."""
    return {name: torch.zeros(classes) for name in (CONTROL, ERROR, BEFORE)}


def weight(u: Tensor) -> Tensor:
    """m"""
    return 10 * torch.sigmoid(u / 2 - math.log(9))


def balanced_gradient(logits: Tensor, params: Tree, batch: Batch[Items]) -> Tensor:
    """g (rows, classes) with the weights as they stand; then the controllers take their step, in place."""
    with torch.no_grad():
        u, last, before = params[CONTROL], params[ERROR], params[BEFORE]
        own = one_hot(logits, batch.y)
        gradient = binary_residual(logits, batch.y, batch.weight.unsqueeze(-1))
        gradient *= own * weight(u) + (1 - own) * weight(-u)
        error = last + ((1 - 2 * own) * gradient.abs()).sum(0)
        u += PROPORTIONAL * (error - last) + INTEGRAL * error + DERIVATIVE * (error - 2 * last + before)
        before.copy_(last)
        last.copy_(error)
        return gradient


def balanced(logits: Tensor, params: Tree, batch: Batch[Items]) -> Tensor:
    """A number whose gradient by the logits is the balanced one. As a value it means nothing."""
    return (logits * balanced_gradient(logits, params, batch)).sum()
