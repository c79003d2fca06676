"""What every way to personalise promises, checked for all that are registered: a new file is tested by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.methods import close
from fedkeel import api
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import Down, Up
from fedkeel.core.method import Task, from_settings
from fedkeel.core.tree import digest
from fedkeel.data.loading import load
from fedkeel.engines import site, wire
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.personal.strategy import STRATEGIES
from fedkeel.personal.work import Work
from fedkeel.runs.federation import assemble
from fedkeel.runs.simulate import finished_model
from worlds import CLIENT, World, trained, world

SMALL: dict[str, Any] = {"epochs": 3, "batch": 16, "lr": 0.003, "batch_norm": "train"}


@cache
def features() -> World:
    """A head that FedAvg trained for a round on pixels, which are all that its clients have."""
    experiment = api.experiment(
        data={"source": "digits", "limit": 200, "features": "raw"},
        partition={"kind": "dirichlet", "alpha": 1.0, "clients": 4, "test": 0.3},
        method={"name": "fedavg", "rounds": 1, "epochs": 1, "batch": 16, "bias": True},
    )
    federation, method = assemble(experiment, load(experiment.data)), from_settings(experiment.method)
    sites = federation.sites(0)
    state, (phase,) = method.start(Task(sites.x.dim, 10, 4, 0, len(sites.y))), method.plan(1)
    update = LocalEngine(sites).exchange(method, state, phase, 1, [0, 1, 2, 3]).update
    assert update is not None
    return World(
        experiment, federation, finished_model(experiment, federation, method, method.merge(state, update, phase), None)
    )


@dataclass(frozen=True)
class Case:
    """A strategy, on a network that a run has trained or on features."""

    name: str
    on_features: bool = False

    def work(self) -> Work:
        """On a transformer, where the strategy says that it needs one."""
        if self.on_features:
            return features().work(self.name, **SMALL)
        try:
            return world().work(self.name, **SMALL)
        except FedkeelError:
            return world("vit-tiny").work(self.name, **SMALL)


def cases_of(name: str) -> dict[str, Case]:
    """One that leaves the network as it is works on features, too."""
    found = {name: Case(name)}
    if STRATEGIES[name].head_only:
        found[f"{name} on features"] = Case(name, on_features=True)
    return found


CASES = {label: case for name in sorted(STRATEGIES) for label, case in cases_of(name).items()}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@every_case
def test_engines_agree(case: Case) -> None:
    """Local with fedkeel's optimizers, on features with gradients in closed form; wire with PyTorch's, by bytes."""
    work = case.work()
    ours, theirs = trained(work), trained(work, WireEngine)
    close(ours, theirs, "")
    assert ours
    assert any((value - work.state.down[name]).abs().max() > 1e-5 for name, value in ours.items()), "nothing moved"


@every_case
def test_nothing_leaves_a_client(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes down is the global model and what the strategy starts from; what comes back holds no array at all."""
    encode, messages = wire.encode, list[Down | Up]()

    def spy(message: Down | Up) -> bytes:
        messages.append(message)
        return encode(message)

    def transport(client: str, reply: bytes) -> bytes:
        raise AssertionError(f"{client} sent {len(reply)} bytes")

    def listening(sites: Sites) -> WireEngine:
        return WireEngine(sites, transport=transport)

    monkeypatch.setattr(wire, "encode", spy)
    monkeypatch.setattr(site, "encode", spy)
    work = case.work()
    assert all(phase.sends == () for phase in work.strategy.plan(1))
    mine = trained(work, listening)
    assert [type(message) for message in messages] == [Down, Up] * len(work.strategy.plan(1))
    for request, reply in zip(messages[::2], messages[1::2], strict=True):
        assert all(torch.equal(value, work.state.down[name]) for name, value in request.arrays.items())
        assert not reply.arrays
    everything = b"".join(encode(reply) for reply in messages[1::2])
    for name, value in mine.items():
        assert name.encode() not in everything
        for pair in pairwise(value.flatten().numpy()):
            assert not all(pair) or np.array(pair).tobytes() not in everything, f"{name} leaked"


@every_case
def test_done_again_it_gives_the_same_bits(case: Case, tmp_path: Path) -> None:
    """After an interruption a client is done again from the start, in another order, or on another thread."""
    work = case.work()
    before = digest(work.state.down)
    first = work.personalise(CLIENT, LocalEngine(work.sites), tmp_path / "first" / "one")
    other = case.work()
    for phase in other.strategy.plan(1)[:1]:  # interrupted
        LocalEngine(other.sites).exchange(other.strategy, other.state, phase, 1, [CLIENT])
    other = other.twin()
    other.personalise(0, LocalEngine(other.sites), tmp_path / "other" / "one")
    again = other.personalise(CLIENT, LocalEngine(other.sites), tmp_path / "again" / "one")
    kept = {name: (tmp_path / name / "one").read_bytes() for name in ("first", "other", "again")}
    assert kept["first"] == kept["again"] != kept["other"]
    assert {**first, "seconds": {}} == {**again, "seconds": {}}
    assert digest(work.state.down) == before, "the global model stays as it is"


@every_case
def test_what_it_tells_of_a_client(case: Case, tmp_path: Path) -> None:
    """Plain numbers, of the model that it leaves the client: of a head alone no feature moves."""
    work = case.work()
    told = work.personalise(CLIENT, LocalEngine(work.sites), tmp_path / "one")
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert {phase.name for phase in work.strategy.plan(1)} == told["seconds"].keys() == told["flops"].keys()
    assert all(count > 0 for count in told["flops"].values())
    assert len(told["on"]) == len(work.sites.names)
    assert (told["distortion"] == 0) == work.strategy.head_only
    mine = trained(work)
    scores = work.strategy.predict(work.state, mine, work.tests.x.read())
    assert scores.shape == (len(work.tests.y), work.sites.classes)
    assert work.on_test_sets(mine) == told["on"]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_it_is_listed(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.name == name
    assert strategy.paper
    assert "\n" not in strategy.paper
    assert strategy.personal
