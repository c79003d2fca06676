"""How far something is and how long it takes, by a clock that the test moves."""

from __future__ import annotations

import pytest

from fedkeel.commands.pace import Pace
from fedkeel.core.watch import Progress, Watch, spoken


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in ("fedkeel.core.watch", "fedkeel.commands.pace"):
        monkeypatch.setattr(f"{module}.monotonic", found)
    return found


def test_progress_knows_how_long_the_rest_takes(clock: Clock) -> None:
    told: list[tuple[float, float | None]] = []
    progress = Progress(1000, lambda share, left: told.append((share, left)))
    clock.now += 1
    progress.add(10)
    assert told == [(0.01, None)], "nobody knows so early"
    for _ in range(4):
        clock.now += 1
        progress.add(10)
    assert told[-1][0] == 0.05
    assert told[-1][1] == pytest.approx(95), "ten a second"
    clock.now += 50
    progress.add(0)
    assert len(told) == 5, "what stands for no amount tells nothing,"
    for _ in range(30):
        clock.now += 1
        progress.add(20)
    assert told[-1] == (0.65, pytest.approx(17.5)), "and takes no time; what counts is the pace of the last seconds"


def test_progress_tells_twice_a_second_and_never_more_than_all(clock: Clock) -> None:
    told: list[float] = []
    progress = Progress(10, lambda share, left: told.append(share))
    for _ in range(40):
        clock.now += 0.1
        progress.add(1)
    assert len(told) <= 9
    assert told[-1] == 1.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (89, "89 s"), (91, "2 min"), (3600, "60 min"), (9000, "2.5 h"), (90000, "25 h")],
)
def test_times_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


def test_the_pace_of_runs_is_that_of_their_method(clock: Clock) -> None:
    quick, slow = ("run", "ridge"), ("run", "fedavg")
    pace = Pace([quick] * 3 + [slow] * 3)
    assert pace.left() == "", "none has ended"

    def run(job: tuple[str, str], seconds: float) -> None:
        pace.begun()
        clock.now += seconds
        pace.ended(job)

    run(quick, 10)
    assert pace.left() == "about 50 s left", "others may take as long"
    run(slow, 60)
    assert pace.left() == "about 2 min left", "2 x 10 + 2 x 60 = 140 s"
    for job, seconds in ((quick, 10), (quick, 10), (slow, 60)):
        run(job, seconds)
    assert pace.left() == "about 60 s left"
    run(slow, 60)
    assert pace.left() == "", "nothing is left"


def test_what_was_never_done_is_not_guessed_from_other_work(clock: Clock) -> None:
    pace = Pace([("run", "fedavg")] * 2 + [("personalise", "ft")] * 2)
    clock.now += 5
    pace.ended(("run", "fedavg"))
    assert pace.left() == "more than 5 s left"


def test_encoding_for_all_is_not_the_pace_of_one(clock: Clock) -> None:
    pace, seen = Pace([("run", "fedavg")] * 2), list[int]()
    watch = pace.of_runs(Watch(encoded=lambda done, total: seen.append(done)))
    clock.now += 1000
    watch.encoded(5, 5)
    clock.now += 7
    pace.ended(("run", "fedavg"))
    assert (seen, pace.left()) == ([5], "about 7 s left")
