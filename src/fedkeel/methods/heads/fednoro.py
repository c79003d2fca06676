"""FedNoRo: find the noisy clients, then let the global model teach them and trust them less.

Wu et al., FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise
Heterogeneity, IJCAI 2023.

Stage 1, ``warm_up`` of the rounds: FedAvg with the logit-adjusted cross-entropy, where pi is the client's class prior:
    L_LA = -log softmax(z + log pi)_y
Then every client sends its mean cross-entropy per class under the global model. On the server a missing class gets the
lowest value of its column, columns are scaled to [0, 1], and a mixture of two Gaussians, fitted nine times with a vote,
names the noisy clients. Stage 2: clean clients go on; noisy ones learn from the global model t of the round as well,
    L = (1 - w) L_LA + w KL(softmax(t / 0.8) || softmax(z + log pi)),   w = 0.8 exp(-5 (1 - s)^2),
where s rises from 0 to 1 between the warm-up and ``ramp`` of the rounds. Distance-aware aggregation: models count by
n_k exp(-D_k), D_k = d_k / max d, d_k = distance of a noisy client's model to the nearest clean one, 0 for clean
clients.

As in the released code, classes that a client lacks take no part in its KL term. The loss of a client that holds one
class only is 0, so such clients teach nothing; a split with no others is refused.
Our choices: the published rounds (warm-up 10, ramp until 50, of 100) are shares of the rounds, and the optimizer is the
project's. All clients send their losses, whatever the participation. If nobody is noisy, or nobody of a cohort clean,
models are averaged by rows. By default a head is trained, and mixtures see a linear model's losses only; with ``tune =
"network"`` it is the whole network as in the paper, with the teacher in evaluation mode. d is one distance over all
that is averaged; the released code adds up one for each tensor.

What leaves a client besides its model: its mean loss per class, once, with -1 for classes it lacks, so the server
learns which classes a client has. Stage 2 needs the models one by one: they cannot be summed in secret.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Batch, Phase, State, Task, Update, Visit, added, register
from fedkeel.core.roster import Enrolment
from fedkeel.core.tree import Tensor, Tree, weighted
from fedkeel.methods.heads.head_or_network import HeadOrNetwork
from fedkeel.methods.heads.noise import high_group
from fedkeel.models.losses import one_hot, softmax_rows

LOSSES, NOISY, VOTES = "losses", "per_client.noisy", 9


@register("fednoro", paper="noisy clients found by class losses, taught, averaged by distance (Wu et al., IJCAI 2023)")
class FedNoRo(HeadOrNetwork):
    warm_up: float = Field(0.1, gt=0, lt=1)
    """share of the rounds before clients are told apart"""
    ramp: float = Field(0.5, gt=0, le=1)
    """share of the rounds after which the teacher has its full weight"""
    distil: float = Field(0.8, ge=0, le=1)
    """full weight of the teacher on noisy clients"""
    temperature: float = Field(0.8, gt=0)
    """of the teacher"""

    @property
    def warm_up_rounds(self) -> int:
        return max(1, int(self.warm_up * self.rounds + 0.5))

    def check(self, enrolment: Enrolment) -> None:
        super().check(enrolment)
        if enrolment.kinds.max() == 1:
            raise FedkeelError(
                "every client holds rows of one class only, where fednoro's loss is 0: take another partition, e.g. "
                "iid or shard-2, or method"
            )

    def start(self, task: Task) -> State:
        state = super().start(task)
        return replace(state, server={LOSSES: torch.zeros(task.classes)}, per_client={NOISY: torch.zeros(task.clients)})

    def plan(self, round: int) -> list[Phase]:
        if round > self.warm_up_rounds:
            return [self.phase("robust", self.tuned, self.tuned, gets=self.tuned, each=self.tuned)]
        warm_up = self.phase("warm-up", self.tuned, self.tuned, gets=self.tuned)
        losses = Phase("losses", sends=(LOSSES,), gets=self.tuned, each=(LOSSES,), cohort="all", epochs=0)
        return [warm_up, losses] if round == self.warm_up_rounds else [warm_up]

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        if phase.name == "warm-up":
            return super().merge(state, update, phase)
        noisy = state.per_client[NOISY]
        if phase.name == "losses":
            found = high_group(scaled(update.each[LOSSES]), VOTES)
            return replace(state, per_client={NOISY: noisy.index_copy(0, update.clients, found.to(noisy.dtype))})
        weights = distance_aware(update.each, update.rows, noisy[update.clients] > 0)
        return replace(state, shared=added(state.shared, weighted(update.each, weights)))

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        losses = softmax_rows(self.network.predict(visit.down, x), y)
        total = torch.zeros_like(visit.counts).index_add(0, y, losses)
        return {LOSSES: torch.where(visit.counts > 0, total / visit.counts.clamp_min(1), -1.0)}, {}

    def teacher_weight(self, visit: Visit) -> Tensor:
        """w: one number for each client; 0 for clean clients, and for all before clients are told apart."""
        first, last = self.warm_up_rounds + 1, max(self.ramp * self.rounds, self.warm_up_rounds + 2)
        s = min(1.0, max(0.0, (visit.round - first) / (last - first)))
        return self.distil * math.exp(-5 * (1 - s) ** 2) * visit.per_client[NOISY].unsqueeze(-1)

    def teacher(self, batch: Batch[Tensor], visit: Visit) -> Tensor:
        """The teacher's probabilities; 0 for classes the client lacks."""
        return (self.network.judged(visit.down, batch.x) / self.temperature).softmax(-1) * (visit.counts > 0).unsqueeze(
            -2
        )

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        adjusted = logits + prior(visit)
        t, w = self.teacher(batch, visit), self.teacher_weight(visit)
        log_p = adjusted.log_softmax(-1).clamp_min(-1e30)  # 0 times -inf would be NaN
        return (1 - w) * softmax_rows(adjusted, batch.y) + w * (torch.xlogy(t, t) - t * log_p).sum(-1)

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        p = (logits + prior(visit)).softmax(-1)
        t, w = self.teacher(batch, visit), self.teacher_weight(visit).unsqueeze(-1)
        return (1 - w) * (p - one_hot(p, batch.y)) + w * (p * t.sum(-1, keepdim=True) - t)


def prior(visit: Visit) -> Tensor:
    """log pi, -inf for classes the client lacks: one row, to be added to the logits of every row."""
    return (visit.counts / visit.counts.sum(-1, keepdim=True)).log().unsqueeze(-2)


def scaled(losses: Tensor) -> Tensor:
    """The mean losses (clients, classes) with missing ones (-1) as the lowest of the class, each class in [0, 1]."""
    missing = losses < 0
    low = losses.masked_fill(missing, torch.inf).amin(0)
    filled = torch.where(missing, low, losses).nan_to_num(posinf=0.0)  # a class that nobody has
    low, high = filled.amin(0), filled.amax(0)
    return (filled - low) / (high - low).clamp_min(1e-6)


def distance_aware(models: Tree, rows: Tensor, noisy: Tensor) -> Tensor:
    """The share of each client in the average: n_k exp(-D_k), normalised."""
    vectors = torch.cat([models[name].double().flatten(1) for name in sorted(models)], 1)
    distance = torch.zeros(len(rows), dtype=torch.float64)
    if noisy.any() and not noisy.all():
        distance[noisy] = torch.cdist(vectors[noisy], vectors[~noisy]).amin(1)
        distance /= distance.max().clamp_min(1e-12)
    weights = rows * (-distance).exp()
    return weights / weights.sum()
