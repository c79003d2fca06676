"""LP-FT: linear probing first, full fine-tuning after.

Kumar, Raghunathan, Jones, Ma, Liang, Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution,
ICLR 2022; as personalisation of a federated model: Chen et al., arXiv 2511.12695, Section 3.4. The head is fitted to
the client first, so that the second stage starts with small errors and moves the features less.

The paper does not say how its 15 epochs are divided, nor what batch norms do. Our choices: 5 epochs of probing and 10
of fine-tuning (a third and two thirds), 15 in all as for every other strategy; while probing, batch norms use the
global statistics, so the extractor is frozen as a whole and its features are computed once.
"""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fedkeel.core.method import Phase
from fedkeel.core.tree import HEAD
from fedkeel.personal.strategy import Strategy, register


@register("lp-ft", paper="linear probing, then fine-tuning (Kumar et al., ICLR 2022; Chen et al., arXiv 2511.12695)")
class LPFT(Strategy):
    probe: int | None = Field(None, ge=0)
    """epochs of linear probing among all epochs; unset: a third of them; 0 = ft, as many as epochs = lp"""

    @model_validator(mode="after")
    def probes_at_most_all(self) -> LPFT:
        if self.probe is not None and self.probe > self.epochs:
            raise PydanticCustomError(
                "probe", f"probe = {self.probe} of epochs = {self.epochs}: probing is part of the epochs, lower it"
            )
        return self

    def plan(self, round: int) -> list[Phase]:
        probes = (self.epochs + 1) // 3 if self.probe is None else self.probe
        tunes = self.epochs - probes
        stages = [self.stage("probe", (HEAD,), probes)] if probes else []
        return [*stages, self.stage("tune", self.full, tunes)] if tunes else stages
