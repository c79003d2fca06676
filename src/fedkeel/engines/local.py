"""The fast engine: a few clients at a time as one stack of tensors, gradients of linear heads in closed form.

Clients of a stack are sorted by their number of steps, so the ones still training are always the first few: a finished
client is simply left out of the slice, and its weights and moments rest. Stacks are kept small enough for their weights
and moments to stay in the processor's cache; stacking a whole federation is slower than a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.message import Down, Up, size
from fedkeel.core.method import Batch, Method, Phase, State, Visit, outgoing
from fedkeel.core.tree import Tree, select, stack, unstack
from fedkeel.engines import alone
from fedkeel.engines.base import Clients, Exchange, going_down, one_batch, schedule, steps_of, visited
from fedkeel.engines.gate import Refusal, refused_in_stack
from fedkeel.engines.gather import Gather
from fedkeel.engines.threads import Places, side_by_side
from fedkeel.methods.heads.base import BIAS, WEIGHT, LinearProbe
from fedkeel.methods.heads.fedavg import FedAvg

CACHE_BYTES = 8 * 2**20
"""Room for the weights, gradients and two moments of one stack."""


@dataclass(frozen=True)
class LocalEngine:
    clients: Clients

    def exchange(self, method: Method, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
        sizes = self.clients.owned.sizes
        expected = select(state.down, phase.sends) if phase.sends else {}
        gather = Gather(expected, phase, round)
        refused: list[Refusal] = []
        client_seconds = server_seconds = 0.0
        for group, (sends, kept), seconds in self.worked(method, state, phase, round, cohort):
            client_seconds += seconds
            replied = perf_counter()
            reasons = refused_in_stack(sends, phase) if sends else {}
            for index, client in enumerate(group):
                if index in reasons:
                    refused.append(Refusal(self.clients.names[client], reasons[index]))
                    continue  # what the client learnt for itself is dropped with the update it belongs to
                if sends:
                    gather.add(client, unstack(sends, index), float(sizes[client]))
                if kept:
                    self.clients.private[client] = unstack(kept, index)
            server_seconds += perf_counter() - replied
        started = perf_counter()
        update = gather.result() if phase.sends else None
        server_seconds += perf_counter() - started
        up = self.bytes_up(expected, phase, round, cohort) if phase.sends else 0
        told = unstack(state.told, 0)
        down = len(cohort) * size(Down(round, phase.name, {**going_down(state, phase), **told}))
        accepted = len(cohort) - len(refused)
        return Exchange(update, accepted, refused, up, down, client_seconds / max(1, len(cohort)), server_seconds)

    def worked(
        self, method: Method, state: State, phase: Phase, round: int, cohort: Sequence[int]
    ) -> Iterator[tuple[list[int], tuple[Tree, Tree], float]]:
        """Each group, what its clients send and keep, and the seconds that took."""

        def one(engine: LocalEngine, group: list[int]) -> tuple[list[int], tuple[Tree, Tree], float]:
            started = perf_counter()
            found = engine.work(method, state, phase, round, group)
            return group, found, perf_counter() - started

        groups = self.stacks(method, state, phase, cohort)
        if method.reads == "features":
            yield from (one(self, group) for group in groups)
        else:
            yield from side_by_side(one, list(groups), self.places)

    @cached_property
    def places(self) -> Places[LocalEngine]:
        """The engine that each thread works with: others than the first have a network of their own."""
        inputs: Any = self.clients.x
        return Places(self, lambda: LocalEngine(replace(self.clients, x=inputs.twin())))

    def bytes_up(self, expected: Tree, phase: Phase, round: int, cohort: Sequence[int]) -> int:
        """What the updates would take on the wire: they differ by the length of the client's name only."""
        nameless = size(Up(round, phase.name, "", 1.0, expected))
        return sum(nameless + len(self.clients.names[client].encode()) for client in cohort)

    def stacks(self, method: Method, state: State, phase: Phase, cohort: Sequence[int]) -> Iterator[list[int]]:
        """The cohort in groups to work on at once, most steps first."""
        if phase.epochs == 0 or method.reads != "features" or not cohort:
            yield from ([client] for client in cohort)
            return
        trained = method.begin(first_of(self.visit(method, state, phase, 1, [cohort[0]])))
        each = 4 * sum(tensor.numel() * tensor.element_size() for tensor in trained.values())
        width = max(1, CACHE_BYTES // each)
        steps = steps_of(self.clients.owned.sizes[list(cohort)], phase)
        order = [cohort[index] for index in np.argsort(-steps, kind="stable")]
        for first in range(0, len(order), width):
            yield order[first : first + width]

    def work(self, method: Method, state: State, phase: Phase, round: int, group: list[int]) -> tuple[Tree, Tree]:
        """What the clients of a group do: (what they send, what they keep), both stacked."""
        visit = self.visit(method, state, phase, round, group)
        if phase.epochs == 0 or method.reads != "features":
            one, rows = first_of(visit), self.clients.measured(group[0], phase)
            if phase.epochs == 0:
                sends, kept = method.measure(self.clients.x[rows], self.clients.y[rows], one)
            else:
                sends, kept = alone.train(method, self.clients, group[0], one)
            return stack([outgoing(sends, one)]), stack([kept])
        params = {name: value.clone() for name, value in mapped(method.begin, visit).items()}
        steps = self.train(method, params, visit, group)
        sends, kept = mapped(lambda one, p, s: method.end(p, s, one), visit, params, steps)
        return outgoing(sends, visit), kept

    def visit(self, method: Method, state: State, phase: Phase, round: int, group: list[int]) -> Visit:
        """What the clients of a group know, stacked."""
        mine = stack([self.clients.mine(client, method, state) for client in group])
        told = {name: value[group] for name, value in state.told.items()}
        return Visit(going_down(state, phase), mine, phase, round, self.clients.counts[group], told)

    def train(self, method: Method, params: Tree, whole: Visit, group: list[int]) -> Tensor:
        """Train the stack in place; gives the steps of each client."""
        phase, adjusts = whole.phase, type(method).adjust is not Method.adjust
        names = list(params)
        slots = phase.optim.slots([params[name] for name in names])
        index, weight, u, active = stacked_schedule(self.clients, group, whole.round, phase)
        for step, running in enumerate(active.tolist()):
            now = {name: value[:running] for name, value in params.items()}
            visit = first_of(whole, running)
            picked = index[step, :running]
            x = self.clients.x.index_select(0, picked.reshape(-1)).view(*picked.shape, -1)
            batch = Batch(x, self.clients.y[picked], weight[step, :running], u[step, :running])
            grads = gradients(method, now, batch, visit)
            if adjusts:
                grads = adjusted(method, grads, now, batch, visit)
            moments = [[moment[:running] for moment in kind] for kind in slots]
            phase.optim.step([now[name] for name in names], [grads[name] for name in names], moments, step + 1)
        return torch.from_numpy(steps_of(self.clients.owned.sizes[group], phase)).float()


def first_of(visit: Visit, count: int | None = None) -> Visit:
    """The visit of the first few clients of a stack; without a count that of the first one, no stack."""
    which = 0 if count is None else slice(count)
    mine, told = ({name: value[which] for name, value in tree.items()} for tree in (visit.mine, visit.told))
    return replace(visit, mine=mine, told=told, counts=visit.counts[which])


def mapped(function: Callable[..., Any], visit: Visit, *stacked: Any) -> Any:
    """A function of one client's visit, and of more that is stacked, for every client of the stack."""

    def one(mine: Tree, told: Tree, counts: Tensor, *parts: Any) -> Any:
        return function(replace(visit, mine=mine, told=told, counts=counts), *parts)

    return torch.vmap(one)(visit.mine, visit.told, visit.counts, *stacked)


def adjusted(method: Method, grads: Tree, params: Tree, batch: Batch, visit: Visit) -> Tree:
    return dict(mapped(lambda one, g, p, b: method.adjust(g, p, Batch(*b), one), visit, grads, params, parts(batch)))


def parts(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.x, batch.y, batch.weight, batch.u


def stacked_schedule(
    clients: Clients, group: list[int], round: int, phase: Phase
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row indices, row weights and draws (steps, clients, batch), and how many clients still run at each step."""
    sizes = clients.owned.sizes[group]
    steps = steps_of(sizes, phase)
    shape = (int(steps.max()), len(group), min(phase.batch, int(visited(sizes, phase).max())))
    index, weight = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    u = np.zeros(shape if phase.draws else (*shape[:2], 0), dtype=np.float32)
    if one_batch(sizes, phase).all() and not phase.draws:  # the same as below, for all clients at once
        real = np.arange(shape[2]) < sizes[:, None]
        index[:, real] = np.concatenate([clients.owned.of(client) for client in group])
        weight[:] = real / sizes[:, None]
        group = []
    for column, client in enumerate(group):
        for step, (rows, draws) in enumerate(schedule(clients, client, round, phase)):
            index[step, column, : len(rows)] = rows
            weight[step, column, : len(rows)] = 1.0 / len(rows)
            u[step, column, : len(draws)] = draws
    active = np.count_nonzero(steps > np.arange(shape[0])[:, None], axis=1)
    return torch.from_numpy(index), torch.from_numpy(weight), torch.from_numpy(u), torch.from_numpy(active)


def gradients(method: Method, params: Tree, batch: Batch, visit: Visit) -> Tree:
    if isinstance(method, LinearProbe) and type(method).loss in (LinearProbe.loss, FedAvg.loss):
        return head_gradients(method, params, batch, visit)
    gradient = torch.func.grad(lambda params, one, b: method.loss(params, Batch(*b), one))
    return dict(mapped(lambda one, p, b: gradient(p, one, b), visit, params, parts(batch)))


def head_gradients(method: LinearProbe, params: Tree, batch: Batch, visit: Visit) -> Tree:
    """Exact gradients of a stack of linear heads: residual^T x and the sum of the residual."""
    weight = params[WEIGHT].transpose(1, 2)
    logits = torch.bmm(batch.x, weight)
    if BIAS in params:
        logits += params[BIAS].unsqueeze(1)
    residual = method.residual(logits, batch, visit).mul_(batch.weight.unsqueeze(-1))
    grads = {WEIGHT: torch.bmm(residual.transpose(1, 2), batch.x), BIAS: residual.sum(1)}
    return {name: grads[name] for name in params}
