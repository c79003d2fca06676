"""LP-FT's theory, checked: its two-layer linear model in closed form, by simulation, and as the paper prints it.

Chen et al., A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated Learning, arXiv 2511.12695, Section 4
and appendices E and F. docs/theory.md derives what ``exact`` states and says where ``printed`` differs from it.
"""

from __future__ import annotations

from fedkeel.papers.theory import exact, printed
from fedkeel.papers.theory.exact import lpft_not_worse
from fedkeel.papers.theory.simulation import fine_tune, matched, sample_moment
from fedkeel.papers.theory.world import CONVERGED, NO_PROBING, Model, World, draw

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
