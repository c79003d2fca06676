"""What every source promises, checked for all that are registered: a new file is tested by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import downloads
import fedkeel as fk
import small_cifar
from fedkeel.core.errors import FedkeelError
from fedkeel.data.loading import load
from fedkeel.data.sources.base import EMBEDDED, SOURCES, Source
from fedkeel.data.sources.newsgroups20 import TRANSFORM
from fedkeel.models.transformers_encoder import MINILM_TRANSFORM
from fedkeel.runs.config import build
from fedkeel.runs.config import load as load_config
from small_tables import celeba, chexpert, table

ROWS = 24
LABELS = [("even", "odd")[k % 2] for k in range(ROWS)]


def small_npz(folder: Path) -> str:
    np.savez(folder / "rows.npz", x=np.arange(ROWS * 2.0).reshape(ROWS, 2), y=np.array(LABELS))
    return f"npz:{folder / 'rows.npz'}"


def small_csv(folder: Path) -> str:
    lines = [f"row number {k},{label}" for k, label in enumerate(LABELS)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return f"csv:{folder / 'rows.csv'}"


def small_images(folder: Path) -> str:
    for k, label in enumerate(LABELS):
        (folder / "images" / label).mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 10 * k).save(folder / "images" / label / f"{k:02}.png")
    return f"images:{folder / 'images'}"


def small_hf(folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": [f"row {k}" for k in range(ROWS)], "label": LABELS}).save_to_disk(folder / "hf")
    return f"hf:{folder / 'hf'}"


def downloaded(name: str) -> Callable[[Path], str]:
    return lambda folder: f"{name}:{downloads.MAKERS[name](folder / name)}"


HELD = fk.Arrays(np.arange(ROWS * 2.0).reshape(ROWS, 2), LABELS)


SMALL: dict[str, Callable[[Path], str]] = {
    "cifar10": lambda folder: f"cifar10:{small_cifar.cifar_10(folder)}",
    "cifar100": lambda folder: f"cifar100:{small_cifar.cifar_100(folder)}",
    "cifar10-c": lambda folder: f"cifar10-c:{small_cifar.cifar_c(folder)}",
    "cifar100-c": lambda folder: f"cifar100-c:{small_cifar.cifar_c(folder, classes=100)}",
    "tinyimagenet": lambda folder: f"tinyimagenet:{small_cifar.tiny_imagenet(folder)}",
    "npz": small_npz,
    "arrays": lambda folder: HELD.source,
    "csv": small_csv,
    "images": small_images,
    "hf": small_hf,
    **{name: downloaded(name) for name in downloads.MAKERS},
    "table": lambda folder: f"table:{table(folder)}",
    "chexpert": lambda folder: f"chexpert:{chexpert(folder)}",
    "celeba": lambda folder: f"celeba:{celeba(folder)}",
}
"""How to get a small one of each without a network: the value of data.source, after its files were made."""


HERE = sorted(set(SOURCES) - {"sites"})
"""Those whose rows can be read; of real sites nobody can."""


@pytest.mark.parametrize("name", HERE)
def test_it_gives_whole_rows_and_the_same_ones_again(name: str, tmp_path: Path) -> None:
    reads_files = all(":" in text for text in SOURCES[name].spellings)
    assert name in SMALL or not reads_files, f"source {name} has no small example: add one to SMALL in this file"
    config = Source.of(source=SMALL[name](tmp_path) if name in SMALL else name)
    assert type(config) is SOURCES[name]
    dataset = load(config)
    for rows, labels in ((dataset.train, dataset.train_labels), (dataset.test, dataset.test_labels)):
        assert len(rows) == len(labels) > 0
        assert labels.dtype == np.int64
        assert 0 <= labels.min() <= labels.max() < dataset.classes
    assert dataset.classes > 1
    assert dataset.encoder
    few = load(config.model_copy(update={"limit": 2 * dataset.classes}))
    assert len(few.train) == len(few.train_labels) == 2 * dataset.classes
    assert len(np.unique(few.train_labels)) == dataset.classes
    assert load(config).fingerprint == dataset.fingerprint != few.fingerprint


@pytest.mark.parametrize("name", HERE)
def test_it_is_listed_and_its_settings_are_a_section(name: str, tmp_path: Path) -> None:
    model = SOURCES[name]
    assert model.spellings
    for text, about in model.spellings.items():
        assert text.partition(":")[0] == name
        assert about
        assert "\n" not in about
    one = f"{name}:{tmp_path}" if all(":" in text for text in model.spellings) else name
    experiment = build({"data": {"source": one}})
    assert type(experiment.data) is model
    (tmp_path / "config.toml").write_text(experiment.toml())
    assert load_config(tmp_path / "config.toml") == experiment
    if name != one:
        with pytest.raises(FedkeelError, match=f"needs to say which: {name}:"):
            build({"data": {"source": name}})


@pytest.mark.parametrize("name", HERE)
def test_what_is_missing_is_told_before_anything_is_read(name: str, tmp_path: Path) -> None:
    """Of a downloaded dataset an empty folder, too; its copy is there, and so it is in the folder above."""
    model = SOURCES[name]
    if not model.marks:
        return
    for empty in (tmp_path / "empty", tmp_path / "other" / "inside"):
        empty.mkdir(parents=True)
        lack = Source.of(source=f"{name}:{empty}").missing()
        assert lack is not None
        assert not lack.fetched
        assert lack.what == f"neither {empty} nor a folder in it has {' or '.join(model.marks)}"
    copy = Source.of(source=SMALL[name](tmp_path / "copies"))
    assert copy.missing() is None
    if name not in ("food101", "aircraft", "dtd"):  # which are two folders deep
        assert Source.of(source=f"{name}:{copy.path.parent}").missing() is None
    (tmp_path / "file").touch()
    lack = Source.of(source=f"{name}:{tmp_path / 'file'}").missing()
    assert lack is not None
    assert lack.what == f"{tmp_path / 'file'} cannot be looked into (Not a directory)"


def test_what_comes_with_fedkeel_is_there() -> None:
    assert {path.suffix for path in EMBEDDED.iterdir()} >= {".npz", ".safetensors"}


def test_the_features_of_newsgroups20_are_those_of_the_encoder() -> None:
    assert TRANSFORM == MINILM_TRANSFORM


def test_rows_of_real_sites_are_read_by_nobody() -> None:
    with pytest.raises(FedkeelError, match="stay there; fedkeel server DIR"):
        load(Source.of(source="sites:0123456789abcdef"))
