"""FedCorr: estimate who is noisy and how much, correct labels, then train as usual.

Xu, Chen, Quek, Chong, FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022.

Stage 1, pre-processing. In every iteration all clients train with an adaptive proximal term,
    L_k = CE + beta mu_k ||w - w_G||          (the norm, not its square; mu_k = 0 at first).
From its own model a client computes the mean LID of its predictions (k = 20). The server adds the LIDs up over the
iterations; a mixture of two Gaussians splits the clients, the higher group is noisy. A noisy client fits such a mixture
to its losses: mu_k is the share of its rows in the higher group. Of its rows with the pi mu_k n_k highest losses it
relabels those that the global model is sure of (max_c p_c > theta) with argmax_c p_c.
Stage 2, fine-tuning: FedAvg over the clients with mu_k <= kappa; then noisy clients relabel every row that the global
model is sure of. Stage 3: FedAvg of all clients on what the labels have become.

By default a head is trained; with ``tune = "network"`` the whole network, as in the paper. Left out: mixup of inputs.
Our choices. A correction is kept as the model that made it and a threshold on the loss under that model, so corrections
start from the given labels every time and rows are ranked by the global model's loss; the released code overwrites
labels and ranks by the client's own. An iteration is one round of everybody; the paper visits a few clients at a time.
The 5 + 50 + 45 visits per client become shares of the rounds; the optimizer is the project's. Engines choose cohorts
before anything is known of a client, so in stage 2 all of a cohort train and send, and the server leaves out who is too
noisy (nobody, if all of them are). A client with fewer than three rows has no LID and counts as clean.

What leaves a client besides its model: in stage 1 its mean LID and, if it was found noisy, its estimated noise level,
which comes from its labels. Labels, losses and corrections stay.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Task, Update, Visit, added, register
from fedkeel.core.tree import Tensor, Tree, put, select, take, weighted
from fedkeel.methods.heads.head_or_network import HeadOrNetwork
from fedkeel.methods.heads.noise import high_group, intrinsic_dimension
from fedkeel.models.losses import softmax_residual, softmax_rows

NOISY, LEVEL = "per_client.noisy", "per_client.level"
LID, MU, LEDGER = "sent.lid", "sent.level", "ledger.lid"
OWN, JUDGE, ABOVE = "own.", "judge.", "above"
"""Private: the client's own model, the model that corrects labels, and the loss above which it may."""


@register("fedcorr", paper="noisy clients found by LID, labels corrected in three stages (Xu et al., CVPR 2022)")
class FedCorr(HeadOrNetwork):
    iterations: float = Field(0.1, gt=0, lt=1)
    """share of the rounds for stage 1"""
    tuning: float = Field(0.5, ge=0, lt=1)
    """share of the rounds for stage 2"""
    beta: float = Field(5.0, ge=0)
    """weight of the proximal term"""
    relabel: float = Field(0.5, ge=0, le=1)
    """pi: share of the rows found noisy that stage 1 may relabel"""
    confidence: float = Field(0.5, ge=0, lt=1)
    """theta: relabel where the global model is surer than this"""
    clean_level: float = Field(0.1, ge=0, le=1)
    """kappa: highest noise level of the clients that stage 2 averages"""
    neighbours: int = Field(20, ge=2)
    """k of the LID"""

    def start(self, task: Task) -> State:
        server = {LID: torch.zeros(()), MU: torch.zeros(()), LEDGER: torch.zeros(task.clients)}
        per_client = {NOISY: torch.zeros(task.clients), LEVEL: torch.zeros(task.clients)}
        return replace(super().start(task), server=server, per_client=per_client)

    def private(self, down: Tree) -> Tree:
        nothing = zeros(select(down, self.tuned))
        return {**put(OWN, nothing), **put(JUDGE, zeros(nothing)), ABOVE: torch.zeros(())}

    def plan(self, round: int) -> list[Phase]:
        first = max(1, int(self.iterations * self.rounds + 0.5))
        second = first + min(int(self.tuning * self.rounds + 0.5), max(0, self.rounds - first - 1))
        if round <= first:
            train = self.phase("pre-process", self.tuned, self.tuned, gets=self.tuned, cohort="all")
            return [train, self.asking("dimension", (LID,)), self.asking("correct", (MU,))]
        if round <= second:
            tune = self.phase("fine-tune", self.tuned, self.tuned, gets=self.tuned, each=self.tuned)
            return [tune, replace(self.asking("relabel", ()), cohort="all")] if round == second else [tune]
        return [self.phase("usual", self.tuned, self.tuned, gets=self.tuned)]

    def asking(self, name: str, sends: tuple[str, ...]) -> Phase:
        """An exchange without training, with the clients of the one before."""
        return Phase(name, sends=sends, gets=self.tuned, each=sends, cohort="same", epochs=0)

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        clients, per_client = update.clients, state.per_client
        if phase.name == "dimension":
            ledger = state.server[LEDGER].index_add(0, clients, update.each[LID])
            noisy, known = torch.zeros_like(ledger), ledger > 0
            noisy[known] = high_group(ledger[known]).to(ledger.dtype)
            return replace(state, server={**state.server, LEDGER: ledger}, per_client={**per_client, NOISY: noisy})
        if phase.name == "correct":
            return replace(
                state, per_client={**per_client, LEVEL: per_client[LEVEL].index_copy(0, clients, update.each[MU])}
            )
        if phase.name == "fine-tune":
            clean = per_client[LEVEL][clients] <= self.clean_level
            rows = update.rows * clean if clean.any() else update.rows
            return replace(state, shared=added(state.shared, weighted(update.each, rows / rows.sum())))
        return super().merge(state, update, phase)

    def labels(self, batch: Batch[Tensor], visit: Visit) -> Tensor:
        """The labels of the rows as corrected so far."""
        judged = self.network.judged(take(JUDGE, visit.mine), batch.x)
        sure, guess = judged.softmax(-1).max(-1)
        doubtful = softmax_rows(judged, batch.y) > visit.mine[ABOVE].unsqueeze(-1)
        return torch.where(
            (sure > self.confidence) & doubtful & (visit.per_client[NOISY].unsqueeze(-1) > 0), guess, batch.y
        )

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return softmax_rows(logits, self.labels(batch, visit))

    def residual(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        return softmax_residual(logits, self.labels(batch, visit))

    def adjust(self, grads: Tree, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tree:
        """Adds the gradient of the proximal term, beta mu (w - w_G) / ||w - w_G||; 0 at w_G."""
        if visit.phase.name != "pre-process":
            return grads
        moved = {name: value - visit.down[name] for name, value in sorted(params.items())}  # as in a resumed run
        norm = torch.stack([value.square().sum() for value in moved.values()]).sum().sqrt().clamp_min(1e-12)
        return {name: grad + self.beta * visit.per_client[LEVEL] / norm * moved[name] for name, grad in grads.items()}

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        sends, mine = super().end(params, steps, visit)
        return sends, {**mine, **put(OWN, params)} if visit.phase.name == "pre-process" else mine

    def measure(self, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        own, judge = take(OWN, visit.mine), visit.down
        if visit.phase.name == "dimension":
            return {LID: intrinsic_dimension(self.network.predict(own, x).softmax(-1), self.neighbours)}, visit.mine
        kept = {**visit.mine, **put(OWN, zeros(own)), **put(JUDGE, judge)}
        if visit.phase.name == "relabel":
            return {}, {**kept, ABOVE: torch.tensor(-1.0)}
        level = high_group(softmax_rows(self.network.predict(own, x), y)).float().mean() * visit.per_client[NOISY]
        losses = softmax_rows(self.network.predict(judge, x), y).sort(descending=True).values
        # Half way between the last row that may be relabelled and the first that may not, so no row sits on the edge.
        edges = torch.cat([losses[:1] + 1, losses, torch.tensor([-1.0])])
        count = int(float(level) * self.relabel * len(y))
        return {MU: level}, {**kept, ABOVE: edges[count : count + 2].mean()}


def zeros(tree: Tree) -> Tree:
    return {name: torch.zeros_like(value) for name, value in tree.items()}
