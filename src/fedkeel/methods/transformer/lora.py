"""LoRA averaged factor by factor: the plain way to federate low-rank adapters.

Hu et al., LoRA, ICLR 2022: a frozen weight W_0 becomes W_0 + (alpha / r) B A with B = 0 at the start. Averaging A and B
by rows (Zhang et al., FedIT, ICASSP 2024) is biased: mean(B) mean(A) is not mean(B A). FLoRA, FedSA-LoRA and FRLoRA
mend this, each in its own file.

Adapted are the query and value weights of every block (LoRA's own choice); A ~ N(0, 1 / in), B = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.core.method import Task, register
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree
from fedkeel.methods.transformer.base import Tuned


@register("lora", paper="LoRA factors averaged by rows: FedIT (Zhang et al., ICASSP 2024)")
class Lora(Tuned):
    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    """the adapter counts alpha / rank times"""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def adapters(self, task: Task) -> Tree:
        factors = {}
        for index, name in enumerate(task.backbone.attention):
            out, into = task.backbone.weight(name).shape
            factors[f"A.{index:02d}"] = gaussian(self.rank, into, task.seed, "lora", index)
            factors[f"B.{index:02d}"] = torch.zeros(out, self.rank)
        return factors

    def adapted(self, params: Tree, x: Any) -> Mapping[str, Any]:
        return {"weights": {name: self.weight(params, i, x) for i, name in enumerate(x.backbone.attention)}}

    def weight(self, params: Tree, index: int, x: Any) -> Tensor:
        """W_0 + scale B A, plus what earlier rounds have merged into the weight, where a method merges."""
        frozen: Tensor = x.backbone.weight(x.backbone.attention[index])
        moved = frozen + self.scale * params[f"B.{index:02d}"] @ params[f"A.{index:02d}"]
        merged = params.get(f"merged.{index:02d}")
        return moved if merged is None else moved + merged


def gaussian(rank: int, into: int, *key: int | str) -> Tensor:
    drawn = generator(*key).normal(scale=into**-0.5, size=(rank, into))  # type: ignore[arg-type]
    return torch.from_numpy(drawn).float()
