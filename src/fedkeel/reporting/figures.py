"""Figures of a paper that need no runs: a recipe names them, each gives a section of a page and the same as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedkeel.reporting import theory

FIGURES: dict[str, Callable[[Sequence[int]], tuple[str, str]]] = {"theory": theory.section}
"""By the name in a recipe; the seeds key the draws."""
