"""The server's half of one exchange: what goes down, the gate for what comes up, and the mean of what passed.

It knows a roster and never a row. An update waits until it is known what is usual in the cohort, so that a refused one
leaves no trace, not even in the order of the others. Where a cohort's updates take more memory than ``ROOM`` they are
added up as they come, in float64, and only those of a suspicious length wait.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from fedkeel.core.errors import BadMessage, shortened
from fedkeel.core.message import NEVER, Down, Up, decode, size
from fedkeel.core.method import AnyMethod, Phase, State, Update, exchange_number
from fedkeel.core.roster import Roster
from fedkeel.core.tree import Tree, select, stack, unstack
from fedkeel.engines import gate
from fedkeel.engines.base import Exchange, Refusal, going_down

PLAIN = re.compile(r"[A-Za-z0-9 ._-]*").fullmatch
"""Names that take in a message as many bytes as they have letters."""
ROOM = 2**28
"""Bytes of updates that may wait."""
FEW = 5
"""Updates that must be known before anything can be called usual."""
SUSPICIOUS = 30.0
"""An update this many times as long as usual waits until the whole cohort is known."""


class WeightedMean:
    """sum_k w_k u_k / sum_k w_k, summed in float64; the names in ``phase.uniform`` count every client alike."""

    def __init__(self, like: Tree, phase: Phase) -> None:
        self._like = like
        self._uniform = {name for name in like if name.startswith(phase.uniform)} if phase.uniform else set()
        self._sums = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in like.items()}
        self._weight = 0.0
        self.count = 0

    def add(self, update: Tree, weight: float) -> None:
        """One client after the other, whatever the engine: so the sum is the same to the bit for any stacking."""
        for name, array in update.items():
            self._sums[name].add_(array, alpha=1.0 if name in self._uniform else weight)
        self._weight += weight
        self.count += 1

    def result(self) -> Tree | None:
        """The mean in the dtype of the model; None if nothing was added."""
        if not self.count:
            return None
        return {
            name: (total / (self.count if name in self._uniform else self._weight)).to(self._like[name].dtype)
            for name, total in self._sums.items()
        }


@dataclass(frozen=True)
class Waiting:
    """An update that passed the gate but for its length."""

    client: int
    update: Tree
    length: float


class Server:
    """One exchange, from the requests to its outcome."""

    def __init__(
        self, roster: Roster, accepted: np.ndarray, method: AnyMethod, state: State, phase: Phase, round: int
    ) -> None:
        """``accepted`` is brought up to date when the exchange ends."""
        self.roster, self._accepted, self._phase, self._round = roster, accepted, phase, round
        self._number, self._per_client = exchange_number(method, round, phase), state.per_client
        self.visible = going_down(state, phase)
        self._first = {**select(state.down, method.first_visit), **self.visible}
        self.expected: Tree = select(state.down, phase.sends) if phase.sends else {}
        self._singly = {name for name in self.expected if name.startswith(phase.each)} if phase.each else set()
        together = {name: value for name, value in self.expected.items() if name not in self._singly}
        self._mean = WeightedMean(together, phase)
        self._each: dict[int, Tree] = {}
        self._limit, _ = gate.limit(0.0, phase, roster)
        self._at_once = gate.known_beforehand(phase, roster)
        self._room = ROOM // max(1, sum(value.nbytes for value in self.expected.values()))
        self._lengths: list[float] = []
        self._usual, self._known = 0.0, 0
        self._waiting: list[Waiting] = []
        self._refused: dict[int, str] = {}
        self._passed: list[int] = []
        self._heard: set[int] = set()
        self.bytes_up = self.bytes_down = 0
        self.client_seconds = self.server_seconds = 0.0

    # ---- down

    def down(self, client: int) -> Tree:
        """The arrays that go down to a client, apart from what is for it alone."""
        return self._first if self._accepted[client] == NEVER else self.visible

    def request(self, client: int) -> Down:
        arrays = {**self.down(client), **unstack(self._per_client, client)}
        return Down(self.roster.run, self._round, self._phase.name, arrays, int(self._accepted[client]))

    def count_bytes(self, cohort: Sequence[int]) -> None:
        """Count the bytes of a whole cohort without making them: they differ by first visits and lengths of names."""
        if not cohort:
            return
        new = int((self._accepted[list(cohort)] == NEVER).sum())
        own = unstack(self._per_client, 0)
        for arrays, count in ((self._first, new), (self.visible, len(cohort) - new)):
            self.bytes_down += count * size(Down(self.roster.run, self._round, self._phase.name, {**arrays, **own}))
        known: dict[int, int] = {}
        for client in cohort if self._phase.sends else ():
            name = self.roster.names[client]
            letters = len(name) + 2 if PLAIN(name) else len(json.dumps(name, ensure_ascii=False).encode())
            if letters not in known:
                known[letters] = size(self._due(client, self.expected))
            self.bytes_up += known[letters]

    # ---- up

    def receive(self, client: int, reply: bytes) -> None:
        """A client's reply as it came; only its first one counts."""
        started = perf_counter()
        self.bytes_up += len(reply)
        if client in self._heard:
            return
        self._heard.add(client)
        try:
            message = decode(reply)
        except BadMessage as bad:
            self._refuse(client, str(bad))
            return
        arrays = message.arrays
        reason = gate.addressed(message, self._due(client, arrays)) or gate.misfits(arrays, self.expected)
        reason = reason or gate.no_numbers(arrays)
        if reason is not None:
            self._refuse(client, reason)
        else:
            effort = gate.effort(self.roster, self._phase, [client])
            stacked = {name: value.unsqueeze(0) for name, value in arrays.items()}
            self._judge(client, arrays, float(gate.lengths(stacked)[0] / effort[0]))
        self.server_seconds += perf_counter() - started

    def receive_stack(self, group: Sequence[int], sends: Tree) -> None:
        """The updates of some clients that were never on a wire, as one stack."""
        started = perf_counter()
        reason = gate.misfits(sends, self.expected, stacked=1)
        if reason is not None:
            for client in group:
                self._refuse(client, reason)
            return
        found = gate.lengths(sends) / gate.effort(self.roster, self._phase, group)
        for index, client in enumerate(group):
            update = unstack(sends, index)
            reason = None if np.isfinite(found[index]) else gate.no_numbers(update)
            if reason is not None:
                self._refuse(client, reason)
            else:
                self._judge(client, update, float(found[index]))
        self.server_seconds += perf_counter() - started

    def receive_sign(self, client: int, reply: bytes) -> None:
        """A reply in a phase from which nothing leaves: that the client has done its work, and no more."""
        self.bytes_up += len(reply)
        try:
            message = decode(reply)
        except BadMessage as bad:
            self._refuse(client, str(bad))
            return
        reason = gate.addressed(message, self._due(client, {})) or gate.misfits(message.arrays, {})
        if reason is not None:
            self._refuse(client, reason)
        elif client not in self._heard:
            self._heard.add(client)
            self._passed.append(client)

    def refuse(self, client: int, reason: str) -> None:
        """A client of which there is no update to look at."""
        self._heard.add(client)
        self._refuse(client, reason)

    def nothing_to_send(self, clients: Sequence[int]) -> None:
        """Clients that worked in a phase from which nothing leaves."""
        self._passed += clients

    def _refuse(self, client: int, reason: str) -> None:
        self._refused[client] = shortened(reason)

    def _due(self, client: int, arrays: Tree) -> Up:
        """The update that is expected of a client, but for its numbers."""
        name, rows = self.roster.names[client], float(self.roster.rows[client])
        return Up(self.roster.run, self._round, self._phase.name, name, rows, arrays)

    def _judge(self, client: int, update: Tree, length: float) -> None:
        """Add the update, or let it wait until it is known what is usual."""
        self._lengths.append(length)
        if self._at_once and length <= self._limit:
            self._add(client, update)
            return
        if self._at_once or len(self._lengths) <= self._room:
            self._waiting.append(Waiting(client, update, length))
            return
        if self._known and length <= self._usual:
            self._add(client, update)
        else:
            self._waiting.append(Waiting(client, update, length))
        if len(self._lengths) >= max(FEW, 2 * self._known):  # now and then is enough
            self._known = len(self._lengths)
            self._usual = min(SUSPICIOUS * gate.usual(self._lengths), self._limit)
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if one.length <= self._usual:
                    self._add(one.client, one.update)
                else:
                    self._waiting.append(one)

    def _add(self, client: int, update: Tree) -> None:
        together = update
        if self._singly:
            together = {name: value for name, value in update.items() if name not in self._singly}
            self._each[client] = {name: update[name] for name in self._singly}
        self._mean.add(together, float(self.roster.rows[client]))
        self._passed.append(client)

    # ---- the outcome

    def outcome(self, cohort: Sequence[int], quorum: int = 1) -> Exchange:
        """Decide on what waited, and end the exchange; clients of the cohort that never replied are refused.

        Where fewer than ``quorum`` updates passed, the exchange is lost: none of them is accepted.
        """
        started = perf_counter()
        median = gate.usual(self._lengths) if self._lengths else 0.0
        for one in self._waiting:
            reason = gate.too_long(one.length, median, self._phase, self.roster)
            if reason is None:
                self._add(one.client, one.update)
            else:
                self._refuse(one.client, reason)
        if len(self._passed) < quorum:
            few = f"only {len(self._passed)} of {len(cohort)} updates passed, below the quorum of {quorum}"
            self._refused = {**dict.fromkeys(self._passed, few), **self._refused}
            self._passed, self._mean.count = [], 0
        passed = set(self._passed)
        for client in cohort:
            if client not in passed:
                self._refused.setdefault(client, "no reply")
        if not self._phase.looks:
            self._accepted[self._passed] = self._number
        refused = [Refusal(self.roster.names[client], self._refused[client]) for client in sorted(self._refused)]
        update = self._update() if self._phase.sends else None
        self.server_seconds += perf_counter() - started
        mean_seconds = self.client_seconds / max(1, len(cohort))
        return Exchange(update, len(passed), refused, self.bytes_up, self.bytes_down, mean_seconds, self.server_seconds)

    def _update(self) -> Update | None:
        mean = self._mean.result()
        if mean is None:
            return None
        clients = sorted(self._passed)
        rows = torch.from_numpy(self.roster.rows[clients].astype(np.float64))
        each = stack([self._each[client] for client in clients]) if self._singly else {}
        return Update(mean, each, torch.tensor(clients), rows, self._round)
