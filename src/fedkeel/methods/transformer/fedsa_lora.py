"""FedSA-LoRA: the A of every adapter is shared, the B stays with its client.

Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025: A learns what clients have
in common, B what is their own; both are trained, only A is averaged (by rows).

B never leaves a client, so the global model has none: it is the frozen network with the shared head (our choice; the
paper evaluates the clients' own models, and so does the record's personal accuracy). The head is shared.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from fedkeel.core.method import Phase, State, Task, register
from fedkeel.core.tree import Tree, select
from fedkeel.methods.transformer.lora import Lora
from fedkeel.rows.inputs import Inputs


@register("fedsa-lora", paper="LoRA with shared A and personal B (Guo et al., ICLR 2025)")
class FedSALora(Lora):
    personal: ClassVar[bool] = True

    def start(self, task: Task) -> State:
        state = super().start(task)
        return State({name: value for name, value in state.shared.items() if not name.startswith("B.")})

    def private(self, down: Tree) -> Tree:
        shared = select(down, ("A.",)).items()
        return {f"B.{name[2:]}": torch.zeros(value.shape[1], self.rank) for name, value in shared}

    def plan(self, round: int) -> list[Phase]:
        return [self.phase("train", ("A.", "B.", "head."), ("A.", "head."))]

    def features(self, params: Tree, x: Inputs) -> torch.Tensor:
        nobody_s = {f"B.{name[2:]}": a.new_zeros(a.shape[1], self.rank) for name, a in select(params, ("A.",)).items()}
        return super().features({**nobody_s, **params}, x)
