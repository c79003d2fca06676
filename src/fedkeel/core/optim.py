"""The optimizers clients may use. Each visit starts a new one, so no momentum travels between clients or rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedkeel.core.tree import Tensor

Slots = list[list[Tensor]]
"""An optimizer's memory: for each kind of moment one tensor per parameter."""


@dataclass(frozen=True)
class SGD:
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def torch(self, params: list[Tensor]) -> torch.optim.Optimizer:
        """The same optimizer as PyTorch ships it: the reference."""
        return torch.optim.SGD(params, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def slots(self, params: Sequence[Tensor]) -> Slots:
        return [[torch.zeros_like(param) for param in params]] if self.momentum else []

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor], slots: Slots, step: int) -> None:
        """One update in place; ``step`` counts from 1."""
        for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
            if self.weight_decay:
                grad = grad.add(param, alpha=self.weight_decay)
            if self.momentum:
                grad = slots[0][index].mul_(self.momentum).add_(grad)
            param.sub_(grad, alpha=self.lr)

    step_plain = step


@dataclass(frozen=True)
class AdamW:
    lr: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def torch(self, params: list[Tensor]) -> torch.optim.Optimizer:
        """The same optimizer as PyTorch ships it: the reference."""
        return torch.optim.AdamW(
            params, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, weight_decay=self.weight_decay
        )

    def slots(self, params: Sequence[Tensor]) -> Slots:
        return [[torch.zeros_like(param) for param in params] for _ in range(2)]

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor], slots: Slots, step: int) -> None:
        """One update in place; ``step`` counts from 1."""
        means, squares = slots
        fused = getattr(torch, "_fused_adamw_", None)
        if fused is None:  # a private operator of PyTorch: it may go, the formula stays
            self.step_plain(params, grads, slots, step)
            return
        fused(
            list(params), list(grads), means, squares, [], [torch.tensor(float(step))] * len(params),
            lr=self.lr, beta1=self.beta1, beta2=self.beta2, weight_decay=self.weight_decay, eps=self.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def step_plain(self, params: Sequence[Tensor], grads: Sequence[Tensor], slots: Slots, step: int) -> None:
        """The same without the fused operator, to the bit what PyTorch's own optimizer does."""
        means, squares = slots
        for param, grad, mean, square in zip(params, grads, means, squares, strict=True):
            param.mul_(1 - self.lr * self.weight_decay)
            mean.lerp_(grad, 1 - self.beta1)
            square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
            spread = (square.sqrt() / (1 - self.beta2**step) ** 0.5).add_(self.eps)
            param.addcdiv_(mean, spread, value=-self.lr / (1 - self.beta1**step))


Optim = SGD | AdamW
