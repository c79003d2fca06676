"""FedBN against FedAvg, from which it differs by what it does not average."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backbones import WIDTH, reading_images, same, small_bert
from federations import CLASSES, clients, played, private
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import Down, size
from fedkeel.core.method import Task
from fedkeel.core.tree import NORM, STATS, select
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.store import Store
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.networks.fedbn import FedBN

HOW = {"rounds": 3, "batch": 4, "epochs": 1, "lr": 0.01, "weight_decay": 0.0}
FEDBN, FEDAVG = FedBN(**HOW), FedAvg(tune="network", **HOW)


def test_after_one_round_all_but_batch_norms_is_that_of_fedavg_and_those_are_what_each_client_trained() -> None:
    """All start alike, so the first local training is FedAvg's to the last bit."""
    who, task = reading_images(clients((6, 9, 5)), CLASSES)
    ours = played(FEDBN, LocalEngine(who), FEDBN.start(task))
    others = reading_images(clients((6, 9, 5)), CLASSES)[0]
    averaged = played(FEDAVG, LocalEngine(others), FEDAVG.start(task)).shared
    same(ours.shared, select(averaged, ("head.", "body.")))
    for client in range(3):
        phase, state = FEDAVG.plan(1)[0], FEDAVG.start(task)
        alone = LocalEngine(others).exchange(FEDAVG, state, phase, 1, [client]).update
        assert alone is not None
        trained = {name: state.shared[name] + moved for name, moved in alone.mean.items()}
        same(private(who)[client], select(trained, (NORM, STATS)))
    means = [private(who)[client]["stats.norm.running_mean"] for client in range(3)]
    assert not torch.allclose(means[0], means[2], atol=1e-3), "brighter pictures have other statistics"


def test_with_a_single_client_it_is_fedavg() -> None:
    who, task = reading_images(clients((11,)), CLASSES)
    ours = played(FEDBN, LocalEngine(who), FEDBN.start(task), rounds=3)
    theirs = played(FEDAVG, LocalEngine(replace(who, store=Store())), FEDAVG.start(task), rounds=3)
    same({**ours.shared, **private(who)[0]}, theirs.shared)
    torch.testing.assert_close(FEDBN.predict(ours, private(who)[0], who.x), FEDAVG.predict(theirs, {}, who.x))


def test_no_batch_norm_is_in_any_message() -> None:
    who, task = reading_images(clients((6, 9, 5)), CLASSES)
    sent: list[bytes] = []
    engine = WireEngine(who, transport=lambda _, reply: sent.append(reply) or reply)
    state = FEDBN.start(task)
    first, later = (engine.exchange(FEDBN, state, FEDBN.plan(1)[0], round, [0, 1, 2]).bytes_down for round in (1, 2))
    assert len(sent) == 3 * 2
    assert b"body.conv" in sent[0]
    assert not any(prefix in message for message in sent for prefix in (b"norm.", b"stats."))
    down = [size(Down(engine.roster.run, 1, "train", arrays)) for arrays in (state.down, state.shared)]
    assert first == 3 * down[0], "the batch norms that clients start with go down once"
    assert later == 3 * down[1], "and then only what is shared goes down"


def test_a_network_without_batch_norm_is_refused() -> None:
    with pytest.raises(FedkeelError, match=r"encoder bert has none: set data.encoder to cnn"):
        FEDBN.start(Task(WIDTH, CLASSES, 3, 0, 20, small_bert()))
