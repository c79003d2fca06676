"""Losses of logits and labels, each with its gradient in closed form.

``rows`` functions give one loss per row, ``residual`` functions its gradient with respect to the logits. Labels have
the shape of the logits without the last axis, so a stack of clients is just one more axis in front.
"""

from __future__ import annotations

import torch

from fedkeel.core.tree import Tensor


def one_hot(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.zeros_like(logits).scatter(-1, labels.unsqueeze(-1), 1.0)


def softmax_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p_y with p = softmax(z)."""
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def softmax_residual(logits: Tensor, labels: Tensor) -> Tensor:
    """p - 1[y = c]."""
    return logits.softmax(-1).scatter_add_(-1, labels.unsqueeze(-1), logits.new_full((*labels.shape, 1), -1.0))


def binary_rows(logits: Tensor, labels: Tensor, keep: Tensor | float = 1.0) -> Tensor:
    """Sum over classes c of -log q_y for c = y and -log(1 - q_c) otherwise, q = sigmoid(z), over the kept entries."""
    entries = torch.nn.functional.binary_cross_entropy_with_logits(logits, one_hot(logits, labels), reduction="none")
    return (entries * keep).sum(-1)


def binary_residual(logits: Tensor, labels: Tensor, keep: Tensor | float = 1.0) -> Tensor:
    """(q_c - 1[y = c]) on the kept entries."""
    ones = logits.new_full((*labels.shape, 1), -1.0)
    return logits.sigmoid().scatter_add_(-1, labels.unsqueeze(-1), ones).mul_(keep)
