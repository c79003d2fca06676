"""Encoders with random weights: the same network and preparation, other weights, and always the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_encoders import bert, clip, dataset, fails, image_processor, pictures, save, tokenizer, vit

from fedkeel.data.sources.base import Source
from fedkeel.models.cache import features
from fedkeel.models.encoders import Encoder, open_encoder
from fedkeel.models.prepare import mean_energy


def opened(name: str, rows: Any) -> tuple[Encoder, Encoder]:
    """(the trained encoder, the random one)"""
    return open_encoder(Source.of(encoder=name), rows), open_encoder(Source.of(encoder=f"random:{name}"), rows)


def check(name: str, rows: Any) -> np.ndarray:
    """The random encoder's features, after what holds for all of them."""
    trained, random = opened(name, rows)
    assert random.name == f"random:{trained.name}"
    assert (random.kind, random.transform, random.dim) == (trained.kind, trained.transform, trained.dim)
    assert random.weights != trained.weights
    before = torch.random.get_rng_state()
    found = random.encode(rows.train)
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's draws are touched"
    assert np.isfinite(found).all()
    assert np.abs(found - trained.encode(rows.train)).max() > 1e-3
    torch.manual_seed(99)
    again = opened(name, rows)[1]
    assert again.weights == random.weights
    assert np.array_equal(again.encode(rows.train), found)
    return found


def test_transformers_start_as_their_family_does(tmp_path: Path) -> None:
    texts, images = dataset("texts"), dataset("images", pictures(4))
    check(save(bert(), tmp_path / "bert", tokenizer()), texts)
    check(save(vit(), tmp_path / "vit", image_processor(16)), images)
    name = save(clip(), tmp_path / "clip", image_processor(16), tokenizer())
    check(name, texts)
    check(name, images)


def test_bert_is_drawn_with_its_own_deviation(tmp_path: Path) -> None:
    """BERT starts its matrices with a deviation of config.initializer_range, its biases at 0, its norms at 1."""
    model = bert()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    network = opened(save(model, tmp_path, tokenizer()), dataset("texts"))[1].load().network
    named = dict(network.named_parameters())
    matrices = torch.cat([value.flatten() for name, value in named.items() if "layer" in name and value.ndim == 2])
    assert float(matrices.std()) == pytest.approx(0.02, rel=0.1)
    assert float(matrices.mean()) == pytest.approx(0, abs=0.002)
    assert all((value == 0).all() for name, value in named.items() if name.endswith("bias"))
    assert all((value == 1).all() for name, value in named.items() if name.endswith("LayerNorm.weight"))


def test_batch_norm_is_the_identity(tmp_path: Path) -> None:
    """A trained network's running statistics go with its weights: mean 0 and variance 1 again."""
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetModel(config).eval()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.fill_(5.0)
    rows = dataset("images", pictures(4))
    name = save(model, tmp_path, image_processor(32))
    check(name, rows)
    statistics = dict(opened(name, rows)[1].load().network.named_buffers())
    for key, value in statistics.items():
        if key.endswith(("running_mean", "running_var")):
            assert (value == float(key.endswith("var"))).all()


def test_efficientnet_keeps_its_signal() -> None:
    """Variance 2 / fan-out, where a depthwise filter has a fan-out of its k x k pixels; no layer dies or explodes."""
    rows = dataset("images", pictures(6))
    found = check("efficientnet-lite0", rows)
    assert found.shape == (6, 1280)
    assert 0.05 < found.mean() < 6, "the last step cuts at 6"
    assert found.std(0).mean() > 0.02, "rows differ, and by more than float16 rounds away"
    assert mean_energy(torch.from_numpy(found)) > 0.9
    network = opened("efficientnet-lite0", rows)[1].load().network
    for layer, fan_out in ((network.head, 1280), (network.blocks[3].depthwise, 5 * 5), (network.stem, 32 * 3 * 3)):
        assert float(layer.weight.std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
        assert (layer.bias == 0).all()


def test_a_moved_folder_gives_the_same_weights(tmp_path: Path) -> None:
    rows = dataset("texts")
    first = opened(save(bert(), tmp_path / "a", tokenizer()), rows)[1]
    second = opened(save(bert(), tmp_path / "b", tokenizer()), rows)[1]
    assert np.array_equal(first.encode(rows.train), second.encode(rows.train))


def test_random_features_have_a_cache_entry_of_their_own(tmp_path: Path) -> None:
    rows = dataset("texts")
    name = save(bert(), tmp_path / "m", tokenizer())
    found = [features(Source.of(encoder=who, cache=str(tmp_path / "cache")), rows) for who in (name, f"random:{name}")]
    assert len({part.where for part in found}) == 2
    assert np.abs(np.asarray(found[0].train, dtype=float) - found[1].train).max() > 1e-3
    assert features(Source.of(encoder=f"random:{name}", cache=str(tmp_path / "cache")), rows).cached


def test_what_has_no_weights_cannot_be_random() -> None:
    line = fails("random:pixels", dataset("images"))
    assert "pixels has no weights" in line
    assert "efficientnet-lite0" in line
    assert "random:none: none has no weights" in fails("random:none", dataset("features"))
    assert "random:NAME" in fails("random", dataset("texts"))
    assert "random:NAME" in fails("random:random:minilm", dataset("texts"))
    assert "did you mean 'minilm'" in fails("random:minilmm", dataset("texts"))
    assert "reads texts but mine holds images" in fails("random:minilm", dataset("images"))
