"""FFT-MoE: a mixture of small experts beside the MLP of every block of a frozen transformer.

Hu et al., FFT-MoE: Efficient Federated Fine-Tuning for Foundation Models via Large-Scale Sparse MoE under Heterogeneous
Edge, arXiv 2508.18663. To the output of a block's MLP is added
    sum_{m in top-k} g_m(x) E_m(x),   g = softmax(W_R x),   E_m(x) = U_m gelu(D_m x),
and the loss is CE + lambda * aux. Experts, routers and head are averaged by rows.

The exact form of the paper's load balance is not known to us: aux is that of Switch (Fedus et al., JMLR 2022),
M sum_m f_m P_m with f_m the share of tokens sent to expert m and P_m its mean gate, over all blocks and tokens. Our
choices: U = 0 at the start; all clients have the same k. Settings of OvA-LP's Table 8: 8 experts of rank 2, k = 1,
lambda 1e-5, Adam lr 3e-4 with weight decay 1e-2, one epoch, batch 128. Adam's weight decay is a part of the gradient,
g + 1e-2 w, and is scaled with it; AdamW's is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Task, Visit, register
from fedkeel.core.optim import Optim
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.transformer.base import Tuned
from fedkeel.models.backbone import Backbone
from fedkeel.models.lora import gaussian
from fedkeel.rows.inputs import Inputs


@register("fft-moe", paper="experts and a router in every block (Hu et al., arXiv 2508.18663)")
class FFTMoE(Tuned):
    experts: int = Field(8, ge=1)
    rank: int = Field(2, ge=1)
    """of each expert"""
    top: int = Field(1, ge=1)
    """how many experts a token is sent to"""
    balance: float = Field(1e-5, ge=0)
    """lambda, the weight of the load balance"""
    batch: int = Field(128, ge=1)
    lr: float = Field(3e-4, gt=0)
    weight_decay: float = Field(1e-2, ge=0)

    @property
    def optim(self) -> Optim:
        return replace(super().optim, weight_decay=0.0)

    def adapters(self, task: Task) -> Tree:
        tree, width = {}, Backbone.in_task(task).width
        for block in range(len(Backbone.in_task(task).mlps)):
            key = task.seed, "moe", block
            tree[f"moe.{block:02d}.router"] = gaussian(self.experts, width, *key, "router")
            down = gaussian(self.experts * self.rank, width, *key, "down")
            tree[f"moe.{block:02d}.down"] = down.view(self.experts, self.rank, width)
            tree[f"moe.{block:02d}.up"] = torch.zeros(self.experts, width, self.rank)
        return tree

    def adapted(self, params: Tree, x: Inputs, loads: list[Tensor] | None = None) -> Mapping[str, Any]:
        seen = [] if loads is None else loads
        return {"added": [self.mixture(params, block, seen) for block in range(len(x.backbone.mlps))]}

    def mixture(self, params: Tree, block: int, loads: list[Tensor]) -> Callable[[Tensor], Tensor]:
        """What a block adds; every use leaves its load balance in ``loads``."""
        router, down, up = (params[f"moe.{block:02d}.{part}"] for part in ("router", "down", "up"))

        def add(x: Tensor) -> Tensor:
            gates = (x @ router.T).softmax(-1)
            chosen = torch.zeros_like(gates).scatter(-1, gates.topk(min(self.top, self.experts)).indices, 1.0)
            tokens = tuple(range(gates.ndim - 1))
            loads.append(self.experts * (chosen.mean(tokens) / self.top * gates.mean(tokens)).sum())
            inside = torch.nn.functional.gelu(torch.einsum("...d,mrd->...mr", x, down))
            return torch.einsum("...mr,mdr,...m->...d", inside, up, gates * chosen)

        return add

    def loss(self, params: Tree, batch: Batch[Inputs], visit: Visit) -> Tensor:
        loads: list[Tensor] = []
        network = replace(self.network, features=lambda tree, x: x.features(**self.adapted(tree, x, loads)))
        whole = {**visit.down, **visit.mine, **params}
        return network.cross_entropy(whole, batch) + self.balance * torch.stack(loads).mean()

    def adjust(self, grads: Tree, params: Tree, batch: Batch[Inputs], visit: Visit) -> Tree:
        return {name: grad + self.weight_decay * params[name] for name, grad in grads.items()}
