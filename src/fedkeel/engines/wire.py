"""The reference engine: one client at a time, every message through bytes, autograd, PyTorch's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from fedkeel.core.errors import BadMessage
from fedkeel.core.message import Down, Up, decode, encode
from fedkeel.core.method import TOLD, Method, Phase, State, Visit, outgoing
from fedkeel.core.tree import Tree, select, unstack
from fedkeel.engines import alone
from fedkeel.engines.base import Clients, Exchange, going_down
from fedkeel.engines.gate import Refusal, refusal
from fedkeel.engines.gather import Gather

Transport = Callable[[str, bytes], bytes]


def untouched(client: str, reply: bytes) -> bytes:
    return reply


@dataclass(frozen=True)
class WireEngine:
    clients: Clients
    transport: Transport = untouched
    """What happens to a reply on its way; tests put faults here."""

    def exchange(self, method: Method, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
        expected = select(state.down, phase.sends) if phase.sends else {}
        gather = Gather(expected, phase, round)
        refused: list[Refusal] = []
        up = down = 0
        client_seconds = server_seconds = 0.0
        everybody = encode(Down(round, phase.name, going_down(state, phase)))
        for client in cohort:
            started = perf_counter()
            name, rows = self.clients.names[client], len(self.clients.owned.of(client))
            request = everybody
            if state.told:
                request = encode(Down(round, phase.name, {**going_down(state, phase), **unstack(state.told, client)}))
            reply, mine = self.work(method, decode(request), phase, client, self.clients.mine(client, method, state))
            replied = perf_counter()
            client_seconds += replied - started
            down += len(request)
            if phase.sends:
                data = self.transport(name, encode(reply))
                up += len(data)
                try:
                    message = decode(data)
                    reason = refusal(message, name, rows, round, phase, expected)
                except BadMessage as bad:
                    reason = str(bad)
                if reason is not None:
                    refused.append(Refusal(name, reason))
                    continue  # what the client learnt for itself is dropped with the update it belongs to
                assert isinstance(message, Up)
                gather.add(client, message.arrays, message.weight)
            if mine:
                self.clients.private[client] = mine
            server_seconds += perf_counter() - replied
        started = perf_counter()
        update = gather.result() if phase.sends else None
        server_seconds += perf_counter() - started
        accepted = len(cohort) - len(refused)
        return Exchange(update, accepted, refused, up, down, client_seconds / max(1, len(cohort)), server_seconds)

    def work(self, method: Method, request: Down | Up, phase: Phase, client: int, mine: Tree) -> tuple[Up, Tree]:
        """What the client does: (its reply, what it keeps)."""
        clients, told = self.clients, select(request.arrays, (TOLD,))
        down = {name: value for name, value in request.arrays.items() if name not in told}
        visit = Visit(down, mine, phase, request.round, clients.counts[client], told)
        if phase.epochs == 0:
            rows = clients.measured(client, phase)
            sends, kept = method.measure(clients.x[rows], clients.y[rows], visit)
        else:
            sends, kept = alone.train(method, clients, client, visit)
        weight = float(len(clients.owned.of(client)))
        return Up(request.round, phase.name, clients.names[client], weight, outgoing(sends, visit)), kept
