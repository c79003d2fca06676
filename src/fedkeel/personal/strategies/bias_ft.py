"""Bias FT: bias tuning, of network and head nothing but the biases moves.

Ben Zaken, Goldberg, Ravfogel, BitFit: Simple Parameter-efficient Fine-tuning for Transformer-based Masked Language-
models, ACL 2022, arXiv 2106.10199; LP-FT (arXiv 2511.12695), Appendix D.1, speaks of it and prints no number.

Which parameters count: what is added to an output and multiplies nothing. That is the bias of every linear layer and
convolution, the shift beta of every batch norm and layer norm, and the bias of the head. Convolutions before a batch
norm usually have none: there beta is the bias. Our choices: the scale gamma of norms stays; so do the weights of the
head, which BitFit trains because its task has a new one, and here the run has trained it; statistics of batch norms are
as for every strategy.
"""

from __future__ import annotations

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, Visit
from fedkeel.core.tree import STATS, Tree
from fedkeel.methods.network import model_of
from fedkeel.personal.strategy import Strategy, register


@register("bias-ft", paper="the biases of network and head alone (BitFit, Ben Zaken et al., ACL 2022)")
class BiasFT(Strategy):
    def on(self, run: AnyMethod) -> Strategy:
        if model_of(run).adapters:
            raise FedkeelError(f"bias-ft tunes the biases of a network, but {run.name} left them as they were: use ft")
        return super().on(run)

    def begin(self, visit: Visit) -> Tree:
        """Of what full fine-tuning moves."""
        full = super().begin(visit)
        return {name: value for name, value in full.items() if name.endswith("bias") or name.startswith(STATS)}
