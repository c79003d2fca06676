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
from fedkeel.personal.work import COUNTED_ROWS, Work
from fedkeel.rows.inputs import FORWARD_AND_BACK
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
    """What will be done: how many clients train which part for how long."""
    strategy, down = work.strategy, work.state.down
    stages = [
        f"{phase.epochs} epochs of {sum(value.numel() for value in select(down, phase.trains).values()):,} weights"
        for phase in strategy.plan(1)
        if phase.epochs
    ]
    done = f", {clients - left} of them are done" if left < clients else ""
    return f"{strategy.name}: {clients} clients{done}; each trains {', then '.join(stages)}"


def rows_to_read(work: Work, clients: Sequence[int], tested: bool) -> int:
    """How many rows a network will read for these clients' models, those with gradients three times; none: no network.

    The global model is tested as well, unless it was.
    """
    if work.sites.x.tensor is not None:
        return 0
    sizes, tests = work.sites.owned.sizes, len(work.tests.y)
    phases = work.strategy.plan(1)
    each = [sum(_rows(phase, int(sizes[client])) for phase in phases) + 2 * sizes[client] for client in clients]
    return int(sum(each)) + tests * (len(clients) + (not tested))


def _rows(phase: Phase, size: int) -> int:
    counted = FORWARD_AND_BACK * min(size, COUNTED_ROWS)
    if phase.trains == (HEAD,):
        return size + counted
    if not phase.epochs:
        return FORWARD_AND_BACK * size + counted
    return FORWARD_AND_BACK * phase.epochs * int(visited(np.array(size), phase)) + counted
