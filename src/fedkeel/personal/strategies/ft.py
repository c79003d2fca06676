"""FT: all parameters, from the global model, on the client's own rows. LP-FT (arXiv 2511.12695), Section 3.2."""

from __future__ import annotations

from fedkeel.personal.strategy import Strategy, register


@register("ft", paper="full fine-tuning of all parameters (LP-FT's plain baseline)")
class FT(Strategy):
    pass
