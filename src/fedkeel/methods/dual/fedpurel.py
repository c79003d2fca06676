"""FedPuReL: a shared module tuned with purified gradients, and a personal residual beside it.

Hou et al., Fine-Tuning Impairs the Balancedness of Foundation Models in Long-tailed Personalized Federated Learning,
CVPR 2026 (arXiv 2605.02247), Algorithm 1. With zero-shot logits z and tuned logits f:

    phase "purify":    g_task = grad CE(y, f),   g_align = grad TKL(z, f)
                       if <g_task, g_align> < 0:  g = g_task - <g_task, g_align> / |g_align|^2 g_align,  else g = g_task
    phase "residual":  (1 - lambda) CE(y, l_G + l_P) + lambda CE(y, l_P),  the shared module frozen
    prediction:        argmax l_G for everybody, argmax (l_G + l_P) for a client

The algorithm reads as one vector for all tensors (``project = "all"``), the released code projects tensor by tensor
(``"tensor"``). It runs phase 2 in every round (``schedule = "interleaved"``), the algorithm after the last one
(``"sequential"``); for how long is not said: ``personal_epochs`` is our choice, and so is that a client's own module
starts as a copy of the shared one.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, Visit, register
from fedkeel.core.tree import Tensor, Tree, take
from fedkeel.methods.dual.alignment import Alignment, pull
from fedkeel.methods.dual.any_kind import AnyKind
from fedkeel.methods.dual.base import OWN, PART, PEFT, DualTuned
from fedkeel.models.losses import softmax_rows
from fedkeel.rows.items import Items

GLOBAL = "global"


@register("fedpurel", paper="purified gradients and a personal residual (Hou et al., CVPR 2026)")
class FedPuReL(AnyKind, DualTuned):
    alignment: Literal["tkl", "kl", "none"] = "tkl"
    """which divergence from zero-shot the task gradient must not work against; none: no purification"""
    project: Literal["tensor", "all"] = "tensor"
    """tensor by tensor, or all of them as one vector"""
    lam: float = Field(0.9, ge=0, le=1)
    """lambda: the weight of the personal branch by itself"""

    def plan(self, round: int) -> list[Phase]:
        shared = super().plan(round)[0]
        if self.alignment != "none":
            shared = self.phase("purify", (PEFT,), (PEFT,), cohort=shared.cohort)
        if self.schedule == "interleaved":
            return [shared, self.phase("residual", (OWN,), cohort="same")]
        last = self.phase("residual", (OWN,), cohort="all", epochs=self.personal_epochs)
        return [shared, last] if round == self.rounds else [shared]

    def once(self, x: Items, visit: Visit) -> Items:
        """In phase 2 the shared module is frozen: its logits are computed once."""
        if visit.phase.name != "residual":
            return x
        with torch.no_grad():
            shared = take(PEFT, visit.down)
            return x.having(GLOBAL, torch.cat([self.module.logits(shared, part) for part in x.parts(PART)]))

    def loss(self, params: Tree, batch: Batch[Items], visit: Visit) -> Tensor:
        if visit.phase.name != "residual":
            return super().loss(params, batch, visit)
        x = batch.x
        personal = self.module.logits(take(OWN, params), x)
        together = batch.mean(softmax_rows(x.get(GLOBAL) + personal, batch.y))
        return (1 - self.lam) * together + self.lam * self.task_loss(personal, params, batch)

    def gradients(self, params: Tree, batch: Batch[Items], visit: Visit) -> Tree:
        if visit.phase.name != "purify":
            return super().gradients(params, batch, visit)
        task, align = task_and_alignment(self, params, batch, "kl" if self.alignment == "kl" else "tkl")
        return purified(task, align, self.project)

    def branches(self, shared: Tree, mine: Tree, x: Items) -> tuple[Tensor, ...]:
        common, own = self.module.logits(take(PEFT, shared), x), take(OWN, mine)
        if not own:
            return (common,)
        personal = self.module.logits(own, x)
        return common, personal, common + personal


def task_and_alignment(method: DualTuned, params: Tree, batch: Batch[Items], kind: Alignment) -> tuple[Tree, Tree]:
    """(g_task, g_align) by the shared module: one forward pass, two backward passes."""
    x = batch.x
    tuned = {name: value for name, value in params.items() if value.requires_grad}
    logits = method.module.logits(take(PEFT, params), x)
    towards = pull(x.zero_shot, logits.detach(), kind) * batch.weight.unsqueeze(-1)
    align = torch.autograd.grad(logits, list(tuned.values()), towards, retain_graph=True)
    task = torch.autograd.grad(method.task_loss(logits, params, batch), list(tuned.values()))
    return dict(zip(tuned, task, strict=True)), dict(zip(tuned, align, strict=True))


def purified(task: Tree, align: Tree, project: Literal["tensor", "all"]) -> Tree:
    """The task gradient without what works against the alignment gradient. A zero gradient has no direction."""
    if project == "tensor":
        return {name: value - conflict([value], [align[name]]) * align[name] for name, value in task.items()}
    against = conflict(list(task.values()), list(align.values()))
    return {name: value - against * align[name] for name, value in task.items()}


def conflict(task: list[Tensor], align: list[Tensor]) -> Tensor:
    """min(0, <g_task, g_align>) / |g_align|^2, and 0 where g_align is 0."""
    inner = torch.stack([(t * a).sum() for t, a in zip(task, align, strict=True)]).sum()
    length = torch.stack([(a * a).sum() for a in align]).sum()
    return torch.where(length > 0, inner.clamp(max=0) / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0)
