"""A network that FedAvg trained for a round, its clients personalised, and the same network as plain PyTorch has it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel import api
from fedkeel.core.method import Phase, Task, from_settings
from fedkeel.core.tree import Tree, take
from fedkeel.data.loading import load
from fedkeel.engines.local import LocalEngine
from fedkeel.models.networks import Cnn
from fedkeel.personal.models import strategy_of
from fedkeel.personal.work import Work
from fedkeel.runs.config import Experiment
from fedkeel.runs.federation import Federation, assemble
from fedkeel.runs.model import Model
from fedkeel.runs.simulate import finished_model
from fedkeel.runs.variant import Variant

CLIENT = 1


@dataclass(frozen=True)
class World:
    """A network that FedAvg trained for a round on the digits of four clients."""

    experiment: Experiment
    federation: Federation
    model: Model

    def work(self, name: str, **settings: Any) -> Work:
        strategy = strategy_of(Variant(name, settings), self.model)
        return Work.on(strategy, self.model, self.federation, self.experiment)

    def rows(self) -> tuple[Tensor, Tensor]:
        """The client's images and labels, read without fedkeel."""
        rows = self.federation.manifest.train.of(CLIENT)
        images = np.asarray(self.federation.dataset.train)[rows].astype(np.float32)
        labels = torch.from_numpy(self.federation.dataset.train_labels[rows].astype(np.int64))
        return torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1, labels


@cache
def world(encoder: str = "cnn") -> World:
    experiment = api.experiment(
        data={"source": "digits", "limit": 200, "encoder": encoder},
        partition={"kind": "dirichlet", "alpha": 1.0, "clients": 4, "test": 0.3},
        method={"name": "fedavg", "tune": "network", "rounds": 1, "epochs": 1, "batch": 16, "lr": 0.003},
    )
    federation, method = assemble(experiment, load(experiment.data)), from_settings(experiment.method)
    sites = federation.sites(0)
    inputs: Any = sites.x
    state = method.start(Task(inputs.dim, 10, 4, 0, len(sites.y), inputs.backbone))
    (phase,) = method.plan(1)
    update = LocalEngine(sites).exchange(method, state, phase, 1, [0, 1, 2, 3]).update
    assert update is not None
    state = method.merge(state, update, phase)
    return World(experiment, federation, finished_model(experiment, federation, method, state, None))


def trained(work: Work, engine: Any = LocalEngine, phases: list[Phase] | None = None) -> Tree:
    """What the client holds after all phases, or after the ones given."""
    runner = engine(work.sites)
    for phase in phases or work.strategy.plan(1):
        assert runner.exchange(work.strategy, work.state, phase, 1, [CLIENT]).bytes_up == 0
    mine = runner.mine(work.strategy, work.state, CLIENT)
    work.sites.store.drop(work.sites.names[CLIENT])
    return mine if phases else {name: value for name, value in mine.items() if name in work.state.down}


def personal(name: str, **settings: Any) -> Tree:
    return trained(world().work(name, **settings))


def same(one: Tree, other: Tree, atol: float = 1e-6) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def whole(tree: Tree) -> nn.Sequential:
    """The network and its head as one ordinary module."""
    network, head = Cnn(), nn.Linear(128, 10)
    weights = {name.partition(".")[2]: value for name, value in tree.items() if not name.startswith("head.")}
    lost = network.load_state_dict(weights, strict=False)
    assert not lost.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in lost.missing_keys)
    head.load_state_dict(take("head.", tree))
    return nn.Sequential(network, head)


def as_tree(model: nn.Sequential) -> Tree:
    found: Tree = {}
    for name, value in model.state_dict().items():
        part, _, rest = name.partition(".")
        prefix = "head." if part == "1" else "stats." if "running" in rest else "norm." if "norm" in rest else "body."
        if not rest.endswith("num_batches_tracked"):
            found[prefix + rest] = value.detach()
    return found


def parameters_of(model: nn.Sequential) -> Tree:
    """The parameters themselves, with their gradients, under the names of a tree."""
    named = ((name.partition("."), value) for name, value in model.named_parameters())
    return {
        ("head." if part == "1" else "norm." if "norm" in rest else "body.") + rest: v for (part, _, rest), v in named
    }
