"""The reference engine: one client at a time, every message through bytes, autograd, PyTorch's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from fedkeel.core.message import encode
from fedkeel.core.method import AnyMethod, Phase, State
from fedkeel.engines.base import Exchange
from fedkeel.engines.server import Server
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.site import answer

Transport = Callable[[str, bytes], bytes]


def untouched(client: str, reply: bytes) -> bytes:
    return reply


@dataclass(frozen=True)
class WireEngine(Simulated):
    transport: Transport = untouched
    """What happens to a reply on its way; tests put faults here."""

    def exchange(self, method: AnyMethod, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
        server = Server(self.roster, self.accepted, method, state, phase, round)
        for client in cohort:
            started = perf_counter()
            request = encode(server.request(client))
            server.bytes_down += len(request)
            reply = answer(method, phase, request, self.sites.site(client), self.sites.store)
            server.client_seconds += perf_counter() - started
            if phase.sends:
                server.receive(client, self.transport(self.roster.names[client], reply))
            else:
                server.nothing_to_send([client])
        return server.outcome(cohort)
