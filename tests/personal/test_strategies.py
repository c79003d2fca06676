"""Every way to personalise against a step that plain PyTorch takes, an equation worked out again, or an invariant."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import factorial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import BatchNorm2d
from torch.nn.functional import cross_entropy, gelu, max_pool2d

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import Batch, Visit
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree, digest, learnt, select, take
from fedkeel.engines import site, wire
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.site import as_batch
from fedkeel.engines.wire import WireEngine
from fedkeel.personal.strategies.lss_ft import LssFT, simplex, squared_volume
from fedkeel.personal.strategy import STRATEGIES, Strategy
from worlds import CLIENT, as_tree, parameters_of, personal, same, trained, whole, world

ALL = sorted(STRATEGIES)
ADAPTERS = ("lora-ft", "adapter-ft")
PLAIN: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05, "epochs": 1, "batch": 1000, "batch_norm": "train"}
"""One step on all rows of a client."""
SMALL: dict[str, Any] = {"epochs": 3, "batch": 8, "lr": 0.003, "batch_norm": "train"}


def steps(count: int, *, moves: bool = True, mu: float = 0.0) -> Tree:
    """Steps of gradient descent on all the client's rows, with FedProx's pull; batch norms move or do not."""
    x, y = world().rows()
    model = whole(world().model.shared).train(moves)
    start = [value.detach().clone() for value in model.parameters()]
    for _ in range(count):
        model.zero_grad()
        cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for value, first in zip(model.parameters(), start, strict=True):
                value -= PLAIN["lr"] * (value.grad + mu * (value - first))
    return as_tree(model)


# ---- ft, proximal-ft, flooding


def test_ft_takes_the_step_of_plain_torch() -> None:
    """Head, body and norms by the gradient; statistics 0.9 old + 0.1 of the batch, as batch norm in training does."""
    mine = personal("ft", **PLAIN)
    same(mine, steps(1))
    shared = world().model.shared
    assert set(mine) == set(shared)
    assert all((mine[name] - shared[name]).abs().max() > 1e-5 for name in mine), "all of it moves"
    x, _ = world().rows()
    first = max_pool2d(whole(shared)[0].first(x), 2)  # type: ignore[union-attr, operator]
    expected = 0.9 * shared["stats.norm_first.running_mean"] + 0.1 * first.mean((0, 2, 3)).detach()
    torch.testing.assert_close(mine["stats.norm_first.running_mean"], expected, rtol=0, atol=1e-6)


def test_ft_with_frozen_batch_norms() -> None:
    """Statistics are not even among what moved, and the step is that of the network in evaluation mode."""
    mine = personal("ft", **{**PLAIN, "batch_norm": "frozen"})
    expected, shared = steps(1, moves=False), world().model.shared
    assert not select(mine, ("stats.",))
    same({**shared, **mine}, expected)
    assert all(torch.equal(value, shared[name]) for name, value in select(expected, ("stats.",)).items())


def test_proximal_ft_pulls_back_from_the_second_step_on() -> None:
    same(personal("proximal-ft", mu=2.0, **{**PLAIN, "epochs": 2}), steps(2, mu=2.0))
    assert (steps(2, mu=2.0)["head.weight"] - steps(2)["head.weight"]).abs().max() > 1e-4, "the pull is seen"


def test_strategies_that_are_ft_when_their_own_part_is_off() -> None:
    """Bit for bit, with several batches and epochs."""
    ft = digest(personal("ft", **SMALL))
    assert digest(personal("proximal-ft", mu=0.0, **SMALL)) == ft
    assert digest(personal("lp-ft", probe=0, **SMALL)) == ft
    assert digest(personal("sparse-ft", sparsity=0.0, **SMALL)) == ft
    assert digest(personal("ft", flood=0.0, **SMALL)) == ft
    assert digest(personal("proximal-ft", mu=0.01, **SMALL)) != ft


def test_flooding_turns_the_gradient_around_below_its_level() -> None:
    """d(|L - b| + b) = sign(L - b) dL: the step is ft's above b, and the opposite below."""
    start, ft = world().model.shared, personal("ft", **PLAIN)
    same(personal("ft", flood=1e-3, **PLAIN), ft, 0)
    below = personal("ft", flood=50.0, **PLAIN)
    for name in learnt(ft):
        torch.testing.assert_close(below[name] - start[name], start[name] - ft[name], rtol=0, atol=1e-6)
    level, loss = STRATEGIES["ft"](flood=0.5).flooded, torch.tensor(2.0)
    assert [float(level(loss)), float(level(loss / 10))] == pytest.approx([2.0, 0.8])  # |0.2 - 0.5| + 0.5


@pytest.mark.parametrize("name", ALL)
def test_flooding_is_an_option_of_every_strategy(name: str) -> None:
    """With b far above the loss, the model leaves: its loss on the client's rows grows."""
    place = world("vit-tiny" if name in ADAPTERS else "cnn")
    settings = {"optimizer": "sgd", "lr": 0.02, "epochs": 2, "batch": 1000, **({"probe": 1} if name == "lp-ft" else {})}
    losses = []
    for flood in (0.0, 50.0):
        work = place.work(name, flood=flood, **settings)
        rows = work.sites.rows(CLIENT)
        scores = work.strategy.predict(work.state, trained(work), work.sites.x[rows])
        losses.append(float(cross_entropy(scores, work.sites.y[rows])))
    assert losses[1] > losses[0] + 1e-3


# ---- lp, lp-ft


def test_probing_takes_the_step_of_the_softmax_by_hand() -> None:
    """W - lr mean (p - onehot) f^T and b - lr mean (p - onehot), f by the global network in evaluation mode."""
    x, y = world().rows()
    shared, lr = world().model.shared, 0.05
    features = whole(shared)[0].eval()(x).detach().double().numpy()
    weight, bias = shared["head.weight"].double().numpy(), shared["head.bias"].double().numpy()
    scores = features @ weight.T + bias
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y.numpy()] -= 1
    mine = personal("lp", probe_lr=lr, **PLAIN)
    assert set(mine) == {"head.weight", "head.bias"}, "nothing else moves"
    np.testing.assert_allclose(mine["head.weight"], weight - lr * p.T @ features / len(y), atol=1e-6)
    np.testing.assert_allclose(mine["head.bias"], bias - lr * p.mean(0), atol=1e-6)


def test_lp_ft_probes_first_and_fine_tunes_from_there() -> None:
    """The first stage moves the head alone; the second is ft of the global network under that head."""
    work = world().work("lp-ft", probe=2, **SMALL)
    probe, tune = work.strategy.plan(1)
    assert (probe.epochs, tune.epochs) == (2, 1)
    probed = trained(work, phases=[probe])
    assert set(probed) == {"head.weight", "head.bias"}
    assert digest(probed) == digest(personal("lp", **{**SMALL, "epochs": 2}))
    changed = replace(world(), model=replace(world().model, shared={**world().model.shared, **probed}))
    assert digest(trained(work)) == digest(trained(changed.work("ft", **{**SMALL, "epochs": 1})))


def test_all_strategies_take_15_epochs_and_lp_ft_probes_for_a_third_of_them() -> None:
    for name in set(ALL) - {"soup-ft", *ADAPTERS}:
        assert sum(phase.epochs for phase in world().work(name).strategy.plan(1)) == 15
    for total, split in ((15, [5, 10]), (30, [10, 20]), (2, [1, 1])):
        assert [phase.epochs for phase in world().work("lp-ft", epochs=total).strategy.plan(1)] == split


def test_lp_ft_that_only_probes_is_lp() -> None:
    assert digest(personal("lp-ft", probe=3, **SMALL)) == digest(personal("lp", **SMALL))


def test_features_encoded_once_give_the_head_that_the_whole_network_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = personal("lp", **SMALL)
    monkeypatch.setattr(Strategy, "once", lambda self, x, visit: x)
    same(quick, personal("lp", **SMALL))


def test_probing_distorts_no_feature(tmp_path: Any) -> None:
    """Exactly 0, which is the point of it; full fine-tuning distorts them."""
    moved = {}
    for name in ("lp", "ft"):
        work = world().work(name, **SMALL)
        moved[name] = work.personalise(CLIENT, LocalEngine(work.sites), tmp_path / name / "one")["distortion"]
    assert moved["lp"] == 0.0
    x, _ = world().rows()
    before, after = (whole(tree)[0].eval()(x) for tree in (world().model.shared, personal("ft", **SMALL)))
    assert moved["ft"] == pytest.approx(float((after - before).norm(dim=1).mean().detach()), rel=1e-4)


# ---- soup-ft, sparse-ft


def test_a_soup_of_full_batches_is_ft() -> None:
    """Models differ in the order of their rows only; where that does not matter, they are alike."""
    settings = {**PLAIN, "epochs": 2}
    assert digest(personal("soup-ft", **settings)) == digest(personal("ft", **settings))


def test_a_soup_is_the_mean_of_its_models() -> None:
    work = world().work("ft", **SMALL)
    (tune,) = work.strategy.plan(1)
    mine, client = LocalEngine(work.sites).mine(work.strategy, work.state, CLIENT), work.sites.site(CLIENT)
    visits = [
        Visit(work.state.down, mine, replace(tune, name=f"tune-{number}"), 1, client.counts) for number in (1, 2, 3)
    ]
    models = [site.work(work.strategy, visit, client, site.own_optimizer)[1] for visit in visits]
    assert (models[0]["head.weight"] - models[1]["head.weight"]).abs().max() > 1e-4, "other orders, other models"
    mean = {name: (models[0][name] + models[1][name] + models[2][name]) / 3 for name in models[0]}
    same(personal("soup-ft", models=3, **SMALL), mean)


def test_sparse_ft_keeps_the_weights_that_matter_least() -> None:
    """Scores |g w| by plain torch on all rows at once, ranked over all convolutions and linear layers together."""
    x, y = world().rows()
    shared, sparsity = world().model.shared, 0.7
    model = whole(shared).eval()
    cross_entropy(model(x), y).backward()
    scores = {
        name: (value.grad * value).abs().detach()
        for (name, value) in parameters_of(model).items()
        if value.ndim > 1 and value.grad is not None
    }
    work = world().work("sparse-ft", sparsity=sparsity, **SMALL)
    score, tune = work.strategy.plan(1)
    masks = take("mask.", trained(work, phases=[score]))
    assert set(masks) == set(scores)
    flat = np.sort(torch.cat([value.flatten() for value in scores.values()]).numpy())
    stays = int(sparsity * len(flat))
    for name, mask in masks.items():
        clear = (scores[name] - flat[stays - 1]).abs() > 1e-6 * flat[stays - 1] + 1e-9
        assert torch.equal(mask[clear], (scores[name] > flat[stays - 1]).float()[clear]), name
    assert sum(int((mask == 0).sum()) for mask in masks.values()) == stays
    mine = trained(work, phases=[score, tune])
    for name, mask in masks.items():
        assert torch.equal(mine[name][mask == 0], shared[name][mask == 0]), "masked weights stay to the bit"
        assert (mine[name] != shared[name])[mask == 1].float().mean() > 0.9
    for name in ("head.bias", "body.last.bias", "norm.norm_first.weight", "norm.norm_third.bias"):
        assert (mine[name] != shared[name]).any(), name


def test_sparse_ft_with_weight_decay_is_refused() -> None:
    with pytest.raises(FedkeelError, match="weight decay would move the weights that sparse-ft keeps: use 0") as error:
        world().work("sparse-ft", weight_decay=0.01)
    assert "\n" not in str(error.value)


# ---- bias-ft


@pytest.mark.parametrize("batch_norm", ["train", "frozen"])
def test_bias_ft_takes_the_step_of_plain_torch_on_biases_alone(batch_norm: str) -> None:
    """Linear layers, the shifts of batch norms and the head's bias; weights and scales keep every bit."""
    mine, moves = personal("bias-ft", **{**PLAIN, "batch_norm": batch_norm}), batch_norm == "train"
    expected, shared = steps(1, moves=moves), world().model.shared
    norms = {f"norm.{name}" for name, part in whole(shared)[0].named_modules() if isinstance(part, BatchNorm2d)}
    biases = {"head.bias", "body.last.bias", *(f"{name}.bias" for name in norms)}
    assert set(mine) == biases | (set(select(shared, ("stats.",))) if moves else set())
    same(mine, {name: expected[name] for name in mine})
    assert all((mine[name] - shared[name]).abs().max() > 1e-6 for name in mine), "all of it moves"


def test_bias_ft_of_a_transformer_moves_every_bias_of_every_block() -> None:
    mine = trained(world("vit-tiny").work("bias-ft", **PLAIN))
    named = {f"body.{name}" for name, _ in world("vit-tiny").work("ft").sites.x.backbone.fresh(0).named_parameters()}  # type: ignore[attr-defined]
    assert set(mine) == {"head.bias"} | {name for name in named if name.endswith(".bias")}


# ---- lss-ft


def cayley_menger(points: np.ndarray) -> float:
    """(-1)^(n-1) / (2^(n-1) ((n-1)!)^2) det [[0, 1], [1, D]], D the squared distances: the squared volume."""
    n = len(points)
    squared = ((points[:, None] - points[None]) ** 2).sum(-1)
    bordered = np.ones((n + 1, n + 1))
    bordered[0, 0], bordered[1:, 1:] = 0, squared
    return float((-1) ** n * np.linalg.det(bordered) / (2 ** (n - 1) * factorial(n - 1) ** 2))


def test_the_volume_of_models_is_that_of_cayley_and_menger() -> None:
    def models(points: np.ndarray) -> list[Tree]:
        rows = [torch.from_numpy(point).float() for point in points]
        return [{"body.w": row[:2], "head.b": row[2:], "stats.running_mean": 9 * torch.rand(3)} for row in rows]

    triangle = np.array([[0.0, 0, 0], [3, 0, 0], [0, 4, 0]])
    assert float(squared_volume(models(triangle))) == pytest.approx(36)  # area 3 x 4 / 2 = 6
    assert float(squared_volume(models(triangle[:2]))) == pytest.approx(9)  # length 3
    corner = np.vstack([np.zeros(3), np.eye(3)])
    assert float(squared_volume(models(corner))) == pytest.approx(1 / 36)  # volume 1 / 6
    for corners in (2, 3, 4):
        points = generator(corners, "points").normal(size=(corners, 5))
        assert float(squared_volume(models(points))) == pytest.approx(cayley_menger(points), rel=1e-4)


def test_mixtures_are_uniform_on_the_simplex() -> None:
    """Each weight of n is then Beta(1, n - 1)."""
    u = torch.from_numpy(generator(0, "u").random((2000, 6), dtype=np.float32))
    weights = torch.stack([simplex(row, 3) for row in u])
    torch.testing.assert_close(weights.sum(-1), torch.ones(2000, 2))
    for mixture in range(2):
        for corner in range(3):
            assert stats.kstest(weights[:, mixture, corner].numpy(), stats.beta(1, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(weights[:, 0, 0], weights[:, 1, 0])[0, 1]) < 0.1, "the two mixtures have little in common"
    assert simplex(u[0, :1], 3).shape == (2, 3), "one row is enough"


def test_the_loss_of_lss_is_that_of_mixtures_volume_and_distance() -> None:
    """Networks in evaluation mode and mixtures made by hand, from three models around the global one."""
    affinity, diversity = 0.3, 0.7
    work = world().work("lss-ft", affinity=affinity, diversity=diversity)
    shared, strategy = world().model.shared, work.strategy
    one, two, three = (
        {
            k: v + 0.02 * torch.from_numpy(generator(n, k).normal(size=v.shape)).float()
            for k, v in learnt(shared).items()
        }
        | select(shared, ("stats.",))
        for n in range(3)
    )
    mine = {**{f"model-1/{k}": v for k, v in one.items()}, **{f"model-2/{k}": v for k, v in two.items()}}
    visit = Visit(shared, mine, strategy.plan(1)[2])
    rows, draws = work.sites.rows(CLIENT), generator(7, "u").random(50, dtype=np.float32)
    batch: Batch = as_batch(work.sites.x[rows], work.sites.y[rows], np.arange(len(rows)), draws)
    x, y = world().rows()
    losses = []
    for drawn in draws[:6].astype(np.float64).reshape(2, 3):
        c = -np.log(1 - drawn) / -np.log(1 - drawn).sum()
        mixture = {k: float(c[0]) * one[k] + float(c[1]) * two[k] + float(c[2]) * three[k] for k in learnt(one)}
        losses.append(cross_entropy(whole({**shared, **mixture}).eval()(x), y).item())
    flat = [torch.cat([v.flatten() for v in learnt(model).values()]).double().numpy() for model in (one, two, three)]
    near = float(((flat[2] - (flat[0] + flat[1]) / 2) ** 2).sum())
    expected = np.mean(losses) - diversity * cayley_menger(np.stack(flat)) + affinity * near
    assert float(strategy.loss(three, batch, visit)) == pytest.approx(expected, rel=1e-3)


def test_lss_is_the_mean_of_three_models(monkeypatch: pytest.MonkeyPatch) -> None:
    work = world().work("lss-ft", **{**SMALL, "epochs": 4})
    plan = work.strategy.plan(1)
    assert [(phase.name, phase.epochs) for phase in plan] == [("model-1", 2), ("model-2", 1), ("model-3", 1)]
    result = trained(work)
    engine = LocalEngine(work.sites)
    for phase in plan[:2]:
        engine.exchange(work.strategy, work.state, phase, 1, [CLIENT])
    models = [take(f"model-{number}/", engine.mine(work.strategy, work.state, CLIENT)) for number in (1, 2)]
    monkeypatch.setattr(LssFT, "end", lambda self, params, steps, visit: ({}, dict(params)))
    models.append(trained(work, lambda sites: engine, [plan[2]]))
    for one, other in pairwise(models):
        assert (one["body.last.weight"] - other["body.last.weight"]).abs().max() > 1e-4
    same(result, {name: torch.stack([model[name] for model in models]).mean(0) for name in result})


def test_a_large_affinity_keeps_lss_at_the_global_model() -> None:
    settings = {"optimizer": "sgd", "lr": 1e-4, "epochs": 3, "batch": 1000, "diversity": 0.0}
    for affinity, moved in ((1e3, 0.002), (0.0, 0.0)):
        mine = personal("lss-ft", affinity=affinity, **settings)
        far = max(float((mine[k] - v).abs().max()) for k, v in learnt(world().model.shared).items())
        assert far < moved if affinity else far > 0


# ---- lora-ft, adapter-ft


def noisy(tree: Tree) -> Tree:
    return {k: torch.from_numpy(generator(5, k).normal(scale=0.05, size=v.shape)).float() for k, v in tree.items()}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_start_at_the_global_model_and_leave_it_alone(name: str) -> None:
    place = world("vit-tiny")
    work = place.work(name, **SMALL)
    x = work.sites.x[work.sites.rows(CLIENT)]
    ours = work.strategy.predict(work.state, {}, x)
    torch.testing.assert_close(ours, place.model.method.predict(work.state, {}, x), rtol=0, atol=1e-6)
    mine = trained(work)
    assert {key.partition(".")[0] for key in mine} == {"adapter", "head"}, "what is not there stays as it is"
    assert all((mine[key] != work.state.down[key]).any() for key in mine)


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_do_to_the_network_what_their_papers_say(name: str) -> None:
    """W + (alpha / r) B A written into a ViT, or h + W_up gelu(W_down h) hooked to its MLPs."""
    place = world("vit-tiny")
    work = place.work(name)
    added = noisy(work.state.server)
    x, _ = place.rows()
    backbone = work.sites.x.backbone  # type: ignore[attr-defined]
    network = backbone.fresh(0)
    network.load_state_dict({k.partition(".")[2]: v for k, v in place.model.shared.items() if k.startswith("body.")})
    for index, key in enumerate(backbone.attention if name == "lora-ft" else ()):
        network.get_parameter(key).add_(16 / 8 * added[f"adapter.B.{index:02d}"] @ added[f"adapter.A.{index:02d}"])
    for index, (_, last) in enumerate(backbone.mlps if name == "adapter-ft" else ()):
        down, up = added[f"adapter.down.{index:02d}"], added[f"adapter.up.{index:02d}"]
        network.get_submodule(last).register_forward_hook(
            lambda module, args, h, down=down, up=up: h + gelu(h @ down.T) @ up.T
        )
    expected = network(x).last_hidden_state[:, 0]
    ours = work.strategy.encoded({**work.state.down, **added}, work.sites.x[work.sites.rows(CLIENT)])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert (ours - work.features({}, work.sites.rows(CLIENT))).abs().max() > 0.01


@pytest.mark.parametrize("name", ADAPTERS)
def test_gradients_of_adapters_are_those_of_finite_differences(name: str) -> None:
    work = world("vit-tiny").work(name, batch=1000)
    mine = LocalEngine(work.sites).mine(work.strategy, work.state, CLIENT)
    visit = Visit(work.state.down, mine, work.strategy.plan(1)[0], 1, work.sites.counts[CLIENT])
    rows = work.sites.rows(CLIENT)
    batch = as_batch(work.sites.x[rows], work.sites.y[rows], np.arange(len(rows)), np.empty(0, dtype=np.float32))
    params = {**work.strategy.begin(visit), **noisy(work.state.server)}
    params = {key: value.clone().requires_grad_() for key, value in params.items()}
    work.strategy.loss(params, batch, visit).backward()  # type: ignore[no-untyped-call]
    for key in sorted(key for key in params if key.startswith("adapter.") and key.endswith("00")):
        grad = params[key].grad
        assert grad is not None
        at = int(grad.abs().argmax())
        along = torch.zeros(grad.numel()).index_fill(0, torch.tensor([at]), 0.02).view_as(grad)
        with torch.no_grad():
            up, down = (
                float(work.strategy.loss({**params, key: params[key] + s * along}, batch, visit)) for s in (1, -1)
            )
        assert (up - down) / 0.04 == pytest.approx(float(grad.flatten()[at]), rel=2e-2)


# ---- engines


@pytest.mark.parametrize("name", ALL)
def test_nothing_leaves_a_client(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the wire only messages to the client travel; its own have no arrays. The model is that of the local engine."""
    sent: list[str] = []
    answered: list[Tree] = []
    encode = wire.encode
    monkeypatch.setattr(wire, "encode", lambda message: (sent.append(type(message).__name__), encode(message))[1])
    monkeypatch.setattr(site, "encode", lambda message: (answered.append(message.arrays), encode(message))[1])

    def listening(sites: Any) -> WireEngine:
        def transport(client: str, reply: bytes) -> bytes:
            raise AssertionError(f"{client} sent {len(reply)} bytes")

        return WireEngine(sites, transport=transport)

    work = world("vit-tiny" if name in ADAPTERS else "cnn").work(
        name, **SMALL, **({"probe": 1} if name == "lp-ft" else {})
    )
    assert all(phase.sends == () for phase in work.strategy.plan(1))
    on_the_wire = trained(work, listening)
    assert sent == ["Down"] * len(work.strategy.plan(1))
    assert answered == [{}] * len(work.strategy.plan(1))
    same(on_the_wire, trained(work), 1e-6)
