"""CLIPLoRA, federated: LoRA in the item tower, A and B averaged by rows.

Zanella and Ben Ayed, Low-Rank Few-Shot Adaptation of Vision-Language Models (CLIP-LoRA), CVPR Workshops 2024, as
FedPuReL runs it: cross-entropy against the class features of the template, the item tower alone, rank 8; the original
adapts both towers with rank 2. Of personal models it says nothing: see ``base.py``.
"""

from __future__ import annotations

from fedkeel.core.method import register
from fedkeel.methods.dual.base import DualTuned
from fedkeel.models.peft import Lora


@register("clip-lora", paper="LoRA in the item tower, averaged (Zanella and Ben Ayed, CVPRW 2024)")
class ClipLora(Lora, DualTuned):
    @property
    def module(self) -> Lora:
        return Lora.of(self)
