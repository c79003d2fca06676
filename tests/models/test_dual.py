"""Dual encoders: zero-shot as transformers computes it, soft prompts that are words, nothing computed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from duals import COLOURS, NAMES, bert_folder, clip_folder, dinov2_folder, pictures_in, siglip_folder
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import METHODS
from fedkeel.core.rng import generator
from fedkeel.data.sources.base import Source
from fedkeel.models.dual import SCALE, Dual, open_dual
from fedkeel.models.encoders import open_named
from fedkeel.rows.items import items
from fedkeel.runs.opening import said_of_names


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An encoder of each family, by its name in a config."""
    folders = {"clip": clip_folder, "siglip": siglip_folder}
    made = {name: make(tmp_path_factory.mktemp(name)) for name, make in folders.items()}
    return {**made, "bert": f"hf:{bert_folder()}"}


def of(encoder: str, template: str = "auto", ending: str = "auto") -> Dual:
    kind, names = ("texts", NAMES) if encoder == f"hf:{bert_folder()}" else ("images", COLOURS)
    return open_dual(encoder, Source.of(), kind, names, "the test", template, None, ending)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_zero_shot_logits_are_those_of_the_model_itself(towers: dict[str, str], family: str) -> None:
    """``logits_per_image`` of transformers' own forward pass; SigLIP's has a bias, which all classes share."""
    import transformers

    folder = towers[family].removeprefix("hf:")
    rows = pictures_in(np.arange(6) % 3)
    dual = of(towers[family], "a photo of a {}.")
    ours = items(dual, open_named(towers[family], "auto", "images", rows, "the test").encode(rows)).zero_shot
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    padding = "max_length" if family == "siglip" else True
    read = tokenizer([f"a photo of a {name}." for name in COLOURS], padding=padding, return_tensors="pt")
    with torch.no_grad():
        whole = model(**read, **processor(images=list(rows), return_tensors="pt"))
    theirs = whole.logits_per_image - getattr(model, "logit_bias", torch.zeros(1))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert ours.std(0).min() > 1e-3
    assert dual.scale == pytest.approx(float(model.logit_scale.detach().exp()))


def test_a_sentence_encoder_has_the_usual_scale_unless_told(towers: dict[str, str]) -> None:
    assert of(towers["bert"]).scale == SCALE
    assert open_dual(towers["bert"], Source.of(), "texts", NAMES, "the test", scale=7.0).scale == 7.0


WORDS = {"clip": "a photo of a", "siglip": "a photo of a", "bert": "a post about"}
TOKENS = {"clip": 1 + 5 + 1 + 1, "siglip": 4, "bert": 3}
"""The small CLIP spells "photo" letter by letter."""


@pytest.mark.parametrize("family", WORDS)
def test_a_soft_prompt_of_words_is_the_template(towers: dict[str, str], family: str) -> None:
    """Token vectors of the template's words, put in as a soft prompt, give the class features of the template.

    Both end names of images with a full stop, as the released code does, and those of texts with nothing.
    """
    dual = of(towers[family])
    assert (dual.template, dual.ending) == (("a post about {}", "") if family == "bert" else ("a photo of a {}.", "."))
    context = dual.words(WORDS[family])
    assert context.shape == (TOKENS[family], dual.width)
    torch.testing.assert_close(dual.class_features(context), dual.zero_shot, rtol=1e-5, atol=1e-5)
    other = dual.class_features(context.flip(0))
    assert (other - dual.zero_shot).abs().max() > 1e-2, "the order of the words matters"


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_a_method_may_end_names_otherwise(towers: dict[str, str], family: str) -> None:
    dual = of(towers[family], "a photo of a {}", ending="")
    context = dual.words(WORDS[family])
    torch.testing.assert_close(dual.class_features(context), dual.zero_shot, rtol=1e-5, atol=1e-5)
    assert (of(towers[family]).class_features(context) - dual.zero_shot).abs().max() > 1e-3
    assert said_of_names(METHODS["promptfl"](ending=" pattern.")) == ("auto", None, " pattern.")
    assert said_of_names(METHODS["clip-lora"](template="a {}")) == ("a {}", None, "")


@pytest.mark.parametrize("family", WORDS)
def test_a_stack_of_prompts_gives_a_stack_of_features(towers: dict[str, str], family: str) -> None:
    dual = of(towers[family])
    stack = torch.from_numpy(generator(0, "stack").normal(size=(2, 3, dual.width))).float()
    both = dual.class_features(stack)
    for one, context in zip(both, stack, strict=True):
        torch.testing.assert_close(one, dual.class_features(context), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(both.norm(dim=-1), torch.ones(both.shape[:2]))


@pytest.mark.parametrize("family", WORDS)
def test_the_gradient_of_a_prompt_against_finite_differences(towers: dict[str, str], family: str) -> None:
    dual = of(towers[family])
    dual.tower.network.double()
    draw = generator(0, "finite")
    context, towards = (torch.from_numpy(draw.normal(size=(3, dual.width))) for _ in range(2))
    weigh = torch.from_numpy(draw.normal(size=dual.zero_shot.shape))

    def value(at: Tensor) -> Tensor:
        return (dual.class_features(at) * weigh).sum()

    (gradient,) = torch.autograd.grad(value(context.requires_grad_()), context)
    step = 1e-5
    with torch.no_grad():
        slope = (value(context + step * towards) - value(context - step * towards)) / (2 * step)
    assert float((gradient * towards).sum()) == pytest.approx(float(slope), rel=1e-6)


def test_class_features_are_computed_only_when_the_prompt_changes(towers: dict[str, str]) -> None:
    dual = of(towers["clip"])
    calls: list[Any] = []
    dual.tower.network.text_model.register_forward_hook(lambda *args: calls.append(1))
    context = dual.words("a photo")
    dual.class_features(context.clone())
    once = len(calls)
    assert once > 0
    for _ in range(3):
        dual.class_features(context.clone())
    assert len(calls) == once
    dual.class_features(context + 0.1)
    assert len(calls) == 2 * once
    dual.class_features(context.clone())
    assert len(calls) == 2 * once, "what was known before is still known"
    dual.class_features(context.clone().requires_grad_())
    assert len(calls) == 3 * once, "a gradient needs the pass itself"


def test_names_in_two_groups_by_length_have_the_features_of_one_group(towers: dict[str, str]) -> None:
    names = ("red", "red green blue red green blue", "green", "blue red")

    def of_these(*names: str) -> Dual:
        return open_dual(towers["clip"], Source.of(), "images", names, "the test")

    dual = of_these(*names)
    context = dual.words("a photo")
    alone = [of_these(name).class_features(context)[0] for name in names]
    torch.testing.assert_close(dual.class_features(context), torch.stack(alone), rtol=1e-4, atol=1e-5)
    assert [len(which) for which, _ in dual._prompted(2)] == [3, 1]
    two = dual.class_features(torch.stack([context, context + 0.1]))
    torch.testing.assert_close(two[1], dual.class_features(context + 0.1), rtol=1e-4, atol=1e-5)


def test_a_twin_gives_the_same_from_memory_of_its_own(towers: dict[str, str]) -> None:
    dual = of(towers["clip"])
    twin = dual.twin()
    assert twin.tower.network is not dual.tower.network
    context = dual.words("a photo") + 0.5
    assert torch.equal(twin.class_features(context), dual.class_features(context))


def test_items_are_picked_not_copied(towers: dict[str, str]) -> None:
    dual = of(towers["bert"])
    features = generator(0, "rows").normal(size=(5, dual.dim)).astype(np.float32)
    rows = items(dual, features, below=np.arange(10, dtype=np.float16).reshape(5, 2))
    some = rows[torch.tensor([4, 1, 1])][torch.tensor([2, 0])]
    assert len(some) == 2
    assert some.get("below").tolist() == [[2, 3], [8, 9]]
    torch.testing.assert_close(some.features, normalize(torch.from_numpy(features[[1, 4]]), dim=-1))
    more = some.having("global", torch.tensor([[1.0], [2.0]]))
    assert [part.get("global").item() for part in more.parts(1)] == [1.0, 2.0]
    torch.testing.assert_close(some.zero_shot, dual.scale * some.features @ dual.zero_shot.T)


def test_what_is_no_pair_of_towers_is_told_in_one_line(towers: dict[str, str], tmp_path: Path) -> None:
    def refused(line: str, *about: Any) -> None:
        with pytest.raises(FedkeelError, match=line) as error:
            open_dual(*about)
        assert "\n" not in str(error.value)

    digits = ("0", "1", "2")
    refused("mine has no class names, only numbers such as 0", towers["clip"], Source.of(), "images", digits, "mine")
    refused("mine holds features", towers["clip"], Source.of(), "features", COLOURS, "mine")
    refused("efficientnet-lite0 has one tower", "efficientnet-lite0", Source.of(), "images", COLOURS, "mine")
    refused("dino has one tower", dinov2_folder(tmp_path / "dino"), Source.of(), "images", COLOURS, "mine")
    refused("has no tower for images", towers["bert"], Source.of(), "images", COLOURS, "mine")


def test_only_the_empty_braces_of_a_template_are_filled(towers: dict[str, str]) -> None:
    plain, odd = of(towers["bert"]), of(towers["bert"], "a post about {} of {word1}")
    assert odd.zero_shot.shape == plain.zero_shot.shape
    assert (odd.zero_shot - plain.zero_shot).abs().max() > 1e-3
