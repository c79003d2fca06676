"""The fast engine: a few clients at a time as one stack of tensors, gradients of linear heads in closed form.

Clients of a stack are sorted by their number of steps, so the ones still training are always the first few: a finished
client is simply left out of the slice, and its weights and moments rest. Stacks are kept small enough for their weights
and moments to stay in the processor's cache; stacking a whole federation is slower than a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from fedkeel.aggregate.gate import Refusal, refused_in_stack
from fedkeel.aggregate.mean import WeightedMean
from fedkeel.engines.base import Clients, Exchange, one_batch, schedule, steps_of, visited
from fedkeel.engines.message import Down, Up, size
from fedkeel.method import Batch, Method, Phase, State, Visit, outgoing
from fedkeel.methods.linear_probe import BIAS, WEIGHT, LinearProbe
from fedkeel.tree import Tree, select, stack, unstack

CACHE_BYTES = 8 * 2**20
"""Room for the weights, gradients and two moments of one stack."""


@dataclass(frozen=True)
class LocalEngine:
    clients: Clients

    def exchange(self, method: Method, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
        sizes = self.clients.owned.sizes
        expected = select(state.down, phase.sends) if phase.sends else {}
        mean = WeightedMean(expected, phase)
        refused: list[Refusal] = []
        client_seconds = server_seconds = 0.0
        for group in self.stacks(method, state, phase, cohort):
            started = perf_counter()
            sends, kept = self.work(method, state, phase, round, group)
            replied = perf_counter()
            reasons = refused_in_stack(sends, phase) if sends else {}
            for index, client in enumerate(group):
                if index in reasons:
                    refused.append(Refusal(self.clients.names[client], reasons[index]))
                    continue  # what the client learnt for itself is dropped with the update it belongs to
                if sends:
                    mean.add(unstack(sends, index), float(sizes[client]))
                if kept:
                    self.clients.private[client] = unstack(kept, index)
            client_seconds += replied - started
            server_seconds += perf_counter() - replied
        started = perf_counter()
        result = mean.result()
        server_seconds += perf_counter() - started
        up = self.bytes_up(expected, phase, round, cohort) if phase.sends else 0
        down = len(cohort) * size(Down(round, phase.name, state.down))
        accepted = len(cohort) - len(refused)
        return Exchange(result, accepted, refused, up, down, client_seconds / max(1, len(cohort)), server_seconds)

    def bytes_up(self, expected: Tree, phase: Phase, round: int, cohort: Sequence[int]) -> int:
        """What the updates would take on the wire: they differ by the length of the client's name only."""
        nameless = size(Up(round, phase.name, "", 1.0, expected))
        return sum(nameless + len(self.clients.names[client].encode()) for client in cohort)

    def stacks(self, method: Method, state: State, phase: Phase, cohort: Sequence[int]) -> Iterator[list[int]]:
        """The cohort in groups to work on at once, most steps first."""
        if phase.epochs == 0:
            yield from ([client] for client in cohort)
            return
        trained = method.begin(Visit(state.down, method.private(state), phase))
        each = 4 * sum(tensor.numel() * tensor.element_size() for tensor in trained.values())
        width = max(1, CACHE_BYTES // each)
        steps = steps_of(self.clients.owned.sizes[list(cohort)], phase)
        order = [cohort[index] for index in np.argsort(-steps, kind="stable")]
        for first in range(0, len(order), width):
            yield order[first : first + width]

    def work(self, method: Method, state: State, phase: Phase, round: int, group: list[int]) -> tuple[Tree, Tree]:
        """What the clients of a group do: (what they send, what they keep), both stacked."""
        mine = stack([self.clients.mine(client, method, state) for client in group])
        if phase.epochs == 0:
            rows = self.clients.rows(group[0])
            visit = Visit(state.down, unstack(mine, 0), phase)
            measured = method.measure(self.clients.x[rows], self.clients.y[rows], visit)
            return stack([outgoing(measured, visit)]), mine
        params = stacked_begin(method, state.down, mine, phase, len(group))
        steps = self.train(method, params, state.down, mine, phase, round, group)
        sends, kept = torch.vmap(lambda p, s, m: method.end(p, s, Visit(state.down, m, phase)))(params, steps, mine)
        return outgoing(sends, Visit(state.down, mine, phase)), kept

    def train(
        self, method: Method, params: Tree, down: Tree, mine: Tree, phase: Phase, round: int, group: list[int]
    ) -> Tensor:
        """Train the stack in place; gives the steps of each client."""
        adjusts = type(method).adjust is not Method.adjust
        names = list(params)
        slots = phase.optim.slots([params[name] for name in names])
        index, weight, u, active = stacked_schedule(self.clients, group, round, phase)
        for step, running in enumerate(active.tolist()):
            now = {name: value[:running] for name, value in params.items()}
            visit = Visit(down, {name: value[:running] for name, value in mine.items()}, phase)
            picked = index[step, :running]
            x = self.clients.x.index_select(0, picked.reshape(-1)).view(*picked.shape, -1)
            batch = Batch(x, self.clients.y[picked], weight[step, :running], u[step, :running])
            grads = gradients(method, now, batch, visit)
            if adjusts:
                grads = mapped_adjust(method, grads, now, batch, visit)
            moments = [[moment[:running] for moment in kind] for kind in slots]
            phase.optim.step([now[name] for name in names], [grads[name] for name in names], moments, step + 1)
        return torch.from_numpy(steps_of(self.clients.owned.sizes[group], phase)).float()


def stacked_begin(method: Method, down: Tree, mine: Tree, phase: Phase, width: int) -> Tree:
    if not mine:
        start = method.begin(Visit(down, {}, phase))
        return {name: value.expand(width, *value.shape).clone() for name, value in start.items()}
    start = torch.vmap(lambda m: method.begin(Visit(down, m, phase)))(mine)
    return {name: value.clone() for name, value in start.items()}


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
    if isinstance(method, LinearProbe):
        return head_gradients(method, params, batch, visit)
    return mapped_gradients(method, params, batch, visit)


def head_gradients(method: LinearProbe, params: Tree, batch: Batch, visit: Visit) -> Tree:
    """Exact gradients of a stack of linear heads: residual^T x and the sum of the residual."""
    weight = params[WEIGHT].transpose(1, 2)
    logits = torch.bmm(batch.x, weight)
    if BIAS in params:
        logits += params[BIAS].unsqueeze(1)
    residual = method.residual(logits, batch, visit).mul_(batch.weight.unsqueeze(-1))
    grads = {WEIGHT: torch.bmm(residual.transpose(1, 2), batch.x), BIAS: residual.sum(1)}
    return {name: grads[name] for name in params}


def mapped_gradients(method: Method, params: Tree, batch: Batch, visit: Visit) -> Tree:
    """Gradients of any loss, mapped over the stack."""

    def one(params: Tree, x: Tensor, y: Tensor, weight: Tensor, u: Tensor, mine: Tree) -> Tensor:
        return method.loss(params, Batch(x, y, weight, u), Visit(visit.down, mine, visit.phase))

    mapped = torch.vmap(torch.func.grad(one))
    return dict(mapped(params, batch.x, batch.y, batch.weight, batch.u, visit.mine))


def mapped_adjust(method: Method, grads: Tree, params: Tree, batch: Batch, visit: Visit) -> Tree:
    def one(grads: Tree, params: Tree, x: Tensor, y: Tensor, weight: Tensor, u: Tensor, mine: Tree) -> Tree:
        return method.adjust(grads, params, Batch(x, y, weight, u), Visit(visit.down, mine, visit.phase))

    mapped = torch.vmap(one)
    return dict(mapped(grads, params, batch.x, batch.y, batch.weight, batch.u, visit.mine))
