"""Published papers: what they say of themselves, and the numbers that recipes set beside ours."""

from __future__ import annotations

import fedkeel.papers.fedpurel as fedpurel
import fedkeel.papers.lp_ft as lp_ft
import fedkeel.papers.ova_lp as ova_lp
from fedkeel.papers.claims import Paper, Source

PAPERS: dict[str, Paper] = {"ova-lp": ova_lp.PAPER, "lp-ft": lp_ft.PAPER, "fedpurel": fedpurel.PAPER}
RECIPES: dict[str, tuple[Source, ...]] = {**ova_lp.RECIPES, **lp_ft.RECIPES, **fedpurel.RECIPES}
"""Figures and tables by the recipe that shows them."""
