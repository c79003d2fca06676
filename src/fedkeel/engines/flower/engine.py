"""The engine of real sites: every exchange is a signed request to each site of the cohort, over a Flower grid.

The server half alone: it knows a roster, and who of it is there. A site that was not there when the run began joins
before the next exchange, once it has enrolled; one that is away is told in the record and not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from fedkeel.core.errors import BadMessage
from fedkeel.core.message import NEVER, Down, encode
from fedkeel.core.method import AnyMethod, Phase, State
from fedkeel.core.roster import Enrolment, Roster
from fedkeel.core.tree import Tensor, Tree
from fedkeel.engines.base import Exchange
from fedkeel.engines.flower import enrolment
from fedkeel.engines.flower.envelope import ASKS, Ask
from fedkeel.engines.flower.post import Post, Reply
from fedkeel.engines.server import Server

PREPARED_MEAN = "prepare.mean"
"""The federation's mean feature, which every request of a run on centred features brings: a site keeps none."""
Enrolled = Callable[[Enrolment], None]


class FlowerEngine:
    def __init__(
        self,
        post: Post,
        roster: Roster,
        quorum: float = 0.5,
        enrolled: Sequence[Enrolment] = (),
        joined: Enrolled = lambda enrolment: None,
        refused: Callable[[str, str], None] = lambda name, reason: None,
    ) -> None:
        """``quorum`` is the share of a cohort from which updates must pass; ``joined`` and ``refused`` are told of
        sites that want to enrol."""
        self.post, self.quorum = post, quorum
        self.accepted = np.full(len(roster.names), NEVER, dtype=np.int64)
        self.mean: Tensor | None = None
        self.joined, self._refused_site = joined, refused
        self.enrolled: dict[int, Enrolment] = {}
        self._strangers: set[int] = set()
        self.roster = roster
        for one in enrolled:
            self._take(list(roster.names).index(one.names[0]), one)

    # ---- who is there

    def enrolment(self) -> Enrolment:
        """Of all sites that have enrolled, with those that have not as clients without rows."""
        classes = self.roster.classes
        nothing = np.zeros(classes, dtype=np.int64)
        parts = [
            self.enrolled.get(client) or Enrolment.of_counts([name], nothing[None], 0, nothing)
            for client, name in enumerate(self.roster.names)
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.joined(part)
        return whole

    def enrol(self, deadline: float | None = None) -> None:
        """Let everybody enrol who is there and has not."""
        self._enrol(self.post.online(), deadline)

    def _enrol(self, there: Iterable[int], deadline: float | None = None) -> None:
        new = [client for client in there if client not in self.enrolled and client not in self._strangers]
        if not new:
            return
        request = encode(Down(self.roster.run, 0, enrolment.PHASE, {}))
        for reply in self.post.ask("enrol", dict.fromkeys(new, request), deadline=deadline):
            name = self.roster.names[reply.client]
            try:
                if reply.problem:
                    raise BadMessage(reply.problem)
                found = enrolment.heard(reply.body, self.roster.run, name, self.roster.classes)
            except BadMessage as bad:
                self._strangers.add(reply.client)
                self._refused_site(name, str(bad))
                continue
            self._take(reply.client, found)
            self.joined(found)

    def _take(self, client: int, found: Enrolment) -> None:
        self.enrolled[client] = found
        rows = self.roster.rows.copy()
        rows[client] = int(found.rows[0])
        self.roster = replace(self.roster, rows=rows)

    def forgive(self) -> None:
        """Let sites that could not enrol try again, between rounds: somebody may have mended what was wrong."""
        self._strangers.clear()

    # ---- exchanges

    def exchange(self, method: AnyMethod, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
        server = Server(self.roster, self.accepted, method, state, phase, round)
        index = [planned.name for planned in method.plan(round)].index(phase.name)
        bodies = {client: encode(self._request(server, client)) for client in cohort}
        ask: Ask = method.name if method.name in ASKS else "train"  # type: ignore[assignment]
        for reply in self.post.ask(ask, bodies, round, index):
            self._receive(server, reply, phase, len(bodies[reply.client]))
        self._enrol(self.post.there)
        least = 1 if phase.looks else max(1, math.ceil(self.quorum * len(cohort)))
        return server.outcome(cohort, least if cohort else 0)

    def _request(self, server: Server, client: int) -> Down:
        request = server.request(client)
        mean: Tree = {} if self.mean is None else {PREPARED_MEAN: self.mean}
        return replace(request, arrays={**request.arrays, **mean})

    def _receive(self, server: Server, reply: Reply, phase: Phase, down: int) -> None:
        server.client_seconds += reply.seconds
        if reply.seconds:
            server.bytes_down += down
        if reply.problem:
            server.refuse(reply.client, reply.problem)
        elif phase.sends:
            server.receive(reply.client, reply.body)
        else:
            server.receive_sign(reply.client, reply.body)

    def finish(self, body: Callable[[int], bytes]) -> list[Reply]:
        """Give every site that enrolled the finished model, and with it the word which of its updates were accepted."""
        return self.post.ask("finish", {client: body(client) for client in sorted(self.enrolled)})

    def settle(self) -> None:
        """Sites make what they keep last before they reply."""

    def resume(self, accepted: np.ndarray, last: int) -> None:
        """A request says which of its updates was accepted last, and a site forgets what came later."""
        self.accepted[:] = accepted
