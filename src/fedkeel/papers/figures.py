"""Figures of a paper that need no runs: a recipe names them, each gives a section of a page and the same as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from fedkeel.papers import theory_page

FIGURES: dict[str, Callable[[Sequence[int]], tuple[Markup, Callable[[int | None], str]]]] = {
    "theory": theory_page.section
}
"""By the name in a recipe; the seeds key the draws."""
