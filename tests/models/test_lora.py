"""LoRA in the item tower: cut in two halves it is the same tower, and what peft computes is what we compute."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from duals import (
    COLOURS,
    NAMES,
    bert_folder,
    clip_folder,
    dinov2_folder,
    pictures_in,
    siglip_folder,
    small_dual,
    texts_of,
)
from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.core.tree import Tree
from fedkeel.data.sources.base import Source
from fedkeel.methods.dual.peft.lora import Lora
from fedkeel.models.dual import open_dual
from fedkeel.models.encoders import Encoder, open_named
from fedkeel.models.halves import UpperHalf, lower_half, whole_tower
from fedkeel.models.layers import TOWERS, Tower
from fedkeel.rows.items import Items, items

TEXTS = texts_of(np.arange(9) % len(NAMES))
PICTURES = pictures_in(np.arange(5) % len(COLOURS))
LONGEST = 8
"""More tokens than any of the texts has."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Encoder]:
    folders = {"clip": clip_folder, "siglip": siglip_folder, "dinov2": dinov2_folder}
    names = {family: make(tmp_path_factory.mktemp(family)) for family, make in folders.items()}
    towers = {family: open_named(name, "auto", "images", PICTURES, "the test") for family, name in names.items()}
    return {**towers, "bert": open_named(f"hf:{bert_folder()}", "auto", "texts", TEXTS, "the test")}


def rows_of(item: Encoder) -> Any:
    return TEXTS if item.kind == "texts" else PICTURES


def trained(lora: Lora, x: Items) -> Tree:
    """As after some training: B is not zero."""
    draw = generator(0, "trained")
    return {
        name: value + torch.from_numpy(draw.normal(scale=0.1, size=tuple(value.shape))).float()
        for name, value in lora.fresh(x.dual, 0).items()
    }


def adapted(lora: Lora, item: Encoder) -> Items:
    """Rows with all that LoRA needs of them."""
    kind, names = ("texts", NAMES) if item.kind == "texts" else ("images", COLOURS)
    if item.name == small_dual().encoder or "clip" in item.name:
        dual = open_dual(item.name, Source.of(), kind, names, "the test")  # type: ignore[arg-type]
    else:
        dual = small_dual()
    made = {name: encoder.encode(rows_of(item)) for name, encoder in lora.encoders(item).items()}
    return items(replace(dual, upper=lora.upper(item)), **{"features": item.encode(rows_of(item)), **made})


# --- the halves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "clip", "siglip", "dinov2"])
@pytest.mark.parametrize("first", [0, 1])
def test_two_halves_are_the_whole_tower(opened: dict[str, Encoder], family: str, first: int) -> None:
    item = opened[family]
    below = lower_half(item, first, LONGEST).encode(rows_of(item))
    upper = UpperHalf(item, item.load(), first)
    with torch.no_grad():
        found = upper(torch.from_numpy(below)).numpy()
    expected = item.encode(rows_of(item))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(expected[0] - expected[1]).max() > 1e-2


def test_minilm_in_two_halves_is_minilm() -> None:
    item = open_named("minilm", "auto", "texts", [], "the test")
    texts = ["A post.", "The shuttle was launched on Monday, said the agency.", "Is the car for sale?"]
    upper = UpperHalf(item, item.load(), 4)
    with torch.no_grad():
        found = upper(torch.from_numpy(lower_half(item, 4, 20).encode(texts))).numpy()
    assert np.abs(found - item.encode(texts)).max() < 1e-5


def test_texts_are_cut_alike_above_and_below(opened: dict[str, Encoder]) -> None:
    """The tower on tokens that were cut by hand."""
    item, tokens = opened["bert"], 4
    below = lower_half(item, 1, tokens)
    assert below.dim == tokens * 16
    with torch.no_grad():
        found = UpperHalf(item, item.load(), 1)(torch.from_numpy(below.encode(TEXTS)))
        for text, features in zip(TEXTS, found, strict=True):
            read = item.model.read([text], np.arange(1))  # type: ignore[misc]
            expected = item.model.apply({name: value[:, :tokens] for name, value in read.items()})  # type: ignore[misc]
            torch.testing.assert_close(features, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole_tower(item, tokens).encode(TEXTS), found.numpy(), rtol=1e-4, atol=1e-5)
    assert np.abs(whole_tower(item, tokens).encode(TEXTS) - item.encode(TEXTS)).max() > 1e-2


def test_padding_is_zero_and_changes_nothing(opened: dict[str, Encoder]) -> None:
    item = opened["bert"]
    upper = UpperHalf(item, item.load(), 1)
    below = torch.from_numpy(lower_half(item, 1, LONGEST).encode(TEXTS))
    lengths = [len(text.split()) + 2 for text in TEXTS]
    assert below.view(len(TEXTS), LONGEST, -1).ne(0).any(2).sum(1).tolist() == lengths
    with torch.no_grad():
        together, alone = upper(below), torch.cat([upper(row.unsqueeze(0)) for row in below])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


def test_what_is_kept_is_told_apart(opened: dict[str, Encoder]) -> None:
    """Encoders that differ in what they give have different keys in the cache of features."""
    item, image = opened["bert"], opened["clip"]
    made = [lower_half(item, 0, 4), lower_half(item, 1, 4), lower_half(item, 0, 5), whole_tower(item, 4), item]
    assert len({encoder.transform for encoder in made}) == len(made)
    assert lower_half(image, 0, 4).transform == lower_half(image, 0, 5).transform, "images are not cut"


def test_a_tower_that_cannot_be_cut_is_refused(opened: dict[str, Encoder]) -> None:
    """CLIP's text tower finds the end of a text by its tokens, which the upper half does not get."""
    name = opened["clip"].name
    item = open_named(name, "auto", "texts", TEXTS, "the test")
    with pytest.raises(FedkeelError, match="cannot be cut before block 1: its blocks need more than") as error:
        UpperHalf(item, item.load(), 1)
    assert "\n" not in str(error.value)


# --- LoRA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "clip"])
def test_it_starts_as_zero_shot(opened: dict[str, Encoder], family: str) -> None:
    """B = 0, also where texts are cut: zero-shot features are then those of the cut texts."""
    lora = Lora(text_tokens=4, blocks=(1,))
    x = adapted(lora, opened[family])
    start = lora.fresh(x.dual, 0)
    torch.testing.assert_close(lora.logits(start, x), x.zero_shot, rtol=1e-4, atol=1e-4)
    assert (lora.logits(trained(lora, x), x) - x.zero_shot).abs().max() > 0.1


def test_half_precision_of_what_is_kept_moves_logits_little(opened: dict[str, Encoder]) -> None:
    lora = Lora(text_tokens=LONGEST, blocks=(1,))
    x = adapted(lora, opened["bert"])
    kept = x.having("below", x.get("below").half().float())
    assert (lora.logits(lora.fresh(x.dual, 0), kept) - x.zero_shot).abs().max() < 0.02


@pytest.mark.parametrize("family", ["bert", "clip", "siglip", "dinov2"])
@pytest.mark.parametrize("blocks", [(), (1,)])
def test_against_peft_on_the_whole_network(opened: dict[str, Encoder], family: str, blocks: tuple[int, ...]) -> None:
    """The same A and B in a network that ``get_peft_model`` has wrapped, on the rows themselves."""
    from peft import LoraConfig, get_peft_model

    item, lora = opened[family], Lora(rank=3, alpha=5.0, blocks=blocks, text_tokens=LONGEST)
    x = adapted(lora, item)
    factors = trained(lora, x)
    model = item.load()
    listed = Tower(item.name, model.network, item.kind).listed
    tower = TOWERS[item.kind] if hasattr(model.network, TOWERS[item.kind][:-1]) else ""
    targets = rf"{tower}.*\.(query|key|value|q_proj|k_proj|v_proj)"
    config = LoraConfig(r=3, lora_alpha=5.0, use_rslora=True, target_modules=targets)
    wrapped = get_peft_model(model.network, config).eval()
    weights = dict(wrapped.named_parameters())
    with torch.no_grad():
        for name in (name for name in weights if "lora_B" in name):
            weights[name].zero_()  # blocks that are not chosen stay as they are
        for name, value in factors.items():
            factor, _, layer = name.partition(".")
            weights[f"base_model.model.{listed}.{layer}.lora_{factor}.default.weight"].copy_(value)
    theirs = model.encode(rows_of(item))
    with torch.no_grad():
        ours = x.dual.upper.features(factors, x.get("below")).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.abs(theirs - item.encode(rows_of(item))).max() > 1e-2
    chosen = len(blocks) or len(Tower(item.name, item.model.network, item.kind).blocks)
    assert len(factors) == 2 * 3 * chosen, "A and B of queries, keys and values"


@pytest.mark.parametrize("family", ["bert", "clip"])
def test_the_gradient_against_finite_differences(opened: dict[str, Encoder], family: str) -> None:
    lora = Lora(rank=2, blocks=(1,), text_tokens=LONGEST)
    x = adapted(lora, opened[family])
    upper, classes = x.dual.upper, x.dual.zero_shot.double()
    upper.network.double()
    start = {name: value.double() for name, value in trained(lora, x).items()}
    below, labels = x.get("below").double(), torch.arange(len(x)) % len(classes)

    def loss(at: Tree) -> torch.Tensor:
        return cross_entropy(x.dual.scale * normalize(upper.features(at, below), dim=-1) @ classes.T, labels)

    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    gradient = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
    draw = generator(0, "towards")
    for name, value in start.items():
        towards, step = torch.from_numpy(draw.normal(size=tuple(value.shape))), 1e-5
        with torch.no_grad():
            ahead, behind = (loss({**start, name: value + sign * step * towards}) for sign in (1, -1))
        slope = float(ahead - behind) / (2 * step)
        assert float((gradient[name] * towards).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-8), name


def test_where_it_starts(opened: dict[str, Encoder]) -> None:
    """A uniform within 1 / sqrt(16), drawn by key; B zero."""
    lora = Lora(rank=64, blocks=(0,), text_tokens=LONGEST)
    x = adapted(lora, opened["bert"])
    start, again, other = (lora.fresh(x.dual, seed) for seed in (0, 0, 1))
    for name, value in start.items():
        assert torch.equal(value, again[name])
        if name.startswith("B."):
            assert value.shape == (16, 64)
            assert not value.any()
        else:
            assert value.shape == (64, 16)
            assert 0.24 < float(value.abs().max()) <= 0.25
            assert float(value.std()) == pytest.approx(0.25 / 3**0.5, rel=0.05)
            assert not torch.equal(value, other[name])
    assert len({float(value.sum()) for name, value in start.items() if name.startswith("A.")}) == 3


def test_layers_of_other_names_and_shapes(opened: dict[str, Encoder]) -> None:
    lora = Lora(rank=2, targets=("fc1", "mlp.fc2"), blocks=(2, 1))
    x = adapted(lora, opened["clip"])
    factors = lora.fresh(x.dual, 0)
    assert sorted(factors) == [f"{ab}.{block}.mlp.fc{k}" for ab in "AB" for block in (1, 2) for k in (1, 2)]
    assert factors["A.1.mlp.fc1"].shape == (2, 16)
    assert factors["B.1.mlp.fc1"].shape == (24, 2)
    torch.testing.assert_close(lora.logits(factors, x), x.zero_shot, rtol=1e-4, atol=1e-4)


def test_a_twin_shares_nothing_but_gives_the_same(opened: dict[str, Encoder]) -> None:
    lora = Lora(blocks=(1,), text_tokens=LONGEST)
    x = adapted(lora, opened["bert"])
    twin = x.twin()
    assert not {id(part) for part in x.dual.upper.network.modules()} & {
        id(part) for part in twin.dual.upper.network.modules()
    }
    factors = trained(lora, x)
    assert torch.equal(lora.logits(factors, x), lora.logits(factors, twin))


def test_the_network_never_changes(opened: dict[str, Encoder]) -> None:
    lora = Lora(blocks=(1,), text_tokens=LONGEST)
    x = adapted(lora, opened["bert"])
    before = {name: value.clone() for name, value in x.dual.upper.network.named_parameters()}
    lora.logits(trained(lora, x), x)
    torch.testing.assert_close(lora.logits(lora.fresh(x.dual, 0), x), x.zero_shot, rtol=1e-4, atol=1e-4)
    assert dict(x.dual.upper.network.named_parameters()).keys() == before.keys(), "factors exist only in trees"
    for name, value in x.dual.upper.network.named_parameters():
        assert torch.equal(value, before[name])
        assert not value.requires_grad
    inside = list(x.dual.upper.tower.blocks[0].modules())[1:]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in inside), "nothing is left on its layers"


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "settings", "line"),
    [
        ("bert", {"targets": ("q_proj",)}, r"is called q_proj; its blocks have query, key, value, dense: choose among"),
        ("clip", {"targets": ("v_proj", "query")}, r"is called query; its blocks have .*q_proj.*fc1, fc2"),
        ("bert", {"blocks": (0, 2)}, r"method.blocks = 2: the item tower of encoder .* has 2 blocks, expected 0 to 1"),
    ],
)
def test_mistakes(opened: dict[str, Encoder], family: str, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(FedkeelError, match=line) as error:
        Lora(**settings).upper(opened[family])
    assert "\n" not in str(error.value)


def test_it_takes_no_other_package(opened: dict[str, Encoder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    lora = Lora(blocks=(1,), text_tokens=LONGEST)
    x = adapted(lora, opened["bert"])
    torch.testing.assert_close(lora.logits(lora.fresh(x.dual, 0), x), x.zero_shot, rtol=1e-4, atol=1e-4)
