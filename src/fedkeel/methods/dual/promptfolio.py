"""PromptFolio: class features are a portfolio of those of a shared prompt and of a client's own.

Pan, Huang, Shi, Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and Method, NeurIPS
2024. With h_G(c) and h_L(c) the unit class features of the shared and of the client's own context:

    t(c) = (1 - theta) h_G(c) + theta h_L(c),   logits = scale * item . t,   theta = 0.4,   loss: cross-entropy

The sum is not brought to unit length again, as in the released code. Both contexts are trained in every visit, only the
shared one is averaged. Our choices: a client's context starts as a copy of the shared one (the released code draws it
apart); the model without a client is the shared context alone; for the last phase see ``jointly.py``.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.core.method import register
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.dual.jointly import Jointly
from fedkeel.methods.dual.peft.prompt import CONTEXT
from fedkeel.rows.items import Items


@register("promptfolio", paper="a shared and an own prompt, features mixed (Pan et al., NeurIPS 2024)")
class PromptFolio(Jointly):
    theta: float = Field(0.4, ge=0, le=1)
    """share of the client's own prompt in the class features"""

    def both(self, shared: Tree, own: Tree, x: Items) -> Tensor:
        common, personal = (x.dual.class_features(part[CONTEXT]) for part in (shared, own))
        return x.logits(x.features, (1 - self.theta) * common + self.theta * personal)
