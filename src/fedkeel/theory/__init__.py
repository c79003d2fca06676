"""LP-FT's theory, checked: its two-layer linear model in closed form, by simulation, and as the paper prints it.

Chen et al., A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated Learning, arXiv 2511.12695, Section 4
and appendices E and F. docs/theory.md derives what ``exact`` states and says where ``printed`` differs from it.
"""

from __future__ import annotations

from fedkeel.theory import exact, printed
from fedkeel.theory.exact import lpft_not_worse
from fedkeel.theory.simulation import fine_tune, matched, sample_moment
from fedkeel.theory.world import CONVERGED, NO_PROBING, Model, World, draw

__all__ = [
    "CONVERGED",
    "NO_PROBING",
    "Model",
    "World",
    "draw",
    "exact",
    "fine_tune",
    "lpft_not_worse",
    "matched",
    "printed",
    "sample_moment",
]
