"""Methods that train inside a transformer, against products, loops and derivatives worked out another way."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from backbones import LENGTH, WIDTH, WORDS, reading, small_bert
from federations import CLASSES, clients
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import METHODS, Batch, Method, State, Update, Visit
from fedkeel.core.rng import generator
from fedkeel.core.roster import Enrolment, Roster
from fedkeel.core.tree import Tree, select
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine
from fedkeel.methods.transformer.fft_moe import FFTMoE
from fedkeel.methods.transformer.flora import Flora
from fedkeel.methods.transformer.frlora import FRLora
from fedkeel.methods.transformer.lora import Lora
from fedkeel.models.backbone import Backbone
from fedkeel.rows.inputs import Inputs
from fedkeel.rows.inputs import inputs as inputs_of


def rows(count: int = 6) -> Inputs:
    ids = generator(1, "rows").integers(1, WORDS, (count, LENGTH))
    return inputs_of(small_bert(), list(ids), LENGTH)


def noise(like: Tree, scale: float = 0.1) -> Tree:
    """The same names and shapes with keyed random values."""
    return {k: torch.from_numpy(generator(2, k).normal(scale=scale, size=v.shape)).float() for k, v in like.items()}


def started(method: Method) -> State:
    return method.start(reading(clients(), CLASSES)[1])


def trained(method: Method, cohort: list[int]) -> tuple[State, Update]:
    """The state before a round, and what came up in it."""
    who, task = reading(clients(), CLASSES)
    state, phase = method.start(task), method.plan(1)[0]
    update = LocalEngine(who).exchange(method, state, phase, 1, cohort).update
    assert update is not None
    return state, update


def with_weights(backbone: Backbone, weights: Tree) -> Tensor:
    """Features of a copy of the network whose weights were really overwritten."""
    network = copy.deepcopy(backbone.whole.network)
    for name, value in weights.items():
        network.get_parameter(name).copy_(value)
    x = rows()
    inputs = x.source(x.index.numpy())
    mask = inputs["attention_mask"].unsqueeze(2).float()
    return (network(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)


def test_lora_is_the_network_with_w_plus_s_b_a() -> None:
    """Also FLoRA and FRLoRA, whose weights carry what was merged before."""
    for method in (Lora(rank=3, alpha=6.0), Flora(rank=3, alpha=6.0), FRLora(rank=3, alpha=6.0)):
        params = noise(started(method).shared)
        names = small_bert().attention
        assert len(names) == 4, "query and value of two blocks"
        expected = {
            name: small_bert().weight(name)
            + 2.0 * params[f"B.{index:02d}"] @ params[f"A.{index:02d}"]
            + params.get(f"merged.{index:02d}", torch.tensor(0.0))
            for index, name in enumerate(names)
        }
        with torch.no_grad():
            ours = rows().features(**method.adapted(params, rows()))
            torch.testing.assert_close(ours, with_weights(small_bert(), expected))


@pytest.mark.parametrize("name", ["lora", "flora", "frlora", "fedsa-lora", "fft-moe"])
def test_before_training_the_features_are_the_pretrained_ones(name: str) -> None:
    """B = 0, U = 0, or W_0 - s B_0 A_0 + s B_0 A_0: every one of them starts from the network as it is."""
    method = METHODS[name]()
    state = started(method)
    with torch.no_grad():
        ours = rows().features(**method.adapted({**state.shared, **method.private(state.down)}, rows()))
        torch.testing.assert_close(ours, rows().features(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lora", "flora", "frlora", "fft-moe", "pfpt"])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    """(L(w + h) - L(w - h)) / 2h in float64 along a random direction. Expert choices do not change within h."""
    method, x = METHODS[name](), rows()
    double = replace(x.backbone, whole=copy.deepcopy(x.backbone.whole).double())
    network = double.whole.network

    def apply(inputs: dict[str, Tensor]) -> Tensor:
        mask = inputs["attention_mask"].unsqueeze(2).double()
        return (network(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)

    double.whole._features = apply
    x = Inputs(double, x.source, x.index)
    params = {k: v.double().requires_grad_() for k, v in noise(started(method).shared, 0.3).items()}
    batch = Batch(x, torch.arange(6) % CLASSES, torch.full((6,), 1 / 6).double(), torch.empty(0))  # type: ignore[arg-type]
    visit = Visit({}, {}, method.plan(1)[0])
    method.loss(params, batch, visit).backward()
    along = {k: torch.from_numpy(generator(3, k).normal(size=v.shape)) for k, v in params.items()}
    slope = sum(float((v.grad * along[k]).sum()) for k, v in params.items())  # type: ignore[operator]
    with torch.no_grad():
        up, down = (
            float(method.loss({k: v + h * along[k] for k, v in params.items()}, batch, visit)) for h in (1e-6, -1e-6)
        )
    assert slope == pytest.approx((up - down) / 2e-6, rel=1e-5)


def test_flora_merges_the_mean_of_the_products() -> None:
    """sum_k (n_k / n) B_k A_k exactly, which the product of the means is not; then the adapters start anew."""
    method = Flora(rank=4, alpha=8.0, ranks=(4, 2), lr=0.05, batch=8)
    state, update = trained(method, [0, 1, 3])
    after = method.merge(state, update, method.plan(1)[0])
    p = np.array([23, 8, 50]) / 81
    for index in ("00", "03"):
        a = state.shared[f"A.{index}"] + update.each[f"A.{index}"]
        b = update.each[f"B.{index}"]
        expected = 2.0 * sum(p[k] * b[k].double().numpy() @ a[k].double().numpy() for k in range(3))
        np.testing.assert_allclose(after.shared[f"merged.{index}"], expected, atol=1e-7)
        averaged = 2.0 * np.tensordot(p, b.numpy(), 1) @ np.tensordot(p, a.numpy(), 1)
        assert np.abs(averaged - expected).max() > 1e-3, "averaging the factors is something else"
        assert not after.shared[f"B.{index}"].any()
        assert (after.shared[f"A.{index}"] != state.shared[f"A.{index}"]).all()


def test_flora_s_small_clients_stay_small() -> None:
    """Clients 1 and 3 have rank 2: their further rows of A and columns of B are zero after training, too."""
    method = Flora(rank=4, ranks=(4, 2), lr=0.05, batch=8, epochs=2)  # a head at zero passes no gradient on
    state, update = trained(method, [0, 1, 3])
    a, b = state.shared["A.00"] + update.each["A.00"], update.each["B.00"]
    assert a[0].abs().sum(1).min() > 0
    assert b[0].abs().sum(0).min() > 0
    for small in (1, 2):
        assert not a[small, 2:].any()
        assert not b[small, :, 2:].any()
        assert b[small, :, :2].any()


def test_flora_draws_its_adapters_again_by_the_seed_of_the_run() -> None:
    """Other runs draw others, in every round; the seed is the server's own."""
    method = Flora(rank=4, batch=8)
    who, task = reading(clients(), CLASSES)
    phase, drawn = method.plan(1)[0], {}
    for seed in (0, 1):
        state = method.start(replace(task, seed=seed))
        update = LocalEngine(who).exchange(method, state, phase, 1, [0, 1]).update
        assert update is not None
        assert "seed" not in select(state.down, phase.gets)
        for round in (1, 2):
            drawn[seed, round] = method.merge(state, replace(update, round=round), phase).shared["A.00"]
            expected = generator(seed, "flora", round, 0).normal(scale=WIDTH**-0.5, size=(4, WIDTH))
            np.testing.assert_allclose(drawn[seed, round], expected, rtol=1e-6)
    assert len({float(value.sum()) for value in drawn.values()}) == 4


def test_flora_refuses_ranks_beyond_its_own() -> None:
    with pytest.raises(FedkeelError, match=r"method.ranks = \(16,\): expected ranks from 1 to method.rank = 8"):
        Flora(ranks=(16,))


def test_frlora_merges_the_residual_and_starts_again() -> None:
    method = FRLora(rank=4, alpha=8.0, lr=0.01, batch=8)
    state, update = trained(method, [0, 1, 3])
    after = method.merge(state, update, method.plan(1)[0])
    a0, b0 = state.shared["A.01"], state.shared["B.01"]
    u, s, vt = np.linalg.svd(small_bert().weight(small_bert().attention[1]).double().numpy())
    np.testing.assert_allclose((b0 @ a0).numpy(), (u[:, :4] * s[:4] / 2.0) @ vt[:4], atol=1e-6)
    a, b = a0 + update.mean["A.01"], b0 + update.mean["B.01"]
    torch.testing.assert_close(after.shared["merged.01"], state.shared["merged.01"] + 2.0 * (b @ a - b0 @ a0))
    assert torch.equal(after.shared["A.01"], a0)
    assert torch.equal(after.shared["B.01"], b0)


def test_fedsa_lora_s_global_model_is_the_frozen_network() -> None:
    """No B ever leaves, so with whatever A there is nothing to add; a client's own model has its B."""
    method = METHODS["fedsa-lora"]()
    state = started(method)
    state = State(noise(state.shared))
    assert not [name for name in state.shared if name.startswith("B.")]
    with torch.no_grad():
        features = rows().features()
        scaled = features / features.norm(dim=1, keepdim=True) * WIDTH**0.5
        expected = scaled @ state.shared["head.weight"].T + state.shared["head.bias"]
        torch.testing.assert_close(method.predict(state, {}, rows()), expected)  # type: ignore[arg-type]
        own = method.predict(state, noise(method.private(state.down)), rows())  # type: ignore[arg-type]
    assert (own - expected).abs().max() > 1e-3


@pytest.mark.parametrize("top", [1, 2])
def test_a_mixture_of_experts_token_by_token(top: int) -> None:
    """g = softmax(W_R x); the chosen experts' U gelu(D x) count with their gates; M sum f P is the load balance."""
    method, loads = FFTMoE(experts=3, rank=2, top=top), []
    params = {k: v.double() for k, v in noise(started(method).shared, 0.8).items()}
    x = torch.from_numpy(generator(4, "tokens").normal(size=(2, 5, WIDTH)))
    ours = method.mixture(params, 1, loads)(x).numpy()
    router, down, up = (params[f"moe.01.{part}"].numpy() for part in ("router", "down", "up"))
    share, gates_sum = np.zeros(3), np.zeros(3)
    for i in range(2):
        for j in range(5):
            token = x[i, j].numpy()
            gates = np.exp(router @ token) / np.exp(router @ token).sum()
            chosen = np.argsort(-gates)[:top]
            inside = [torch.nn.functional.gelu(torch.from_numpy(down[m] @ token)).numpy() for m in chosen]
            expected = sum(gates[m] * up[m] @ h for m, h in zip(chosen, inside, strict=True))
            np.testing.assert_allclose(ours[i, j], expected, atol=1e-12)
            share[chosen] += 1 / (10 * top)
            gates_sum += gates / 10
    assert float(loads[0]) == pytest.approx(3 * (share * gates_sum).sum())


def test_fft_moe_s_weight_decay_is_that_of_adam() -> None:
    """Its share of the gradient and AdamW without any: three steps as torch.optim.Adam takes them."""
    method, phase = FFTMoE(weight_decay=0.3), FFTMoE(weight_decay=0.3).plan(1)[0]
    ours, theirs = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    adam = torch.optim.Adam([theirs], lr=method.lr, weight_decay=0.3)
    slots, empty = phase.optim.slots([ours]), torch.empty(0)
    for step, gradient in enumerate((torch.tensor([0.1, 0.2, -0.3]), torch.tensor([0.3, 0.0, 0.1])), 1):
        batch, visit = Batch(rows(), empty, empty, empty), Visit({}, {}, phase)
        adjusted = method.adjust({"w": gradient}, {"w": ours}, batch, visit)
        phase.optim.step([ours], [adjusted["w"]], slots, step)
        theirs.grad = gradient.clone()
        adam.step()
    torch.testing.assert_close(ours, theirs.detach())
    assert float((ours - torch.tensor([1.0, -2.0, 0.5])).abs().max()) > 1e-4


@pytest.mark.parametrize(("held", "taking_part"), [(100, 10), (63, 10), (7, 7)])
def test_pfpt_s_participation_is_a_share_of_all_clients(held: int, taking_part: int) -> None:
    """Ten of a hundred, as long as so many have rows; of other methods the share is of those that have some."""
    sizes = np.where(np.arange(100) < held, 5, 0)
    roster = Roster("run", [str(client) for client in range(100)], sizes, 0, ("a", "b"))
    for method, count in ((METHODS["pfpt"](), taking_part), (Lora(participation=0.1), round(held / 10))):
        cohort = choose(roster, method, method.plan(1)[0], 1, [])
        assert len(cohort) == count
        assert max(cohort) < held
    enrolment = Enrolment(tuple(roster.names), sizes, np.minimum(sizes, 1), np.ones(2), 0, np.ones(2))
    METHODS["pfpt"](participation=0.01).check(enrolment)
    with pytest.raises(FedkeelError, match="samples nobody"):
        METHODS["pfpt"](participation=0.001).check(enrolment)


def test_fedprompt_averages_prompts_place_by_place() -> None:
    """A step of each client on prompts and head by autograd on the network itself, and their mean by rows."""
    method = METHODS["fedprompt"](prompts=3, optimizer="sgd", lr=0.5, batch=50, weight_decay=0.0)
    who, task = reading(clients((5, 9)), CLASSES)
    start, mean = method.start(task), dict[str, Tensor]()
    assert start.shared["prompts"].shape == (3, WIDTH)
    assert METHODS["fedprompt"]().start(task).shared["prompts"].shape == (10, WIDTH)
    for client, rows in enumerate((5, 9)):
        leaves = {name: value.clone().requires_grad_() for name, value in start.shared.items()}
        features = who.x[who.rows(client)].features(prompts=leaves["prompts"])
        features = WIDTH**0.5 * features / features.norm(dim=1, keepdim=True)
        logits = features @ leaves["head.weight"].T + leaves["head.bias"]
        torch.nn.functional.cross_entropy(logits, who.y[who.rows(client)]).backward()
        for name, value in leaves.items():
            assert value.grad is not None
            mean[name] = mean.get(name, 0) + rows / 14 * (value - 0.5 * value.grad).detach()
    (phase,) = method.plan(1)
    update = LocalEngine(who).exchange(method, start, phase, 1, [0, 1]).update
    assert update is not None
    found = method.merge(start, update, phase).shared
    assert found.keys() == mean.keys() == {"prompts", "head.weight", "head.bias"}
    for name, value in mean.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_pfpt_s_server_matches_before_it_averages() -> None:
    """Two clients hold the same two prompts in opposite order: the mean would be one prompt twice, 0 and 0."""
    method = METHODS["pfpt"](prompts=2)
    state = started(method)
    truth = torch.stack([torch.ones(WIDTH), -torch.ones(WIDTH)])
    theirs = torch.stack([truth, truth.flip(0)]) - state.shared["prompts"]
    mean = {name: torch.zeros_like(value) for name, value in state.shared.items() if name != "prompts"}
    update = Update(mean, {"prompts": theirs}, torch.tensor([0, 1]), torch.tensor([3.0, 5.0]), 1)
    found = method.merge(state, update, method.plan(1)[0]).shared["prompts"]
    torch.testing.assert_close(found.sort(0, descending=True).values, truth)  # their order means nothing
