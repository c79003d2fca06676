"""FLoRA: adapters are stacked, not averaged, so that what is merged is exactly the mean of the clients' products.

Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS 2024.
    A = [p_1 A_1; ...; p_K A_K] (rows), B = [B_1, ..., B_K] (columns), so B A = sum_k p_k B_k A_k,  p_k = n_k / n.
B A is merged into the base weight and the adapters start anew every round (A drawn again, B = 0). Clients may have
different ranks: client k has rank ``ranks[k mod len]``; its further rows of A are zero, and zero they stay, because the
gradients of a zero row of A and a zero column of B are zero.

Our choices: what goes down is the merged weight (dense), which is smaller than the stack of 100 clients; updates are
counted at the largest rank; the head is averaged by rows.
"""

from __future__ import annotations

import torch
from pydantic import model_validator

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Phase, State, Task, Update, Visit, added, register
from fedkeel.core.tree import Tree, select
from fedkeel.methods.transformer.lora import MERGED, Lora
from fedkeel.models.backbone import Backbone
from fedkeel.models.lora import gaussian

RANK, SEED = "per_client.rank", "seed"
"""The seed of the run stays on the server, and is not kept where it is 0."""


@register("flora", paper="LoRA stacked and merged, ranks may differ (Wang et al., NeurIPS 2024)")
class Flora(Lora):
    ranks: tuple[int, ...] = ()
    """ranks of the clients, in turn; empty = all have method.rank"""

    @model_validator(mode="after")
    def _ranks_fit(self) -> Flora:
        if any(not 1 <= rank <= self.rank for rank in self.ranks):
            raise FedkeelError(f"method.ranks = {self.ranks}: expected ranks from 1 to method.rank = {self.rank}")
        return self

    def start(self, task: Task) -> State:
        state, ranks = super().start(task), self.ranks or (self.rank,)
        merged = {
            f"{MERGED}{index:02d}": torch.zeros_like(Backbone.in_task(task).weight(name))
            for index, name in enumerate(Backbone.in_task(task).attention)
        }
        per_client = {RANK: torch.tensor([float(ranks[k % len(ranks)]) for k in range(task.clients)])}
        server = {SEED: torch.tensor([task.seed])} if task.seed else {}
        return State({**state.shared, **merged}, server, per_client)

    def plan(self, round: int) -> list[Phase]:
        tuned = ("A.", "B.", "head.")
        return [self.phase("train", tuned, tuned, gets=(*tuned, MERGED), each=("A.", "B."))]

    def begin(self, visit: Visit) -> Tree:
        params = super().begin(visit)
        own = (torch.arange(self.rank) < visit.per_client[RANK]).float().unsqueeze(1)
        return {name: value * own if name.startswith("A.") else value for name, value in params.items()}

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        shared, p = added(state.shared, update.mean), update.rows / update.rows.sum()
        seed = int(state.server[SEED]) if SEED in state.server else 0
        for name in select(shared, (MERGED,)):
            index = name.removeprefix(MERGED)
            a = shared[f"A.{index}"] + update.each[f"A.{index}"]  # clients send how far they moved
            b = shared[f"B.{index}"] + update.each[f"B.{index}"]
            stacked_a = (p.view(-1, 1, 1) * a.double()).flatten(0, 1)
            stacked_b = b.double().transpose(0, 1).flatten(1)
            shared[name] = shared[name] + self.scale * (stacked_b @ stacked_a).float()
            shared[f"A.{index}"] = gaussian(*a.shape[1:], seed, "flora", update.round, int(index))
            shared[f"B.{index}"] = torch.zeros_like(b[0])
        return State(shared, state.server, state.per_client)
