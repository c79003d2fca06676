"""Which of LP-FT's strategies is best in runs, and whether that is LP-FT, as its paper claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedkeel.papers.lp_ft import STRATEGIES
from fedkeel.reporting.personalised import Way


def verdicts(made: Sequence[Way], where: str) -> Iterable[str]:
    """Of the personal models of one group of runs; nothing unless LP-FT and another of its strategies are there."""
    ranked = [way for way in made if way.name in STRATEGIES]
    if len(ranked) < 2 or "lp-ft" not in {way.name for way in ranked}:
        return
    found = []
    for metric, words in (("average_lgw", "Average"), ("global_incl", "Global")):
        means = [(way.mean(metric)[0], way) for way in ranked]
        scores = [(score, way) for score, way in means if score is not None]
        best, ours = max(score for score, _ in scores), max(score for score, way in scores if way.name == "lp-ft")
        winner = next(way for score, way in scores if score == best)
        behind = "" if winner.name == "lp-ft" else f", {best - ours:.1f} points above lp-ft"
        found.append(f"best {words}: {winner.label} ({best:.1f} %{behind})")
    yield f"Of the paper's strategies{where}, {'; '.join(found)}. The paper finds LP-FT best in both on most data."
