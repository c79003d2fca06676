"""FedPrompt: prompt tokens before a frozen transformer's own, averaged place by place.

Zhao, Du, Li, Li, Liu, FedPrompt: Communication-Efficient and Privacy-Preserving Prompt Tuning in Federated Learning,
ICASSP 2023, arXiv 2208.12268: the language model stays where it is and is cut off from what is aggregated, soft prompts
alone go up and down, and the server takes their mean by rows. PFPT is the same with matching in the place of the mean.

Our reading: the paper's prompts end in a verbalizer that reads words off the language model; encoders have none, so a
softmax head is trained and averaged with them. Prompts, their start and their place are those of PFPT; one epoch,
batches and rates are those of the other methods inside a transformer (our choices).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fedkeel.core.method import Task, register
from fedkeel.core.tree import Tree
from fedkeel.methods.transformer.base import Tuned
from fedkeel.methods.transformer.pfpt import PROMPTS, fresh_prompts
from fedkeel.rows.inputs import Inputs


@register("fedprompt", paper="prompt tokens averaged place by place (Zhao et al., ICASSP 2023)")
class FedPrompt(Tuned):
    prompts: int = Field(10, ge=1)

    def adapters(self, task: Task) -> Tree:
        return fresh_prompts(task, self.prompts)

    def adapted(self, params: Tree, x: Inputs) -> Mapping[str, Any]:
        return {"prompts": params[PROMPTS]}
