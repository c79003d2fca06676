"""What a command to personalise asked for, what that means, and how much work it is: told before it begins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedkeel.core.method import AnyMethod, Phase
from fedkeel.core.tree import HEAD, select
from fedkeel.engines.base import visited
from fedkeel.engines.site import BACK
from fedkeel.personal.work import COUNTED_ROWS, Work
from fedkeel.runs.events import Record


@dataclass(frozen=True)
class Wish:
    """What a command asks for."""

    words: tuple[str, ...]
    """how it says which models, and how they are made"""
    only: tuple[str, ...] = ()
    """clients by name; none = all"""
    engine: str = "local"

    @classmethod
    def of(cls, method: str, texts: Sequence[str] = (), only: Sequence[str] = (), engine: str = "local") -> Wish:
        words = ["--method", method]
        words += ["--set", *texts] if texts else []
        words += ["--engine", engine] if engine != "local" else []
        return cls(tuple(words), tuple(only), engine)

    def command(self, run: Path) -> str:
        """The command that asks for this."""
        whose = ["--clients", ",".join(self.only)] if self.only else []
        return shlex.join(["fedkeel", "personalize", str(run), *self.words, *whose])

    @classmethod
    def behind(cls, record: Record) -> Wish:
        """What was asked for last; a record that ends before that knows its method alone."""
        asked = record.asked or {"words": ["--method", record.method], "only": []}
        return cls(tuple(asked["words"]), tuple(asked["only"]))


def usual(run: AnyMethod) -> tuple[str, str]:
    """How a run is personalised if nobody says, and a line about it: nothing that a run never did takes hours."""
    if run.reads == "features":
        return "lp", "personalising with lp: the head alone, as in the run; --method lp-ft trains the encoder, too"
    return "lp-ft", "personalising with lp-ft: the head, then all that the run trained; --method lp ends after the head"


def unfinished(record: Record) -> str:
    """How far an interrupted attempt is, and the command that continues it."""
    clients = record.asked["clients"] if record.asked else range(len(record.start["clients"]["names"]))
    done = len({event["client"] for event in record.personal}.intersection(clients))
    again = Wish.behind(record).command(record.folder.parent.parent)
    return f"{done} of {len(clients)} clients are done, {again} continues"


def outline(work: Work, clients: int, left: int) -> str:
    """What will be done: how many clients train how many weights for how long."""
    stages = []
    for phase in work.strategy.plan(1):
        weights = sum(value.numel() for value in select(work.state.down, phase.trains).values())
        stages += [f"{_counted(phase.epochs, 'epoch')} of {weights:,} weights"] if phase.epochs else []
    done = f", {clients - left} of them done" if left < clients else ""
    return f"{work.strategy.name}: {_counted(clients, 'client')}{done}; each trains {', then '.join(stages)}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def rows_to_read(work: Work, clients: Sequence[int], tested: bool) -> int:
    """How many rows go through a network for these clients' models, counted as they beat; 0 where there is none.

    The global model is tested as well, unless it was.
    """
    if work.sites.x.tensor is not None:
        return 0
    sizes, tests = work.sites.owned.sizes, len(work.tests.y)
    phases = work.strategy.plan(1)
    each = [sum(_rows(phase, int(sizes[client])) for phase in phases) + 2 * sizes[client] for client in clients]
    return int(sum(each)) + tests * (len(clients) + (not tested))


def _rows(phase: Phase, size: int) -> int:
    counted = min(size, COUNTED_ROWS)
    if phase.trains == (HEAD,) or not phase.epochs:
        return size + counted
    return (1 + BACK) * phase.epochs * int(visited(np.array(size), phase)) + counted
