"""FedRep: the head first, on features that stand still, then the encoder under it; and the head stays at home."""

from __future__ import annotations

import torch

from backbones import gradient_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.tree import HEAD, select
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.networks.fedrep import FedRep

METHOD = FedRep(rounds=2, optimizer="sgd", lr=0.5, head_epochs=3, batch=50)


def test_three_steps_of_the_head_then_one_of_the_encoder() -> None:
    who, task = reading_images(clients((7,)), CLASSES)
    state, (x, y) = METHOD.start(task), pictures_of(who, 0)
    whole = {name: value.clone() for name, value in state.down.items()}
    for _ in range(3):  # batch norms in evaluation
        whole = plain_step(whole, select(gradient_by_hand(whole, x, y), (HEAD,)), 0.5)
    head = select(whole, (HEAD,))
    trained = plain_step(whole, gradient_by_hand(whole, x, y, moves=True), 0.5)
    after = played(METHOD, LocalEngine(who), state)
    same(private(who)[0], head)
    same(after.shared, {name: value for name, value in trained.items() if name not in head})


def test_no_head_is_in_any_message_and_all_heads_differ() -> None:
    who, task = reading_images(clients((6, 9, 5)), CLASSES)
    sent: list[bytes] = []
    engine = WireEngine(who, transport=lambda _, reply: sent.append(reply) or reply)
    state = played(METHOD, engine, METHOD.start(task), rounds=2)
    assert len(sent) == 3 * 2, "one message of each client in each round"
    assert all(b"body.conv" in message and b"head." not in message for message in sent)
    assert not select(state.shared, (HEAD,))
    heads = [private(who)[client]["head.weight"] for client in range(3)]
    assert not torch.allclose(heads[0], heads[1], atol=1e-3)
    scores = [METHOD.predict(state, private(who)[client], who.x) for client in (0, 1)]
    assert not torch.allclose(*scores, atol=1e-3)
    assert METHOD.predict(state, METHOD.private(state.down), who.x).shape == (len(who.x), CLASSES), (
        "of a client never visited"
    )
