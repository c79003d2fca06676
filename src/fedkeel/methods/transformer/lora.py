"""LoRA averaged factor by factor: the plain way to federate low-rank adapters.

Hu et al., LoRA, ICLR 2022: a frozen weight W_0 becomes W_0 + (alpha / r) B A with B = 0 at the start. Averaging A and B
by rows (Zhang et al., FedIT, ICASSP 2024) is biased: mean(B) mean(A) is not mean(B A). FLoRA, FedSA-LoRA and FRLoRA
mend this, each in its own file.

Adapted are the query and value weights of every block (LoRA's own choice); A ~ N(0, 1 / in), B = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fedkeel.core.method import Task, added, register
from fedkeel.core.tree import Tree, take
from fedkeel.methods.transformer.base import Tuned
from fedkeel.models.backbone import Backbone
from fedkeel.models.lora import in_attention, weights
from fedkeel.rows.inputs import Inputs

MERGED = "merged."
"""Of what is merged into an adapted weight, by number."""


@register("lora", paper="LoRA factors averaged by rows: FedIT (Zhang et al., ICASSP 2024)")
class Lora(Tuned):
    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    """the adapter counts alpha / rank times"""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def adapters(self, task: Task) -> Tree:
        return in_attention(Backbone.in_task(task), self.rank, task.seed, "lora")

    def adapted(self, params: Tree, x: Inputs) -> Mapping[str, Any]:
        """W_0 + scale B A, plus what earlier rounds have merged into the weight, where a method merges."""
        found = weights(x.backbone, params, self.scale)
        merged = take(MERGED, params)
        return {"weights": added(found, {x.backbone.attention[int(index)]: value for index, value in merged.items()})}
