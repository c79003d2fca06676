"""FedSoup's choice on models whose answers are known beforehand, and where the rows of that choice come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedkeel as fk
from backbones import reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Visit
from fedkeel.core.tree import Tree, put, select, take
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.networks.fedsoup import FedSoup
from fedkeel.rows.inputs import Inputs

METHOD = FedSoup(rounds=8, batch=50)
SOUP = METHOD.plan(8)[1]
BIAS = "head.bias"


def constant(bias: list[float]) -> Tree:
    """A network that gives every picture these logits."""
    tree = METHOD.start(reading_images(clients((1,)), CLASSES)[1]).shared
    return {**tree, "head.weight": torch.zeros_like(tree["head.weight"]), BIAS: torch.tensor(bias)}


def soup(mine: Tree, latest: list[float], label: int) -> tuple[Tree, Tree]:
    """One choice on rows that all have this label: (what is sent, what is kept)."""
    who, _ = reading_images(clients((6,)), CLASSES)
    return METHOD.measure(who.x, torch.full((len(who.x),), label), Visit(constant(latest), mine, SOUP))


def test_the_latest_global_model_joins_the_pool_only_where_it_helps() -> None:
    """l = (2, 0, 0, 0) says class 0, g = (0, 6, 0, 0) class 1, and so does their mean (1, 3, 0, 0).
    On rows of class 1 B = (1, 3, 0, 0) wins and g is the pool; on rows of class 0 A = l stays and the pool is empty.
    On rows of class 2 both are wrong: not better, so A."""
    local = put("local.", constant([2, 0, 0, 0]))
    sent, kept = soup(local, [0, 6, 0, 0], label=1)
    assert kept["own." + BIAS].tolist() == [1, 3, 0, 0]
    assert kept["pool." + BIAS].tolist() == [0, 6, 0, 0]
    assert kept["count"].tolist() == [1]
    assert sent[BIAS].tolist() == [1, -3, 0, 0], "B less the model that came down"
    for label in (0, 2):
        _, kept = soup(local, [0, 6, 0, 0], label)
        assert kept["own." + BIAS].tolist() == [2, 0, 0, 0]
        assert not select(kept, ("pool.", "count", "local."))


def test_a_pool_counts_as_many_times_as_it_has_models() -> None:
    """Pool of m = 2 with mean p = (0, 6, 0, 0), l = (9, 0, 0, 0), g = (0, 0, 24, 0):
    A = (l + 2 p) / 3 = (3, 4, 0, 0) says class 1, B = (l + 2 p + g) / 4 = (2.25, 3, 6, 0) class 2."""
    pool = {**put("pool.", constant([0, 6, 0, 0])), "count": torch.tensor([2.0])}
    mine = {**put("local.", constant([9, 0, 0, 0])), **pool}
    _, kept = soup(mine, [0, 0, 24, 0], label=1)
    assert kept["own." + BIAS].tolist() == [3, 4, 0, 0]
    same(select(kept, ("pool.", "count")), pool)
    _, kept = soup(mine, [0, 0, 24, 0], label=2)
    assert kept["own." + BIAS].tolist() == [2.25, 3, 6, 0]
    torch.testing.assert_close(kept["pool." + BIAS], torch.tensor([0.0, 4.0, 8.0, 0.0]))
    assert kept["count"].tolist() == [3]


def test_it_is_fedavg_until_the_trigger() -> None:
    assert [len(METHOD.plan(round)) for round in range(1, 9)] == [1, 1, 1, 1, 1, 1, 2, 2]
    who, task = reading_images(clients((6, 9, 5)), CLASSES)
    plain = FedAvg(tune="network", **METHOD.model_dump(include={"rounds", "batch", "epochs", "lr", "weight_decay"}))
    ours, theirs = (played(method, LocalEngine(who), method.start(task), rounds=3) for method in (METHOD, plain))
    same(ours.shared, theirs.shared)
    assert not private(who)


@pytest.mark.parametrize("engine", [LocalEngine, WireEngine])
def test_it_chooses_on_validation_rows_and_the_server_averages_the_soups(
    engine: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, seen = FedSoup(rounds=1, trigger=0, batch=4), []
    measure = FedSoup.measure

    def spy(self: FedSoup, x: Inputs, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        seen.append(x.index.tolist())
        return measure(self, x, y, visit)

    monkeypatch.setattr(FedSoup, "measure", spy)
    who, task = reading_images(clients((6, 9, 1)), CLASSES)
    state = played(method, engine(who), method.start(task))
    assert who.validation is not None
    assert seen == [who.validation.of(client).tolist() for client in range(3)] == [[16, 17], [18, 19], []]
    soups = [take("own.", private(who)[client]) for client in range(3)]
    same(state.shared, {name: (6 * soups[0][name] + 9 * soups[1][name] + soups[2][name]) / 16 for name in soups[0]})


def test_without_validation_rows_it_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(FedkeelError, match=r"fedsoup chooses models on validation rows .* set partition.validation"):
        fk.run(
            data={"source": "digits5", "limit": 100},
            partition={"kind": "column"},
            method={"name": "fedsoup"},
            out=tmp_path / "run",
        )
