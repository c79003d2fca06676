"""FedOTP: a shared prompt and a client's own divide an item's local features between them by optimal transport.

Li et al., Global and Local Prompts Cooperation via Optimal Transport for Federated Learning, CVPR 2024. With s the
cosines of an item's M local features and the N = 2 class features of a class c:

    logit_c = scale * sum of T_c * s_c,   T_c the entropic plan with rows T 1 <= 1 / M and columns T^T 1 = gamma / 2

(``transport.py``); loss: cross-entropy, no gradient through the plan. eps = 0.1, gamma = 0.8, as in the released
code. Both prompts are trained in every visit, only the shared one is averaged.

Our choices: a client's prompt starts as a copy of the shared one; the model without a client is the plan of the shared
prompt alone, N = 1; of a text (the paper has images only) the local features are means over each ``segment`` of its
first ``text_tokens`` tokens; for the last phase see ``jointly.py``.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from fedkeel.core.method import register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.dual.jointly import Jointly
from fedkeel.methods.dual.peft.module import Module
from fedkeel.methods.dual.peft.prompt import CONTEXT
from fedkeel.methods.dual.transport import Transported
from fedkeel.rows.items import Items


@register("fedotp", paper="a shared and an own prompt, matched by optimal transport (Li et al., CVPR 2024)")
class FedOTP(Transported, Jointly):
    kind: ClassVar[type[Module]] = Transported

    def both(self, shared: Tree, own: Tree, x: Items) -> Tensor:
        prompts = [x.dual.class_features(part[CONTEXT]) for part in (shared, own)]
        return self.matched(x, torch.stack(prompts))
