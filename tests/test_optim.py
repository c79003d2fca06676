"""Our stacked optimizers against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from fedkeel.core.optim import SGD, AdamW, Optim


@pytest.mark.parametrize("optim", [SGD(0.1), SGD(0.1, 0.9, 0.01), AdamW(0.01), AdamW(0.05, 0.1)], ids=str)
@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
def test_a_stack_steps_like_pytorch(optim: Optim, plain: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    ours = [torch.randn(3, 4, 2, generator=draw), torch.randn(3, 4, generator=draw)]
    theirs = [[tensor[k].clone().requires_grad_() for tensor in ours] for k in range(3)]
    optimizers = [optim.torch(list(params)) for params in theirs]
    slots = optim.slots(ours)
    step_with = optim.step_plain if plain and isinstance(optim, AdamW) else optim.step
    for step in range(1, 6):
        grads = [torch.randn(tensor.shape, generator=draw) for tensor in ours]
        step_with(ours, [grad.clone() for grad in grads], slots, step)
        for k, (params, optimizer) in enumerate(zip(theirs, optimizers, strict=True)):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad[k].clone()
            optimizer.step()
    for k in range(3):
        for mine, reference in zip(ours, theirs[k], strict=True):
            torch.testing.assert_close(mine[k], reference.detach(), rtol=2e-6, atol=1e-7)


def test_without_the_private_operator_the_formula_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_fused_adamw_")
    params, optim = [torch.zeros(2, 2)], AdamW(0.01)
    optim.step(params, [torch.ones(2, 2)], optim.slots(params), 1)
    torch.testing.assert_close(params[0], torch.full((2, 2), -0.01))
