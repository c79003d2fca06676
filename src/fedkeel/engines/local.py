"""The fast engine: a few clients at a time as one stack of tensors, gradients of linear heads in closed form.

Clients of a stack are sorted by their number of steps, so the ones still training are always the first few: a finished
client is simply left out of the slice, and its weights and moments rest. Stacks are kept small enough for their weights
and moments to stay in the processor's cache; stacking a whole federation is slower than a plain loop.

Rows that are no tensor cannot be stacked: such clients work one by one, each on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedkeel.core.method import AnyMethod, Batch, Method, Phase, State, Visit, exchange_number, outgoing
from fedkeel.core.pulse import beat
from fedkeel.core.tree import Tensor, Tree, stack, unstack
from fedkeel.engines.base import Exchange, one_batch, schedule, steps_of, visited
from fedkeel.engines.server import Server
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.site import Blame, own_optimizer, work
from fedkeel.engines.sites import Sites
from fedkeel.engines.threads import Places, in_parallel
from fedkeel.methods.heads.base import BIAS, WEIGHT, LinearProbe

CACHE_BYTES = 8 * 2**20
"""Room for the weights, gradients and two moments of one stack."""


@dataclass(frozen=True)
class Group:
    """Some clients, what they do, and the seconds that it took."""

    clients: list[int]
    sends: Tree
    kept: Tree
    seconds: float


@dataclass(frozen=True)
class LocalEngine(Simulated):
    def exchange(self, method: AnyMethod, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
        server = Server(self.roster, self.accepted, method, state, phase, round)
        server.count_bytes(cohort)
        at = exchange_number(method, round, phase)
        for group in self.worked(method, state, phase, round, cohort, server):
            server.client_seconds += group.seconds
            for index, client in enumerate(group.clients if group.kept and not phase.looks else ()):
                self.sites.store.write(self.roster.names[client], at, unstack(group.kept, index))
            if phase.sends:
                server.receive_stack(group.clients, group.sends)
            else:
                server.nothing_to_send(group.clients)
        return server.outcome(cohort)

    def worked(
        self, method: AnyMethod, state: State, phase: Phase, round: int, cohort: Sequence[int], server: Server
    ) -> Iterator[Group]:
        """The cohort's work, group by group."""

        def visit(clients: list[int]) -> Visit:
            return self.visit(method, state, phase, round, clients, server)

        def alone(sites: Sites, one: tuple[int, Visit]) -> Group:
            started, (client, known) = perf_counter(), one
            sends, kept = work(method, known, sites.site(client), own_optimizer)
            return Group([client], stack([sends]), stack([kept]), perf_counter() - started)

        if phase.epochs and self.sites.x.tensor is not None:
            for clients in self.stacks(method, phase, cohort, visit):
                started = perf_counter()
                yield Group(clients, *self.work(method, visit(clients), clients), perf_counter() - started)
            return
        one_by_one = ((client, first_of(visit([client]))) for client in cohort)
        if self.sites.x.tensor is not None:
            yield from (alone(self.sites, one) for one in one_by_one)
        else:
            yield from in_parallel(alone, list(one_by_one), self.places)

    @cached_property
    def places(self) -> Places[Sites]:
        """The sites that each thread works on: others than the first have a network of their own."""
        return Places(self.sites, self.sites.twin)

    def stacks(
        self, method: AnyMethod, phase: Phase, cohort: Sequence[int], visit: Callable[[list[int]], Visit]
    ) -> Iterator[list[int]]:
        """The cohort in groups to work on at once, most steps first."""
        if not cohort:
            return
        known = first_of(visit([cohort[0]]))
        with Blame(method, phase, known.round, self.roster.names[cohort[0]]):
            trained = method.begin(known)
        each = 4 * sum(tensor.numel() * tensor.element_size() for tensor in trained.values())
        width = max(1, CACHE_BYTES // each)
        steps = steps_of(self.roster.rows[list(cohort)], phase)
        order = [cohort[index] for index in np.argsort(-steps, kind="stable")]
        for first in range(0, len(order), width):
            yield order[first : first + width]

    def work(self, method: AnyMethod, visit: Visit, group: list[int]) -> tuple[Tree, Tree]:
        """What the clients of a stack do: (what they send, what they keep), both stacked."""
        who = ", ".join(self.roster.names[client] for client in group[:3]) + (", ..." if len(group) > 3 else "")
        with Blame(method, visit.phase, visit.round, who) as blame:
            params = {name: value.clone() for name, value in mapped(method.begin, visit).items()}
            steps = self.train(method, params, visit, group, blame)
            blame.stage = "end"
            sends, kept = mapped(lambda one, p, s: method.end(p, s, one), visit, params, steps)
        return outgoing(sends, visit), kept

    def visit(
        self, method: AnyMethod, state: State, phase: Phase, round: int, group: list[int], server: Server
    ) -> Visit:
        """What the clients of a group know, stacked."""
        mine = stack([self.mine(method, State(server.down(client)), client) for client in group])
        per_client = {name: value[group] for name, value in state.per_client.items()}
        return Visit(server.visible, mine, phase, round, self.sites.counts[group], per_client)

    def train(self, method: AnyMethod, params: Tree, whole: Visit, group: list[int], blame: Blame) -> Tensor:
        """Train the stack in place; gives the steps of each client."""
        phase, adjusts = whole.phase, type(method).adjust is not Method.adjust
        names = list(params)
        slots = phase.optim.slots([params[name] for name in names])
        index, weight, u, active = stacked_schedule(self.sites, group, whole.round, phase)
        features = self.sites.x.tensor
        assert features is not None
        for step, running in enumerate(active.tolist()):
            beat()
            now = {name: value[:running] for name, value in params.items()}
            visit = first_of(whole, running)
            picked = index[step, :running]
            x = features.index_select(0, picked.reshape(-1)).view(*picked.shape, -1)
            batch = Batch(x, self.sites.y[picked], weight[step, :running], u[step, :running])
            blame.stage = "loss"
            grads = gradients(method, now, batch, visit)
            if adjusts:
                blame.stage = "adjust"
                grads = adjusted(method, grads, now, batch, visit)
            moments = [[moment[:running] for moment in kind] for kind in slots]
            phase.optim.step([now[name] for name in names], [grads[name] for name in names], moments, step + 1)
        return torch.from_numpy(steps_of(self.roster.rows[group], phase)).float()


def first_of(visit: Visit, count: int | None = None) -> Visit:
    """The visit of the first few clients of a stack; without a count that of the first one, no stack."""
    which = 0 if count is None else slice(count)
    mine, per_client = ({name: value[which] for name, value in tree.items()} for tree in (visit.mine, visit.per_client))
    return replace(visit, mine=mine, per_client=per_client, counts=visit.counts[which])


def mapped(function: Callable[..., Any], visit: Visit, *stacked: Any) -> Any:
    """A function of one client's visit, and of more that is stacked, for every client of the stack."""

    def one(mine: Tree, per_client: Tree, counts: Tensor, *parts: Any) -> Any:
        return function(replace(visit, mine=mine, per_client=per_client, counts=counts), *parts)

    return torch.vmap(one)(visit.mine, visit.per_client, visit.counts, *stacked)


def adjusted(method: AnyMethod, grads: Tree, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tree:
    return dict(mapped(lambda one, g, p, b: method.adjust(g, p, Batch(*b), one), visit, grads, params, parts(batch)))


def parts(batch: Batch[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.x, batch.y, batch.weight, batch.u


def stacked_schedule(sites: Sites, group: list[int], round: int, phase: Phase) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row indices, row weights and draws (steps, clients, batch), and how many clients still run at each step."""
    sizes = sites.owned.sizes[group]
    steps = steps_of(sizes, phase)
    shape = (int(steps.max()), len(group), min(phase.batch, int(visited(sizes, phase).max())))
    index, weight = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    u = np.zeros(shape if phase.draws else (*shape[:2], 0), dtype=np.float32)
    if one_batch(sizes, phase).all() and not phase.draws:  # the same as below, for all clients at once
        real = np.arange(shape[2]) < sizes[:, None]
        index[:, real] = np.concatenate([sites.owned.of(client) for client in group])
        weight[:] = real / sizes[:, None]
        group = []
    for column, client in enumerate(group):
        owned = sites.owned.of(client)
        for step, (rows, draws) in enumerate(schedule(sites.seed, sites.names[client], len(owned), round, phase)):
            index[step, column, : len(rows)] = owned[rows]
            weight[step, column, : len(rows)] = 1.0 / len(rows)
            u[step, column, : len(draws)] = draws
    active = np.count_nonzero(steps > np.arange(shape[0])[:, None], axis=1)
    return torch.from_numpy(index), torch.from_numpy(weight), torch.from_numpy(u), torch.from_numpy(active)


def gradients(method: AnyMethod, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tree:
    if isinstance(method, LinearProbe) and method.in_closed_form:
        return head_gradients(method, params, batch, visit)
    gradient = torch.func.grad(lambda params, one, b: method.loss(params, Batch(*b), one))
    return dict(mapped(lambda one, p, b: gradient(p, one, b), visit, params, parts(batch)))


def head_gradients(method: LinearProbe, params: Tree, batch: Batch[Tensor], visit: Visit) -> Tree:
    """Exact gradients of a stack of linear heads: residual^T x and the sum of the residual."""
    weight = params[WEIGHT].transpose(1, 2)
    logits = torch.bmm(batch.x, weight)
    if BIAS in params:
        logits += params[BIAS].unsqueeze(1)
    residual = method.residual(logits, batch, visit).mul_(batch.weight.unsqueeze(-1))
    grads = {WEIGHT: torch.bmm(residual.transpose(1, 2), batch.x), BIAS: residual.sum(1)}
    return {name: grads[name] for name in params}
