"""Plans of optimal transport against linear programming, their own conditions, and local features by transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch.nn.functional import normalize

from duals import NAMES, bert_folder, small_dual, small_encoder, texts_of
from fedkeel.core.errors import FedkeelError
from fedkeel.methods.dual import transport
from fedkeel.methods.dual.transport import LOCAL, Transported, local_features, plan
from fedkeel.models.encoders import Encoder, Model
from fedkeel.rows.items import Items, items


def cosines(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(-0.2, 0.9, size=shape))


def everything(similar: torch.Tensor) -> torch.Tensor:
    return torch.ones(similar.shape[:-1], dtype=torch.bool)


@pytest.fixture
def to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many steps as it takes: what the scheme converges to, not where a method stops."""
    monkeypatch.setattr(transport, "STEPS", 3_000)
    monkeypatch.setattr(transport, "STILL", 1e-8)


@pytest.mark.usefixtures("to_the_end")
@pytest.mark.parametrize("seed", range(4))
def test_with_little_smoothing_the_plan_is_that_of_linear_programming(seed: int) -> None:
    """min sum of T (1 - s), rows <= 1 / M, columns = gamma / N, T >= 0, solved by scipy's HiGHS."""
    similar, gamma = cosines(5, 2, seed=seed), 0.8
    (m, n), cost = similar.shape, (1 - similar).numpy().ravel()
    rows, columns = np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))
    best = linprog(cost, rows, np.full(m, 1 / m), columns, np.full(n, gamma / n))
    smoothed = plan(similar, everything(similar), 0.005, gamma).numpy().ravel()
    assert cost @ smoothed == pytest.approx(best.fun, abs=1e-3)
    assert np.abs(smoothed - best.x).sum() < 0.1 < np.abs(smoothed - gamma / (m * n)).sum()


@pytest.mark.usefixtures("to_the_end")
def test_with_the_paper_s_smoothing_it_is_the_minimum_of_its_objective() -> None:
    """sum of T (1 - s) + eps sum of T log T under the same conditions, by scipy's SLSQP from the middle."""
    similar, gamma, eps = cosines(4, 2, seed=5), 0.8, 0.1
    (m, n), cost = similar.shape, (1 - similar).numpy().ravel()
    found = minimize(
        lambda t: cost @ t + eps * (t * np.log(t)).sum(),
        np.full(m * n, gamma / (m * n)),
        jac=lambda t: cost + eps * (np.log(t) + 1),
        bounds=[(1e-9, 1)] * (m * n),
        constraints=[
            {"type": "ineq", "fun": lambda t: 1 / m - t.reshape(m, n).sum(1)},
            {"type": "eq", "fun": lambda t: t.reshape(m, n).sum(0) - gamma / n},
        ],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    assert plan(similar, everything(similar), eps, gamma).numpy().ravel() == pytest.approx(found.x, abs=1e-6)


@pytest.mark.parametrize("gamma", [0.3, 0.8])
@pytest.mark.parametrize("prompts", [1, 2])
def test_masses(gamma: float, prompts: int) -> None:
    """Columns are exact, rows hold at most 1 / M up to where the steps stop, and padding moves nothing."""
    similar = cosines(6, 3, 9, prompts)
    real = torch.arange(9) < torch.tensor([9, 1, 4, 7, 2, 9])[:, None]
    moved = plan(similar, real.unsqueeze(1), 0.1, gamma)
    assert (moved >= 0).all()
    assert moved.sum(-2).numpy() == pytest.approx(gamma / prompts)
    assert (moved.sum(-1) * real.sum(-1)[:, None, None] <= 1.01).all()
    assert not moved[~real.unsqueeze(1).expand(6, 3, 9)].any()


def test_a_plan_depends_on_nothing_else_in_the_batch() -> None:
    similar = cosines(6, 3, 9, 2).float()
    together = plan(similar, everything(similar), 0.1, 0.8)
    for row in range(6):
        alone = plan(similar[row : row + 1], everything(similar[row : row + 1]), 0.1, 0.8)
        assert torch.equal(alone[0], together[row])


def test_an_item_without_local_features_gets_nought_and_no_nan() -> None:
    similar = cosines(2, 3, 4, 2).float()
    moved = plan(similar, torch.tensor([[True] * 4, [False] * 4]).unsqueeze(1), 0.1, 0.8)
    assert torch.isfinite(moved).all()
    assert not moved[1].any()


def rows_with(local: np.ndarray) -> Items:
    """Items of the small dual whose local features are given (n, M, d)."""
    made = small_encoder().encode(texts_of(np.arange(len(local)) % len(NAMES)))
    return items(small_dual(), made, **{LOCAL: local.reshape(len(local), -1).astype(np.float32)})


def test_one_token_and_one_prompt_are_the_plain_cosine() -> None:
    local = np.random.default_rng(0).normal(size=(5, 1, small_dual().dim))
    x, context = rows_with(local), torch.from_numpy(np.random.default_rng(1).normal(size=(4, 16))).float()
    classes = x.dual.class_features(context)
    unit = normalize(torch.from_numpy(local[:, 0]).float(), dim=-1)
    for gamma in (1.0, 0.8):
        found = Transported(gamma=gamma).logits({"context": context}, x)
        torch.testing.assert_close(found, gamma * x.logits(unit, classes))


def test_logits_by_hand_in_parts_or_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """scale * sum of T s over the tokens that are there, class by class, however many rows are taken at once."""
    local = np.random.default_rng(0).normal(size=(5, 3, small_dual().dim))
    local[1, 2:], local[4, 1:] = 0, 0
    x, prompts = rows_with(local), normalize(cosines(2, 4, small_dual().dim, seed=3).float(), dim=-1)
    found = Transported().matched(x, prompts)
    for row, tokens in enumerate([3, 2, 3, 3, 1]):
        for c in range(4):
            s = normalize(torch.from_numpy(local[row, :tokens]).float(), dim=-1) @ prompts[:, c].T
            expected = x.dual.scale * (plan(s, everything(s), 0.1, 0.8) * s).sum()
            assert found[row, c].item() == pytest.approx(expected.item(), rel=1e-5)
    monkeypatch.setattr(transport, "ENTRIES", 1)
    torch.testing.assert_close(Transported().matched(x, prompts), found, rtol=0, atol=1e-5)  # kernels differ by size


def test_no_gradient_flows_through_the_plan() -> None:
    """By the class features it is scale * sum of T times local feature, with the plan as it is."""
    local = np.random.default_rng(0).normal(size=(3, 3, small_dual().dim))
    x, prompts = rows_with(local), normalize(cosines(2, 4, small_dual().dim, seed=3).float(), dim=-1).requires_grad_()
    (found,) = torch.autograd.grad(Transported().matched(x, prompts).sum(), prompts)
    unit = normalize(torch.from_numpy(local).float(), dim=-1)
    similar = torch.einsum("nmd,pcd->ncmp", unit, prompts.detach())
    moved = plan(similar, everything(similar), 0.1, 0.8)
    torch.testing.assert_close(found, x.dual.scale * torch.einsum("ncmp,nmd->pcd", moved, unit))


# ---- local features


def test_tokens_of_a_text_are_transformers_own() -> None:
    from transformers import AutoModel, AutoTokenizer

    texts = texts_of(np.array([0, 1, 2, 3, 1]))
    found = local_features(small_encoder(), 5, 1).encode(texts).reshape(5, 5, -1)
    tokenizer, model = (kind.from_pretrained(bert_folder()) for kind in (AutoTokenizer, AutoModel))
    for row, text in enumerate(texts):
        ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :5]
        with torch.no_grad():
            hidden = model.eval()(ids).last_hidden_state[0].numpy()
        assert found[row, : len(hidden)] == pytest.approx(hidden, abs=1e-5)
        assert not found[row, len(hidden) :].any(), "zeros where there is no token"
    assert {len(text.split()) for text in texts} != {4}, "of different length"
    whole = local_features(small_encoder(), 12, 1).encode(texts).reshape(5, 12, -1)
    means = whole.sum(1) / (whole != 0).any(2).sum(1, keepdims=True)
    assert means == pytest.approx(small_encoder().encode(texts), abs=1e-5), "their mean is the feature"


def test_segments_are_means_of_the_tokens_that_are_there() -> None:
    """Texts of 4 tokens or more, cut at 7, by three: each mean token by token, nothing where there is none."""
    texts = texts_of(np.arange(12) % 4)
    tokens = local_features(small_encoder(), 7, 1).encode(texts).reshape(12, 7, -1)
    found = local_features(small_encoder(), 7, 3).encode(texts).reshape(12, 3, -1)
    lengths = (tokens != 0).any(2).sum(1)
    assert {4, 6, 7} <= set(lengths.tolist()), "a last segment of one, of three, and none"
    for row, length in enumerate(lengths):
        for k in range(3):
            run = tokens[row, 3 * k : min(3 * k + 3, length)]
            expected = run.mean(0) if len(run) else np.zeros(tokens.shape[2])
            assert found[row, k] == pytest.approx(expected, abs=1e-5)


def test_a_cache_of_other_tokens_is_another_one() -> None:
    one, other = local_features(small_encoder(), 5, 1), local_features(small_encoder(), 6, 1)
    assert len({one.transform, other.transform, small_encoder().transform}) == 3


def tiny_clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = {**tower, "vocab_size": 30, "max_position_embeddings": 8, "eos_token_id": 29}
    vision = {**tower, "image_size": 32, "patch_size": 16}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=6)).eval()


def images_by(network: Any, dim: int = 6) -> Encoder:
    def read(rows: list[Any], positions: np.ndarray) -> dict[str, Any]:
        return {"pixel_values": torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).float() / 255}

    return Encoder("clip", "images", "", "", lambda: Model(dim, lambda rows: np.empty(0), network, None, read))


def test_patches_of_an_image_are_projected_as_the_class_token_is() -> None:
    """Without the class token; a network whose class token is what patches are has that very patch feature."""
    network, images = tiny_clip(), np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3), dtype=np.uint8)
    encoder = local_features(images_by(network), 32, 1)
    found = encoder.encode(list(images)).reshape(3, 4, 6)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        hidden = network.vision_model(pixels).last_hidden_state
        swapped = network.vision_model.post_layernorm(hidden)[:, [3]] @ network.visual_projection.weight.T
        assert found[:, 2] == pytest.approx(swapped[:, 0].numpy(), abs=1e-5)
    assert encoder.dim == 4 * 6


def test_a_tower_without_parts_in_the_space_of_names_is_refused_in_one_line() -> None:
    with pytest.raises(FedkeelError, match="no features of patches or tokens") as refused:
        local_features(images_by(tiny_clip(), dim=12), 32, 1).encode([np.zeros((32, 32, 3), dtype=np.uint8)])
    assert "\n" not in str(refused.value)
    without = replace(images_by(torch.nn.Linear(2, 2)))
    with pytest.raises(FedkeelError, match="take a method other than fedotp"):
        local_features(without, 32, 1).encode([np.zeros((32, 32, 3), dtype=np.uint8)])
