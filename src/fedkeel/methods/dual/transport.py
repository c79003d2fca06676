"""Items as sets of local features, matched to prompts by optimal transport: what FedOTP reads and computes.

The plan T between the M local features of an item (patches, tokens) and the N prompts of a class, with s the cosines:

    T = argmin over T >= 0 of sum of T (1 - s) + eps * sum of T log T,   T 1 <= 1 / M,   T^T 1 = gamma / N

by at most 100 steps of the generalised Sinkhorn scheme (Benamou et al., SIAM J. Sci. Comput. 2015):

    K = exp(-(1 - s) / eps),   u = min(1 / (M K v), 1),   v = (gamma / N) / (K^T u),   T = diag(u) K diag(v)

from u = 1. Each plan stops by itself when no u moves by more than a thousandth of itself, so what else is in a batch
does not matter (our choice; the released code stops all together).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.tree import Tensor, Tree
from fedkeel.methods.dual.peft.prompt import CONTEXT, Prompt
from fedkeel.models.encoders import Encoder, Model
from fedkeel.models.halves import cut_texts, encoding
from fedkeel.rows.items import Items

LOCAL = "local"
STEPS, STILL = 100, 1e-3
ENTRIES = 4_000_000
"""Of all plans that are computed at once, at most about so many."""


class Transported(Prompt):
    """Soft prompts whose class features meet an item's local features."""

    eps: float = Field(0.1, gt=0)
    """how much the plan is smoothed"""
    gamma: float = Field(0.8, gt=0, le=1)
    """how much of an item is transported: the rest of its local features need not fit any prompt"""
    text_tokens: int = Field(128, ge=1)
    """how many tokens of a text are read"""
    segment: int = Field(8, ge=1)
    """tokens of a text whose mean is one local feature"""

    def encoders(self, item: Encoder) -> dict[str, Encoder]:
        return {LOCAL: local_features(item, self.text_tokens, self.segment)}

    def logits(self, params: Tree, x: Items) -> Tensor:
        return self.matched(x, x.dual.class_features(params[CONTEXT]).unsqueeze(0))

    def matched(self, x: Items, prompts: Tensor) -> Tensor:
        """scale * sum of T s, of class features (prompts, classes, d). No gradient flows through the plan."""
        count, classes, dim = prompts.shape
        each = classes * count * x.held[LOCAL][0].shape[1] // dim
        return torch.cat([self._matched(part, prompts) for part in x.parts(max(1, ENTRIES // each))])

    def _matched(self, x: Items, prompts: Tensor) -> Tensor:
        local = torch.nn.functional.normalize(x.get(LOCAL).view(len(x), -1, x.dual.dim), dim=-1)
        similar = torch.einsum("nmd,pcd->ncmp", local, prompts)
        real = local.ne(0).any(-1)
        with torch.no_grad():
            moved = plan(similar, real.unsqueeze(1), self.eps, self.gamma)
        return x.dual.scale * (moved * similar).sum((-1, -2))


def plan(similar: Tensor, real: Tensor, eps: float, gamma: float) -> Tensor:
    """T (..., M, N) of cosines (..., M, N); local features that are not real (..., M) take no part."""
    nearest = similar.amax(-2, keepdim=True)  # v makes up for it, and nothing underflows
    kernel = ((similar - nearest) / eps).exp() * real.unsqueeze(-1)
    rows, share = real.sum(-1, keepdim=True), gamma / similar.shape[-1]

    def columns(u: Tensor) -> Tensor:
        """v"""
        held = (kernel * u.unsqueeze(-1)).sum(-2)
        return share / held.clamp(min=torch.finfo(held.dtype).tiny)  # 0 of an item without local features

    u = torch.ones_like(kernel[..., 0])
    v, moves = columns(u), torch.ones_like(u[..., :1], dtype=torch.bool)
    for _ in range(STEPS):
        next_u = (1 / (rows * (kernel * v.unsqueeze(-2)).sum(-1))).clamp(max=1)
        moves = moves & ((next_u - u).abs() > STILL * next_u).any(-1, keepdim=True)
        if not moves.any():
            break
        u = torch.where(moves, next_u, u)
        v = torch.where(moves, columns(u), v)
    return u.unsqueeze(-1) * kernel * v.unsqueeze(-2)


def local_features(item: Encoder, tokens: int, segment: int) -> Encoder:
    """What the item tower knows of each part of an item, in the space of its features: one after the other, then zeros.

    Of images all patches without the class token, of texts means over segments of so many of the first tokens.
    """
    what = f"first {tokens} tokens by {segment}" if item.kind == "texts" else "patches each"
    load = partial(_load, item, tokens, segment)
    return Encoder(item.name, item.kind, item.weights, f"{item.transform}, {what}", load)


def _load(item: Encoder, tokens: int, segment: int) -> Model:
    model, parts_of = item.model, _parts_of(item)
    assert model.read is not None
    read = cut_texts(model.read, item.kind, tokens)

    def flat(inputs: dict[str, Tensor]) -> Tensor:
        parts = parts_of(inputs)
        if parts.shape[2] != model.dim:
            raise _without_parts(item)
        return (segments(parts, tokens, segment) if item.kind == "texts" else parts).flatten(1)

    return encoding(item, read, flat)


def segments(states: Tensor, tokens: int, size: int) -> Tensor:
    """Means over runs of the tokens that are there, of (rows, at most so many tokens, d); zeros where there is none."""
    count = -(-tokens // size)
    padded = torch.nn.functional.pad(states, (0, 0, 0, count * size - states.shape[1]))
    runs = padded.reshape(len(states), count, size, -1)
    return runs.sum(2) / runs.ne(0).any(-1).sum(2).clamp(min=1).unsqueeze(-1)


def _parts_of(item: Encoder) -> Callable[[dict[str, Tensor]], Tensor]:
    """The network's inputs of some rows -> (rows, parts, d), zeros where a text is padded."""
    network: Any = item.model.network
    paired = hasattr(network, "get_text_features")

    def patches(inputs: dict[str, Tensor]) -> Tensor:
        hidden = network.vision_model(**inputs).last_hidden_state
        projected: Tensor = network.visual_projection(network.vision_model.post_layernorm(hidden))
        return projected[:, 1:]

    def tokens(inputs: dict[str, Tensor]) -> Tensor:
        hidden: Tensor = (network.text_model if paired else network)(**inputs).last_hidden_state
        projected = network.text_projection(hidden) if paired else hidden
        return projected * inputs["attention_mask"].unsqueeze(-1)

    if item.kind == "images" and hasattr(network, "visual_projection"):
        return patches
    if item.kind == "texts" and (hasattr(network, "text_projection") or not paired):
        return tokens
    raise _without_parts(item)


def _without_parts(item: Encoder) -> FedkeelError:
    return FedkeelError(
        f"encoder {item.name} has no features of patches or tokens in the space of its class names: set data.encoder "
        "to minilm or a CLIP model with data.pooling auto, or take a method other than fedotp"
    )
