"""Every method in the settings in which contracts are tested, a small federation for each, and how it is played.

All of them are found by themselves. A method of which nothing is said here is tested with its defaults for few rounds;
one that has ``tune`` also with the whole network, one that has ``head`` also with one-vs-all heads, one that tunes a
dual encoder also balanced, and one that has ``peft`` with every kind of module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from backbones import reading, reading_images
from duals import paired
from federations import CLASSES, TASK, PersonalBias, clients, private_of
from fedkeel.core.method import METHODS, Method, Phase, State, Task
from fedkeel.core.tree import Tree
from fedkeel.engines import base, local, site
from fedkeel.engines.base import Exchange, choose
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.sites import Sites
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.peft.module import MODULES
from fedkeel.methods.networks.base import Network
from fedkeel.methods.transformer.base import Tuned

ROUNDS = 3
NETWORK: dict[str, Any] = {"tune": "network", "rounds": 2, "participation": 0.5, "batch": 8, "epochs": 1}
SPECIAL: dict[str, dict[str, Any]] = {
    # Few rows make its covariance nearly singular: without a ridge the head is a matter of rounding.
    "pfedfda": {"ridge": 0.01},
    "ridge-rf": {"features": 40},
    "scaffold": {"bias": True, "lr": 0.05},  # its lr is for unit length
    "scaffold, network": {"lr": 0.05},
    "fednova, network": {"lr": 0.05},
    "scaffold, one-vs-all": {"lr": 0.05},
    "fednova, one-vs-all": {"lr": 0.05},
}
"""What some need besides the usual settings in order to be testable."""


def usual(method: type[Method]) -> dict[str, Any]:
    """Settings under which a method does all that it does, and soon."""
    if issubclass(method, DualTuned):
        return {"rounds": 2, "participation": 0.5, "batch": 8, "personal_epochs": 1, "lr": 0.1}
    if issubclass(method, Tuned):
        return {"rounds": 2, "participation": 0.5, "batch": 8, "epochs": 1}
    if issubclass(method, Network):
        return {"rounds": 2, "participation": 0.5, "batch": 7}  # nobody's rows but the smallest's make a single batch
    return {"rounds": ROUNDS, "participation": 0.7, **({"batch": 8} if "batch" in method.model_fields else {})}


def variants_of(name: str) -> dict[str, Method]:
    """A registered method in the settings in which it is tested; none if it exchanges nothing."""
    method = METHODS[name]
    if not method().plan(1):
        return {}
    found = {name: usual(method)}
    if "tune" in method.model_fields:
        found[f"{name}, network"] = NETWORK
    if "head" in method.model_fields:
        found[f"{name}, one-vs-all"] = {**usual(method), "head": "one-vs-all"}
    if issubclass(method, DualTuned):
        found[f"{name}, balanced"] = {**usual(method), "balance": "grab"}
    for kind in MODULES if "peft" in method.model_fields else ():
        found[f"{name}, {kind}"] = with_module(method, kind)
    return {variant: method(**settings, **SPECIAL.get(variant, {})) for variant, settings in found.items()}


def with_module(method: type[Method], kind: str) -> dict[str, Any]:
    """Of a method that tunes any kind of module, the settings for this one."""
    return {**usual(method), "peft": kind, **({"project": "all"} if "project" in method.model_fields else {})}


def variants_with(kind: str) -> dict[str, Method]:
    """Every method that tunes any kind of module, with this one."""
    able = {name: method for name, method in METHODS.items() if "peft" in method.model_fields}
    return {f"{name}, {kind}": method(**with_module(method, kind)) for name, method in able.items()}


VARIANTS: dict[str, Method] = {variant: method for name in METHODS for variant, method in variants_of(name).items()}
VARIANTS |= {
    "ova-lp one stage": METHODS["ova-lp"](rounds=ROUNDS, stages=1, batch=8),
    "ova-lp with bias": METHODS["ova-lp"](rounds=ROUNDS, bias=True, batch=8),
    "fedavg with bias": METHODS["fedavg"](rounds=ROUNDS, bias=True, batch=8),
    "ova-lp from ridge": METHODS["ova-lp"](rounds=ROUNDS, init="ridge", optimizer="sgd", lr=0.1, batch=8),
    "ova-lp by rows": METHODS["ova-lp"](rounds=ROUNDS, participation=0.7, aggregation="rows", bias=True, batch=8),
    "ova-lp by total": METHODS["ova-lp"](rounds=ROUNDS, participation=0.7, aggregation="total", batch=8),
    "ova-lp samples": METHODS["ova-lp"](rounds=ROUNDS, positive_mode="sample", positives=0.4, batch=8),
    "fedavg sgd with momentum": METHODS["fedavg"](rounds=ROUNDS, optimizer="sgd", lr=0.1, momentum=0.9, batch=8),
    "fedavg, one batch per client": METHODS["fedavg"](rounds=ROUNDS, batch=100, epochs=1),
    "personal bias": PersonalBias(rounds=ROUNDS, participation=0.7),
    "ridge, held-out penalty": METHODS["ridge"](rounds=ROUNDS, participation=0.7, choice="held-out"),
    "ridge, given penalty": METHODS["ridge"](rounds=ROUNDS, participation=0.7, penalty=0.1, normalise=False),
}
VARIANTS |= {
    f"fedpurel, {name}": METHODS["fedpurel"](**usual(METHODS["fedpurel"]), **settings)
    for name, settings in {
        "lora": {"peft": "lora", "blocks": (1,)},
        "interleaved": {"peft": "adapter", "schedule": "interleaved", "balance": "grab"},
        "not purified": {"peft": "adapter", "alignment": "none"},
    }.items()
}


def federation_of(method: Method) -> tuple[Sites, Task]:
    """Of features, of words for methods inside a transformer, of pictures for those that train a whole network.

    Of a few texts for methods of a dual encoder.
    """
    if isinstance(method, DualTuned):
        return paired(clients((10, 3, 0, 4, 1)), method)
    if method.reads == "features":
        return clients(), TASK
    return (reading if isinstance(method, Tuned) else reading_images)(clients(), CLASSES)


def clients_of(method: Method) -> Sites:
    return federation_of(method)[0]


def start_of(method: Method) -> State:
    return method.start(federation_of(method)[1])


def play(method: Method, engine: Simulated, seen: Callable[[Phase, Exchange], None] | None = None) -> State:
    """All rounds without checkpoints or log."""
    state = start_of(method)
    for round in range(1, method.rounds + 1):
        cohort: list[int] = []
        for phase in method.plan(round):
            cohort = choose(engine.roster, method, phase, round, cohort)
            exchange = engine.exchange(method, state, phase, round, cohort)
            assert not exchange.refused
            if seen is not None:
                seen(phase, exchange)
            if exchange.update is not None:
                state = method.merge(state, exchange.update, phase)
    return state


def close(ours: Tree, reference: Tree, where: str) -> None:
    assert ours.keys() == reference.keys()
    for name, value in reference.items():
        scale = float(value.abs().max()) or 1.0
        assert float((ours[name] - value).abs().max()) <= 1e-5 * scale, f"{where}{name}"


@dataclass
class Played:
    """What came of a method on an engine, and what happened meanwhile."""

    state: State = field(default_factory=lambda: State({}))
    private: dict[int, Tree] = field(default_factory=dict)
    traffic: list[tuple[Phase, int, int, int]] = field(default_factory=list)
    """of each exchange its phase, bytes up, bytes down and how many clients were accepted"""
    visits: list[tuple[Any, ...]] = field(default_factory=list)
    """of each step the round, phase, client, number, rows and drawn numbers"""

    def listen(self, who: Sites, patch: pytest.MonkeyPatch) -> None:
        """Write down every step, of stacks of clients and of single ones."""
        make_stack = local.stacked_schedule

        def stacked(who, group, round, phase):  # type: ignore[no-untyped-def]
            index, weight, u, active = make_stack(who, group, round, phase)
            for step, running in enumerate(active.tolist()):
                for column, client in enumerate(group[:running]):
                    real = weight[step, column] > 0
                    picked, drawn = index[step, column][real].tolist(), u[step, column][real[: u.shape[2]]].tolist()
                    self.visits.append((round, phase.name, client, step, picked, drawn))
            return index, weight, u, active

        def alone(seed, name, rows, round, phase):  # type: ignore[no-untyped-def]
            client = list(who.names).index(name)
            owned = who.owned.of(client)
            for step, (picked, u) in enumerate(base.schedule(seed, name, rows, round, phase)):
                self.visits.append((round, phase.name, client, step, owned[picked].tolist(), u.tolist()))
                yield picked, u

        patch.setattr(local, "stacked_schedule", stacked)
        patch.setattr(site, "schedule", alone)


@cache
def played(method: Method, engine: type[Simulated]) -> Played:
    """Once for all tests that look at it."""
    found, who = Played(), clients_of(method)
    runner = engine(who)

    def seen(phase: Phase, exchange: Exchange) -> None:
        found.traffic.append((phase, exchange.bytes_up, exchange.bytes_down, exchange.accepted))

    with pytest.MonkeyPatch.context() as patch:
        found.listen(who, patch)
        found.state = play(method, runner, seen)
    found.private = private_of(runner)
    return found
