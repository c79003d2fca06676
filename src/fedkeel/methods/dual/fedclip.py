"""FedCLIP: an adapter on the item features, averaged like any other tensor.

Lu et al., FedCLIP, IEEE Data Engineering Bulletin 2023. As FedPuReL runs it: cross-entropy over the classes and weights
by rows; the original trains the contrastive loss of the batch with Adam and weighs all clients alike.
"""

from __future__ import annotations

from typing import ClassVar

from fedkeel.core.method import register
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.peft.adapter import Adapter
from fedkeel.methods.dual.peft.module import Module


@register("fedclip", paper="a feature mask, averaged (Lu et al., 2023)")
class FedCLIP(Adapter, DualTuned):
    kind: ClassVar[type[Module]] = Adapter
