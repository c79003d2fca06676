"""Small dual encoders with random weights: a sentence encoder in a folder, and clients whose texts it reads."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backbones import seeded
from fedkeel.core.method import Task
from fedkeel.core.rng import generator
from fedkeel.data.sources.base import Source
from fedkeel.engines.sites import Sites
from fedkeel.methods.dual.base import DualTuned
from fedkeel.methods.dual.peft.module import Module
from fedkeel.models.dual import Dual, open_dual
from fedkeel.models.encoders import Encoder, open_named
from fedkeel.rows.items import Items, items

NAMES = ("ant", "bee", "cat", "dog")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*NAMES, "a", "the", "post", "about", "on", "and", "of", *(f"word{k}" for k in range(20)))


@cache
def bert_folder() -> Path:
    """A BERT of width 16 and two blocks, with a tokenizer that knows its words, as save_pretrained writes them."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = Path(tempfile.mkdtemp(prefix="fedkeel-bert-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=len(vocabulary), initializer_range=0.3, max_position_embeddings=40, **shape)
    seeded(lambda: BertModel(config)).save_pretrained(folder)
    return folder


@cache
def small_encoder() -> Encoder:
    return open_named(f"hf:{bert_folder()}", "auto", "texts", [], "the test")


@cache
def small_dual() -> Dual:
    return open_dual(f"hf:{bert_folder()}", Source.of(), "texts", NAMES, "the test")


def texts_of(labels: np.ndarray) -> list[str]:
    """Some words each, of different number, one of which is the name of the class."""
    draw = generator(0, "texts")
    said = [[f"word{k}" for k in draw.integers(20, size=draw.integers(1, 6))] for _ in labels]
    return [" ".join([*words, NAMES[label]]) for words, label in zip(said, labels, strict=True)]


@cache
def _read(module: Module, labels: tuple[int, ...]) -> Items:
    item, texts = small_encoder(), texts_of(np.array(labels))
    made = {name: encoder.encode(texts) for name, encoder in module.encoders(item).items()}
    dual = replace(small_dual(), upper=module.upper(item))
    return items(dual, **{"features": item.encode(texts), **made})


def paired(who: Sites, method: DualTuned) -> tuple[Sites, Task]:
    """The same clients with texts, and all that the method needs of them."""
    x: Any = _read(method.module, tuple(who.y.tolist()))
    clients = Sites(who.names, x, who.y, who.owned, who.seed, len(NAMES))
    return clients, Task(x.dual.dim, len(NAMES), len(who.names), 0, len(who.y), reader=x.dual)


def batch_rows(method: DualTuned, labels: list[int]) -> tuple[Items, torch.Tensor]:
    """Rows of these classes for a single step."""
    return _read(method.module, tuple(labels)), torch.tensor(labels)


COLOURS = ("red", "green", "dark blue")
SIDE = 16


def clip_folder(folder: Path) -> str:
    """A CLIP of width 16 with its own kind of tokenizer and image processor, as save_pretrained writes them."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    merges = [("r", "e"), ("re", "d</w>"), ("o", "f</w>")]
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
    vocabulary = {piece: index for index, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=48).save_pretrained(folder)
    ends = {"bos_token_id": len(vocabulary) - 2, "eos_token_id": len(vocabulary) - 1}
    text = {"vocab_size": len(vocabulary), "max_position_embeddings": 48, "num_hidden_layers": 2, **SMALL, **ends}
    config = CLIPConfig(text_config=text, vision_config=SEEING, projection_dim=12)
    return _saved(folder, lambda: CLIPModel(config))


def siglip_folder(folder: Path) -> str:
    """A SigLIP of width 16: its texts are filled up to full length and have no mask, its images have no class token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast, SiglipConfig, SiglipModel

    words = ["<unk>", "</s>", "a", "the", "photo", "of", "red", "green", "dark", "blue", "."]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="</s>", eos_token="</s>", model_max_length=20,
        model_input_names=["input_ids"],
    ).save_pretrained(folder)  # fmt: skip
    text = {"vocab_size": len(words), "max_position_embeddings": 20, "num_hidden_layers": 2, **SMALL}
    config = SiglipConfig(text_config=text, vision_config=SEEING)
    return _saved(folder, lambda: SiglipModel(config))


SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "projection_dim": 12}
SEEING = {"image_size": SIDE, "patch_size": 8, "num_hidden_layers": 3, **SMALL}


def _saved(folder: Path, make: Any) -> str:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    def wider() -> Any:
        """Weights of a trained size, so that texts and images that differ do so in their features."""
        network = make()
        for value in network.parameters():
            if value.ndim == 2:
                torch.nn.init.normal_(value, std=0.3)
        return network

    seeded(wider).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return f"hf:{folder}"


def pictures_in(labels: np.ndarray) -> np.ndarray:
    """Noisy pictures, each in the colour of its class."""
    colours = np.array([[220, 40, 40], [40, 220, 40], [30, 30, 120]])
    noise = generator(0, "pictures").integers(-30, 30, (len(labels), 20, 20, 3))
    return np.clip(colours[labels][:, None, None] + noise, 0, 255).astype(np.uint8)


def dinov2_folder(folder: Path) -> str:
    """Of one tower, with a class token and layers that no CLIP has."""
    from transformers import Dinov2Config, Dinov2Model
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    shape = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28}
    Dinov2Model(Dinov2Config(**shape)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 28, "width": 28}).save_pretrained(folder)
    return f"hf:{folder}"
