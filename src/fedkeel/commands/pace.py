"""How long the rest of many runs takes, from those that have ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean
from time import monotonic

from fedkeel.core.watch import Watch, spoken

Job = tuple[str, str]
"""What is done, "run" or "personalise", and the method that does it: jobs that are alike take about as long."""


class Pace:
    def __init__(self, jobs: Iterable[Job]) -> None:
        """``jobs`` are all that are still to be done."""
        self._open, self._took = Counter(jobs), defaultdict[Job, list[float]](list)
        self._began = monotonic()

    def begun(self) -> None:
        """The clock of a job starts, or starts again: what the first one does for all, such as encoding, is its own."""
        self._began = monotonic()

    def of_runs(self, watch: Watch) -> Watch:
        """The watch, for runs whose clock starts when their rows are encoded."""

        def encoded(done: int, total: int) -> None:
            watch.encoded(done, total)
            self.begun()

        return replace(watch, encoded=encoded)

    def ended(self, job: Job) -> None:
        self._took[job].append(monotonic() - self._began)
        self._open[job] -= 1

    def without(self, jobs: Iterable[Job]) -> None:
        """Jobs that will not be done after all."""
        self._open.subtract(jobs)

    def left(self) -> str:
        """How long it takes to do what is open, as far as anything like it was done; nothing if all is unknown."""
        known, unknown = 0.0, 0
        for job, count in (+self._open).items():
            alike = self._took.get(job) or [s for other, took in self._took.items() if other[0] == job[0] for s in took]
            known += count * fmean(alike) if alike else 0.0
            unknown += 0 if alike else count
        if not known:
            return ""
        return f"{'more than' if unknown else 'about'} {spoken(known)} left"
