"""CLIPLoRA, federated: LoRA in the item tower, A and B averaged by rows.

Zanella and Ben Ayed, Low-Rank Few-Shot Adaptation of Vision-Language Models (CLIP-LoRA), CVPR Workshops 2024, as
FedPuReL runs it: cross-entropy against the class features of the template, the item tower alone, rank 8; the original
adapts both towers with rank 2. Of personal models it says nothing: see ``base.py``.
"""

from __future__ import annotations

from typing import ClassVar

from fedkeel.core.method import register
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.peft.lora import Lora
from fedkeel.methods.dual.peft.module import Module


@register("clip-lora", paper="LoRA in the item tower, averaged (Zanella and Ben Ayed, CVPRW 2024)")
class ClipLora(Lora, DualTuned):
    kind: ClassVar[type[Module]] = Lora
