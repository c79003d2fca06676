"""FedLTF: a linear probe, then the probe as the teacher of further training.

Zhan, Yu, Chen, Ji, FedLTF: Linear Probing Teaches Fine-tuning to Mitigate Noisy Labels in Federated Learning,
ACML, PMLR 260, 2025. Stage 1 trains an encoder without labels, stage 2 a linear probe on it with the
cross-entropy, averaged by rows. Stage 3 trains a student that starts as the probe, with the probe as its frozen
teacher. With p the student's and q the teacher's probabilities, z and t their logits, and T the temperature:
    v    = KL(p || q)                                                  of each row
    loss = mean(CE(z, y) exp(-v)) + mean(v) + kl_s T^2 mean(KL(softmax(t / T) || softmax(z / T)))
A row on which student and teacher part counts less, so labels that the probe does not believe are not learnt.

Left out is stage 1, federated BYOL: the encoder is the one of the run, which no label has touched either. With
``tune = "network"`` the rest is the paper's: stage 2 trains the head on the frozen network, stage 3 the whole student,
whose teacher is that network and probe (a network without trained weights gives a probe of random features). By default
the student is a linear head like its teacher, and stage 3 holds it near the probe; that form cannot show what the paper
gains from fine-tuning.

Our choices: T divides the logits, as distillation does; the released code divides probabilities, which turns the last
term into 4 KL(q || p) and is to be had with temperature = 1 and kl_s = 4. As in that code, the gradient goes through v,
so where CE > 1 the first two terms reward distance from the teacher; the last one alone holds the student back. The
published 20 and 50 rounds of stages 2 and 3 become shares of the rounds; both stages use the project's optimizer. The
teacher, in evaluation mode, goes down again with every request of stage 3; nothing is kept on clients.

No statistic of labels leaves a client besides the head itself.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from fedkeel.core.method import Batch, Phase, State, Task, Update, Visit, register
from fedkeel.core.tree import HEAD, Tensor, Tree, put, take
from fedkeel.methods.heads.head_or_network import HeadOrNetwork
from fedkeel.models.losses import softmax_rows

TEACHER = "teacher."


@register("fedltf", paper="linear probe, then teacher of the head (Zhan et al., ACML 2025)")
class FedLTF(HeadOrNetwork):
    probe: float = Field(0.3, gt=0, lt=1)
    """share of the rounds that train the probe"""
    kl_s: float = Field(1.0, ge=0)
    """weight of the distillation"""
    temperature: float = Field(4.0, gt=0)

    def start(self, task: Task) -> State:
        state = super().start(task)
        return replace(state, server=teacher_of(state))

    def plan(self, round: int) -> list[Phase]:
        if round <= max(1, int(self.probe * self.rounds + 0.5)):
            return [self.phase("probe", (HEAD,), (HEAD,), gets=self.tuned)]
        return [self.phase("teach", self.tuned, self.tuned)]

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        state = super().merge(state, update, phase)
        return replace(state, server=teacher_of(state)) if phase.name == "probe" else state

    def once(self, x: Tensor, visit: Visit) -> Tensor:
        """The probe reads features: the network below it stays."""
        return self.network.encoded(visit.down, x) if visit.phase.name == "probe" else x

    def rows(self, logits: Tensor, batch: Batch[Tensor], visit: Visit) -> Tensor:
        ce = softmax_rows(logits, batch.y)
        if visit.phase.name == "probe":
            return ce
        teacher = self.network.judged(take(TEACHER, visit.down), batch.x)
        v = divergence(logits, teacher)
        distilled = divergence(teacher / self.temperature, logits / self.temperature)
        return ce * (-v).exp() + v + self.kl_s * self.temperature**2 * distilled


def teacher_of(state: State) -> Tree:
    """The model of the moment as a teacher, with memory of its own."""
    return put(TEACHER, {name: value.clone() for name, value in state.shared.items()})


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(one) || softmax(other)) of each row."""
    return (one.softmax(-1) * (one.log_softmax(-1) - other.log_softmax(-1))).sum(-1)
