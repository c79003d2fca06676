"""PromptFolio, FedOTP and FedPGP: losses by hand and by differences, what stays with a client, what they reduce to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

import fedkeel as fk
from duals import NAMES, bert_folder, paired, texts_of
from federations import clients, played, private
from fedkeel.core.method import Batch, State, Task, Visit
from fedkeel.core.tree import Tree, digest, put, select, take
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.sites import Sites
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.dual.base import OWN, PEFT, DualTuned
from fedkeel.methods.dual.fedotp import FedOTP
from fedkeel.methods.dual.fedpgp import FedPGP
from fedkeel.methods.dual.promptfl import PromptFL
from fedkeel.methods.dual.promptfolio import PromptFolio

JOINT = (PromptFolio, FedOTP, FedPGP)
every_joint = pytest.mark.parametrize("kind", JOINT)
USUAL: dict[str, Any] = {"rounds": 2, "participation": 1.0, "batch": 4, "lr": 0.2, "personal_epochs": 1}


def world(method: DualTuned, sizes: tuple[int, ...] = (9, 6)) -> tuple[Sites, Task]:
    return paired(clients(sizes), method)


def whole_batch(who: Sites) -> Batch:
    rows = len(who.y)
    return Batch(who.x, who.y, torch.full((rows,), 1 / rows), torch.empty(0))


def apart(tree: Tree, seed: int = 0) -> Tree:
    """The tensors, each moved somewhere else."""
    rng = np.random.default_rng(seed)
    return {name: value + torch.from_numpy(rng.normal(size=value.shape)).float() for name, value in tree.items()}


def set_out(method: DualTuned, sizes: tuple[int, ...] = (9, 6)) -> tuple[Sites, Visit, Tree]:
    """A visit in the first phase, and trained tensors that differ between client and server."""
    who, task = world(method, sizes)
    state = method.start(task)
    visit = Visit(state.down, method.private(state.down), method.plan(1)[0], 1, torch.ones(len(NAMES)))
    return who, visit, apart(method.begin(visit))


def gradients(method: DualTuned, params: Tree, batch: Batch, visit: Visit) -> Tree:
    return method.gradients({name: value.clone().requires_grad_() for name, value in params.items()}, batch, visit)


def cross_entropy(logits: np.ndarray, labels: torch.Tensor) -> float:
    return float(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels.numpy()].mean())


# ---- all three


@every_joint
def test_gradients_are_those_of_differences(kind: type[DualTuned]) -> None:
    """Central differences of the loss along the gradient of each tensor, in float32; FedOTP's plan is held fixed."""
    method = kind()
    who, visit, params = set_out(method)
    batch = whole_batch(who)
    held: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        if kind is FedOTP:
            from fedkeel.methods.dual import transport

            real_plan = transport.plan
            patch.setattr(transport, "plan", lambda *given: held.setdefault("plan", real_plan(*given)))
        for name, gradient in gradients(method, params, batch, visit).items():
            assert float(gradient.norm()) > 1e-4, f"nothing to compare for {name}"
            towards = gradient / gradient.norm()
            up, down = ({**params, name: params[name] + sign * 1e-2 * towards} for sign in (1, -1))
            slope = (method.loss(up, batch, visit) - method.loss(down, batch, visit)) / 2e-2
            assert slope.item() == pytest.approx(float(gradient.norm()), rel=0.02), name


@every_joint
def test_both_parts_are_trained_in_every_visit_and_one_stays(kind: type[DualTuned]) -> None:
    method = kind(**USUAL, schedule="interleaved")
    who, task = world(method)
    sent: list[bytes] = []
    start = method.start(task)
    engine = WireEngine(who, transport=lambda _, reply: sent.append(reply) or reply)
    first = played(method, engine, start)
    after_one = {client: dict(mine) for client, mine in private(who).items()}
    assert digest(first.shared) != digest(start.shared)
    assert first.shared.keys() == start.shared.keys() == {PEFT + "context"}
    assert len(sent) == 2
    assert all(b"own." not in message for message in sent)
    played(method, engine, first)
    assert all(digest(private(who)[client]) != digest(after_one[client]) for client in (0, 1))
    assert digest(private(who)[0]) != digest(private(who)[1])
    assert all(name.startswith(OWN) for name in private(who)[0])


@every_joint
def test_schedules(kind: type[DualTuned]) -> None:
    """Sequential: joint training and the final phase of all other methods; interleaved: the paper's training alone."""
    sequential, interleaved = kind(rounds=3, personal_epochs=7), kind(rounds=3, schedule="interleaved")
    assert [[p.name for p in sequential.plan(t)] for t in (1, 2, 3)] == [["joint"], ["joint"], ["joint", "personal"]]
    assert [[p.name for p in interleaved.plan(t)] for t in (1, 2, 3)] == [["joint"]] * 3
    joint, last = sequential.plan(3)
    assert (joint.trains, joint.sends) == ((PEFT, OWN), (PEFT,))
    assert (last.trains, last.sends, last.cohort, last.epochs) == ((OWN,), (), "all", 7)
    assert [sequential.plan(t)[0].cohort for t in (1, 2)] == ["all", "sample"]


@every_joint
def test_the_last_phase_trains_a_client_s_part_under_the_shared_one(kind: type[DualTuned]) -> None:
    """One step of plain SGD by hand: the gradient of the same loss by the own tensors, the shared ones held."""
    method = kind(**{**USUAL, "batch": 50, "momentum": 0.0, "weight_decay": 0.0})
    who, visit, params = set_out(method, (7,))
    shared, own = select(params, (PEFT,)), select(params, (OWN,))
    who.store.write(who.names[0], 0, own)
    phase, engine = method.plan(2)[1], LocalEngine(who)
    engine.accepted[0] = 0
    exchange = engine.exchange(method, State(shared), phase, 2, [0])
    assert exchange.update is None
    expected = select(gradients(method, params, whole_batch(who), visit), (OWN,))
    for name, gradient in expected.items():
        torch.testing.assert_close(private(who)[0][name], own[name] - 0.2 * gradient, rtol=1e-4, atol=1e-6)


@every_joint
def test_without_a_client_the_model_is_the_shared_prompt(kind: type[DualTuned]) -> None:
    method = kind()
    who, _, params = set_out(method)
    shared, own = select(params, (PEFT,)), select(params, (OWN,))
    common = method.predict(State(shared), {}, who.x)
    assert torch.equal(common, method.module.logits(take(PEFT, shared), who.x))  # type: ignore[arg-type]
    assert not torch.allclose(common, method.predict(State(shared), own, who.x), atol=1e-2)
    if kind is not FedOTP:
        plain = PromptFL().predict(State(shared), {}, who.x)
        assert torch.equal(common, plain)


@every_joint
def test_a_model_that_was_looked_at_can_be_trained_on(kind: type[DualTuned]) -> None:
    """Class features that an evaluation has computed are used by the last phase, whose backward pass may need them."""
    method = kind(**USUAL)
    who, task = world(method)
    state = method.start(task)
    with torch.inference_mode():
        method.predict(state, method.private(state.down), who.x)
    LocalEngine(who).exchange(method, state, method.plan(2)[1], 2, [0, 1])
    assert sorted(private(who)) == [0, 1]


# ---- PromptFolio


def test_the_loss_of_promptfolio_by_hand() -> None:
    """Cross-entropy of scale * item . ((1 - theta) h_G + theta h_L), a sum that is shorter than 1."""
    method = PromptFolio(theta=0.3)
    who, visit, params = set_out(method)
    x: Any = who.x
    h_g, h_l = (x.dual.class_features(params[prefix + "context"]).double().numpy() for prefix in (PEFT, OWN))
    mixed = 0.7 * h_g + 0.3 * h_l
    assert (np.linalg.norm(mixed, axis=1) < 0.999).all(), "the two differ"
    expected = cross_entropy(20.0 * x.features.double().numpy() @ mixed.T, who.y)
    assert method.loss(params, whole_batch(who), visit).item() == pytest.approx(expected, rel=1e-5)


def test_promptfolio_without_a_share_of_its_own_is_promptfl() -> None:
    """theta = 0: the same gradient by the shared context, none by the client's own."""
    folio, plain = PromptFolio(theta=0.0), PromptFL()
    who, visit, params = set_out(folio)
    found = gradients(folio, params, whole_batch(who), visit)
    alone = Visit(visit.down, {}, plain.plan(1)[0])
    expected = gradients(plain, select(params, (PEFT,)), whole_batch(who), alone)
    assert torch.equal(found[PEFT + "context"], expected[PEFT + "context"])
    assert not found[OWN + "context"].any()


def test_promptfolio_starts_as_promptfl() -> None:
    """The client's context is a copy of the shared one, so both have the same features and their mix is either."""
    method = PromptFolio()
    who, task = world(method)
    state = method.start(task)
    own = put(OWN, take(PEFT, state.shared))
    torch.testing.assert_close(method.predict(state, own, who.x), PromptFL().predict(state, {}, who.x))


# ---- FedOTP


def test_two_equal_prompts_divide_what_one_gets_alone() -> None:
    """Equal columns of a plan are half of the single one: same logits, whatever the item."""
    method = FedOTP()
    who, task = world(method)
    state = State(apart(method.start(task).shared))
    own = put(OWN, take(PEFT, state.shared))
    ours, alone = method.predict(state, own, who.x), method.predict(state, {}, who.x)
    torch.testing.assert_close(ours, alone, rtol=2e-3, atol=2e-3)


def test_fedotp_reads_tokens_and_is_told_how_many() -> None:
    for tokens, segment, parts in ((2, 1, 2), (6, 1, 6), (6, 4, 2)):
        x: Any = world(FedOTP(text_tokens=tokens, segment=segment))[0].x
        assert x.get("local").shape == (15, parts * x.dual.dim)


# ---- FedPGP


def test_the_loss_of_fedpgp_by_hand() -> None:
    """CE of the prompt sigma + U V, plus mu times -log of e^(a/tau) / (e^(a/tau) + e^(b/tau)), mean over classes."""
    method = FedPGP(mu=0.7, temperature=0.4, rank=2)
    who, visit, params = set_out(method)
    x: Any = who.x
    sigma, u, v = (params[name] for name in (PEFT + "context", OWN + "U", OWN + "V"))
    assert (u.shape, v.shape) == ((4, 2), (2, 16))
    t_s, t_p = (x.dual.class_features(context).double().numpy() for context in (sigma, sigma + u @ v))
    near, far = (x.dual.zero_shot.double().numpy() * t_s).sum(1) / 0.4, (t_s * t_p).sum(1) / 0.4
    contrast = np.mean([-np.log(np.exp(a) / (np.exp(a) + np.exp(b))) for a, b in zip(near, far, strict=True)])
    expected = cross_entropy(20.0 * x.features.double().numpy() @ t_p.T, who.y) + 0.7 * contrast
    assert method.loss(params, whole_batch(who), visit).item() == pytest.approx(expected, rel=1e-5)


def test_fedpgp_without_its_own_part_is_promptfl() -> None:
    """U = 0 and mu = 0: the client's model is the shared one, its gradient that of PromptFL, and V has none."""
    method, plain = FedPGP(mu=0.0), PromptFL()
    who, visit, params = set_out(method)
    params[OWN + "U"] = torch.zeros_like(params[OWN + "U"])
    shared, own = select(params, (PEFT,)), select(params, (OWN,))
    assert torch.equal(method.predict(State(shared), own, who.x), plain.predict(State(shared), {}, who.x))
    found = gradients(method, params, whole_batch(who), visit)
    expected = gradients(plain, shared, whole_batch(who), Visit(visit.down, {}, plain.plan(1)[0]))
    torch.testing.assert_close(found[PEFT + "context"], expected[PEFT + "context"])
    assert not found[OWN + "V"].any()
    assert found[OWN + "U"].any()


def test_the_contrast_of_fedpgp_pulls_the_shared_prompt_to_zero_shot() -> None:
    """Trained on it alone, the shared features come nearer to those of the template and leave the personal ones."""
    method = FedPGP(mu=1.0)
    who, _, params = set_out(method)
    x: Any = who.x
    dual = x.dual

    def cosines(params: Tree) -> tuple[float, float]:
        shared = dual.class_features(params[PEFT + "context"])
        personal = dual.class_features(method.prompt(take(PEFT, params), take(OWN, params)))
        return float((dual.zero_shot * shared).sum(1).mean()), float((shared * personal).sum(1).mean())

    before = cosines(params)
    for _ in range(20):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        shared = dual.class_features(leaves[PEFT + "context"])
        personal = dual.class_features(method.prompt(take(PEFT, leaves), take(OWN, leaves)))
        found = torch.autograd.grad(method.contrast(dual.zero_shot, shared, personal), list(leaves.values()))
        params = {name: value - 0.5 * g for (name, value), g in zip(params.items(), found, strict=True)}
    after = cosines(params)
    assert after[0] > before[0] + 0.02
    assert after[1] < before[1] - 0.02


def test_the_start_of_fedpgp_goes_down_once() -> None:
    """U and V are drawn by the server with the run's seed, alike for all clients, and are no part of the model."""
    method = FedPGP(**USUAL)
    who, task = world(method)
    state = method.start(task)
    assert set(state.shared) == {PEFT + "context"}
    mine = method.private(state.down)
    assert mine.keys() == {OWN + "U", OWN + "V"}
    assert 0.005 < float(mine[OWN + "V"].std()) < 0.05
    other = method.start(Task(task.dim, task.classes, task.clients, 1, reader=task.reader))
    assert digest(method.private(other.down)) != digest(mine)
    engine = LocalEngine(who)
    down = [engine.exchange(method, state, method.plan(t)[0], t, [0, 1]).bytes_down for t in (1, 2)]
    assert down[0] - down[1] > 2 * 4 * (mine[OWN + "U"].numel() + mine[OWN + "V"].numel()), "for two clients"


# ---- what all methods of a dual encoder do


def test_a_personal_prompt_starts_as_the_shared_one_is_in_the_end() -> None:
    """PromptFL: until the last phase a client's model is the global one; then a step by hand from there."""
    method = PromptFL(**{**USUAL, "batch": 50, "momentum": 0.0, "weight_decay": 0.0})
    who, task = world(method, (7,))
    engine, state = LocalEngine(who), method.start(task)
    first = played(method, engine, state)
    assert not private(who), "nothing of its own yet"
    last = played(method, engine, State(first.shared), rounds=1)
    assert torch.equal(method.predict(last, private(who).get(0, {}), who.x), method.predict(last, {}, who.x))
    engine.exchange(method, last, method.plan(2)[1], 2, [0])
    visit = Visit(last.down, {}, method.plan(1)[0])
    step = gradients(method, last.shared, whole_batch(who), visit)[PEFT + "context"]
    expected = last.shared[PEFT + "context"] - 0.2 * step
    torch.testing.assert_close(private(who)[0][OWN + "context"], expected, rtol=1e-4, atol=1e-6)


def test_interleaved_keeps_what_a_client_had_at_the_end_of_its_last_visit() -> None:
    method = PromptFL(**USUAL, schedule="interleaved")
    who, task = world(method, (7,))
    state = method.start(task)
    after = played(method, LocalEngine(who), state)
    torch.testing.assert_close(private(who)[0][OWN + "context"], after.shared[PEFT + "context"])


@pytest.mark.parametrize("name", ["promptfolio", "fedotp", "fedpgp"])
def test_a_whole_run_predicts_new_texts(name: str, tmp_path: Path) -> None:
    """Local features go through the cache like any others, and a model reads new rows as it read the old ones."""
    draw = np.random.default_rng(0)
    labels = draw.integers(4, size=60)
    texts = texts_of(labels)
    lines = [f"{text},{NAMES[label]}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "posts.csv").write_text("\n".join(["text,label", *lines]))
    result = fk.run(
        data={
            "source": f"csv:{tmp_path / 'posts.csv'}",
            "encoder": f"hf:{bert_folder()}",
            "cache": str(tmp_path / "c"),
        },
        partition={"clients": 3},
        method={"name": name, "rounds": 2, "batch": 8, "lr": 0.05, "personal_epochs": 1, "balance": "grab"},
        run={"threads": 1},
        out=tmp_path / "run",
    )
    assert len(list((tmp_path / "c/features").glob("*/meta.json"))) == (2 if name == "fedotp" else 1)
    names, scores = result.model.predict(texts[:5])
    assert set(names) <= set(NAMES)
    assert (scores > 1 / len(NAMES)).all()
    end = result.record.end
    assert end is not None
    assert 0 <= end["personal_mean"] <= 1
