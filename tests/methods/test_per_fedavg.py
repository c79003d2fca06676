"""Per-FedAvg against its two steps, taken one after the other outside of the engine."""

from __future__ import annotations

from backbones import gradient_by_hand, pictures_of, plain_step, reading_images, same
from federations import CLASSES, clients, played, private
from fedkeel.core.tree import learnt, put
from fedkeel.engines.local import LocalEngine
from fedkeel.methods.networks.per_fedavg import PerFedAvg

SGD = {"optimizer": "sgd", "lr": 0.3, "alpha": 0.7, "batch": 50}


def test_an_outer_step_is_taken_with_the_gradient_at_the_inner_one() -> None:
    """w' = w - 0.7 grad L_B1(w), w - 0.3 grad L_B2(w'), with B1 and B2 the first three and the last four of 7 rows."""
    method = PerFedAvg(rounds=9, **SGD)
    who, task = reading_images(clients((7,)), CLASSES)
    state, (x, y) = method.start(task), pictures_of(who, 0)
    w = {name: value.clone() for name, value in state.shared.items()}
    inner = plain_step(w, gradient_by_hand(w, x[:3], y[:3], moves=True), 0.7)
    expected = plain_step(w, gradient_by_hand(inner, x[3:], y[3:], moves=True), 0.3)
    same(played(method, LocalEngine(who), state).shared, expected)
    plain = plain_step(w, gradient_by_hand(w, x[3:], y[3:], moves=True), 0.3)
    assert any((plain[name] - value).abs().max() > 1e-3 for name, value in learnt(expected).items()), "alpha matters"
    assert not private(who)


def test_in_the_end_every_client_adapts_the_shared_model_by_inner_steps() -> None:
    """Also those that took no part; two passes of one batch are two steps of alpha. One row is both halves."""
    method = PerFedAvg(rounds=1, participation=0.4, adapt_epochs=2, **SGD)
    who, task = reading_images(clients((6, 9, 1)), CLASSES)
    state = played(method, LocalEngine(who), method.start(task))
    assert sorted(private(who)) == [0, 1, 2]
    for client in range(3):
        own = {name: value.clone() for name, value in state.shared.items()}
        for _ in range(2):
            own = plain_step(own, gradient_by_hand(own, *pictures_of(who, client), moves=True), 0.7)
        same(private(who)[client], put("own.", own))
    before, after = method.predict(state, {}, who.x), method.predict(state, private(who)[1], who.x)
    assert (before - after).abs().max() > 1e-2
