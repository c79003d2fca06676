"""How far tuned logits f have moved from zero-shot logits z, in structure rather than in confidence.

FedPuReL's temperature-aligned divergence: both are softened or sharpened, row by row, until they are equally sure of
themselves, and only then compared:

    H* = (H(softmax z) + H(softmax f)) / 2,   tau_z: H(softmax(z / tau_z)) = H*,   tau_f: H(softmax(f / tau_f)) = H*
    TKL = mean over rows of KL(softmax(z / tau_z) || softmax(f / tau_f))

Entropies and temperatures carry no gradient. They are found by bisection on [0.05, 20] with 20 halvings, as in the
released code; all rows at once.
"""

from __future__ import annotations

from typing import Literal

import torch

from fedkeel.core.tree import Tensor

Alignment = Literal["tkl", "kl"]
LOWEST, HIGHEST, HALVINGS = 0.05, 20.0, 20


def entropy(logits: Tensor) -> Tensor:
    """Of the softmax, by natural logarithm, one number per row."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def temperature(logits: Tensor, target: Tensor) -> Tensor:
    """The temperature of each row at which its entropy is the target: entropy grows with it."""
    low, high = torch.full_like(target, LOWEST), torch.full_like(target, HIGHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = entropy(logits / middle.unsqueeze(-1)) > target
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


def temperatures(z: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """(tau_z, tau_f) that give both the mean of their entropies."""
    target = (entropy(z) + entropy(f)) / 2
    found = temperature(torch.cat([z, f]), torch.cat([target, target]))
    return found[: len(z)], found[len(z) :]


def divergence(z: Tensor, f: Tensor, kind: Alignment) -> Tensor:
    """One number per row."""
    with torch.no_grad():
        log_p, log_q, _ = _both(z, f, kind)
        return (log_p.exp() * (log_p - log_q)).sum(-1)


def pull(z: Tensor, f: Tensor, kind: Alignment) -> Tensor:
    """The gradient of each row's divergence by its logits f: (softmax(f / tau_f) - softmax(z / tau_z)) / tau_f."""
    with torch.no_grad():
        log_p, log_q, tau = _both(z, f, kind)
        return (log_q.exp() - log_p.exp()) / tau


def _both(z: Tensor, f: Tensor, kind: Alignment) -> tuple[Tensor, Tensor, Tensor]:
    """(log p of zero-shot, log p of the model, temperature of the model)"""
    if kind == "kl":
        return z.log_softmax(-1), f.log_softmax(-1), torch.ones(len(f), 1)
    tau_z, tau_f = (tau.unsqueeze(-1) for tau in temperatures(z, f))
    return (z / tau_z).log_softmax(-1), (f / tau_f).log_softmax(-1), tau_f
