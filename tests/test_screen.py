"""What a person sees while something runs, in a terminal and elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from fedkeel import screen
from fedkeel.core.watch import Watch

LONG = "ova-lp-bernoulli-dirichlet-participation=0.1-seed0"


def tell(watch: Watch) -> None:
    """Two runs of a grid, one of them kept, and a client that is being personalised."""
    watch.ended(1, 3, "fedavg-iid-seed0: 90.00 %, kept", "")
    watch.begun(2, 3, LONG)
    watch.round(1, 2, 0.5)
    watch.round(2, 2, 0.7161)
    watch.ended(2, 3, f"{LONG}: 71.61 %", "about 3 min left")
    watch.share(0.25, 100.0)
    watch.share(0.5, None)


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "QUIET_SECONDS", -1.0)
    out = io.StringIO()
    with screen.watched(Console(file=out, width=200), "comparing") as watch:
        tell(watch)
    assert out.getvalue().splitlines() == [
        "1/3 fedavg-iid-seed0: 90.00 %, kept",
        f"2/3 {LONG}",
        "round 1 of 2, accuracy 50.00%",
        "round 2 of 2, accuracy 71.61%",
        f"2/3 {LONG}: 71.61 %, about 3 min left",
        "25% done, about 2 min left",
        "50% done",
    ]


def test_bars_in_a_terminal_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    out, made = io.StringIO(), list[Progress]()

    class Kept(Progress):
        def __init__(self, *columns: Any, **settings: Any) -> None:
            super().__init__(*columns, **settings)
            made.append(self)

    def shown() -> list[str]:
        paper = Console(width=80, file=io.StringIO())
        with paper.capture() as captured:
            paper.print(made[0].get_renderable())
        return captured.get().splitlines()

    monkeypatch.setattr(screen, "Progress", Kept)
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with screen.watched(console, "comparing") as watch:
        assert shown()[0].startswith("comparing "), "something moves before anything is known"
        tell(watch)
        lines = shown()
    assert [len(line) <= 80 for line in lines] == [True] * 3, "the grid, its run and the share: a line each"
    assert lines[0].startswith("comparing, about 3 min left ")
    assert " 2/3 " in lines[0]
    assert lines[1].startswith("2/3 ova-lp-bernoulli-dirichlet")
    assert lines[2].startswith("per cent ")
    assert f"2/3 {LONG}: 71.61 %" in out.getvalue(), "the accuracy of a finished cell stays"
