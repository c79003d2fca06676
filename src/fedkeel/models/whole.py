"""A network as one module: what ``functional_call`` needs to replace its weights for one call."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Whole(nn.Module):
    """Inputs to features, with the network as a submodule whose weights can be replaced for one call."""

    def __init__(self, network: nn.Module, apply: Callable[[dict[str, Tensor]], Tensor]) -> None:
        super().__init__()
        self.network = network
        self._features = apply

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self._features(inputs)
