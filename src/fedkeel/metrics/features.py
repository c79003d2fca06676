"""What to know about features before heads are trained on them."""

from __future__ import annotations

MOST_COMMON = 0.5
"""A larger share of the features' energy in their mean is worth a warning."""


def common_mean(energy: float | None, source: str, features: str) -> str | None:
    """A warning of features whose energy is mostly one common mean that is left in; None if there is nothing to say."""
    if not energy or energy <= MOST_COMMON or features == "centred":
        return None
    return (
        f"{100 * energy:.0f} % of the energy of the features of {source} is one mean that all rows share, and "
        f'data.features = "{features}" leaves it in. Heads trained on such features drift apart on clients that hold '
        'few classes, so the published recipe is expected to fail here. Set data.features = "centred".'
    )
