"""The pack of five digit domains: whole, balanced, kept apart, and each domain can be learnt."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedkeel.data.loading import load
from fedkeel.data.manifest import split
from fedkeel.data.sources.base import Source
from fedkeel.data.sources.coloured_digits import load_coloured_digits
from fedkeel.data.sources.digits5 import DOMAINS, load_digits5, read_pack
from fedkeel.data.splits.base import Split

TOOLS = Path(__file__).parents[2] / "tools"
GREY = ("mfeat", "mnist", "optdigits")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("build_digits5", TOOLS / "build_digits5.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_five_clients_with_their_own_test_rows() -> None:
    data = load(Source.of(source="digits5"))
    assert (data.train.shape, data.test.shape) == ((5000, 28, 28, 3), (2500, 28, 28, 3))  # type: ignore[union-attr]
    manifest = split(Split.of(kind="column"), data, seed=0)
    assert manifest.names == DOMAINS
    assert (manifest.train.sizes.tolist(), manifest.test.sizes.tolist()) == ([1000] * 5, [500] * 5)
    assert (manifest.train.label_counts(data.train_labels, 10) == 100).all()
    assert (manifest.test.label_counts(data.test_labels, 10) == 50).all()
    for client, name in enumerate(DOMAINS):
        rows = np.asarray(data.train)[manifest.train.of(client)]
        assert bool((rows == rows[..., :1]).all()) == (name in GREY)


def test_no_image_is_there_twice() -> None:
    """Neither in both parts nor in two domains."""
    data = load_digits5()
    images = [image.tobytes() for part in (data.train, data.test) for image in part]
    assert len(set(images)) == len(images) == 7500


def test_the_two_mnist_domains_are_of_different_digits(tool: ModuleType) -> None:
    labels = np.tile(np.arange(10)[::-1], 300)
    plain, blended = tool.dealt(labels, 0, 100), tool.dealt(labels, 100, 100)
    assert labels[plain].tolist() == labels[blended].tolist() == list(range(10)) * 100
    assert len(set(plain) | set(blended)) == 2000


def test_faces_are_for_training_or_for_testing(tool: ModuleType) -> None:
    assert not set(tool.FACES["train"]) & set(tool.FACES["test"])
    assert [len(tool.FACES[part]) for part in ("train", "test")] == [15, 7]


def test_the_tool_makes_what_is_in_the_pack(tool: ModuleType) -> None:
    """What needs no download: scikit-learn's digits, and drawn ones up to the rounding of other font libraries."""
    pack = read_pack()
    images, labels = tool.optdigits()
    for part, first, each in (("train", 0, 100), ("test", 100, 50)):
        rows = tool.dealt(labels, first, each)
        assert labels[rows].tolist() == list(range(10)) * each
        assert np.abs(images[rows].astype(int) - pack[f"optdigits/{part}"]).max() <= 1
    drawn, labels = tool.drawn("test")
    assert np.array_equal(labels, pack["fonts/test/labels"])
    assert np.abs(drawn.astype(int) - pack["fonts/test"]).mean() < 1


def test_blending_is_the_distance_from_the_photo(tool: ModuleType) -> None:
    """On black digits the crop itself stays; a white digit gives its negative."""
    black = tool.over_photos(np.zeros((3, 28, 28), np.uint8), "train")
    white = tool.over_photos(np.full((3, 28, 28), 255, np.uint8), "train")
    assert (white == 255 - black).all()
    assert black.std() > 10


def test_a_linear_model_learns_something_of_every_domain() -> None:
    """Far above 10 %, also where colours are random; a small network reaches 88 % to 98 % on each (see the README)."""
    from sklearn.linear_model import RidgeClassifier

    data = load_digits5()
    for name in DOMAINS:
        x, x_test = (
            np.abs(np.diff(rows[client == name].astype(np.float32).mean(3), axis=2)).reshape((client == name).sum(), -1)
            for rows, client in ((data.train, data.train_client), (data.test, data.test_client))
        )
        model = RidgeClassifier(alpha=1e5).fit(x, data.train_labels[data.train_client == name])
        assert model.score(x_test, data.test_labels[data.test_client == name]) > 0.35, name


def test_limit_is_even_over_domains_and_classes() -> None:
    data = load(Source.of(source="digits5", limit=500))
    manifest = split(Split.of(kind="column"), data, seed=0)
    assert (manifest.train.label_counts(data.train_labels, 10) == 10).all()
    assert (manifest.test.label_counts(data.test_labels, 10) == 5).all()


def test_a_limit_below_the_number_of_groups_is_even_over_classes() -> None:
    """Fifty groups of a class and a domain do not fit into twenty rows; ten classes do, twice."""
    data = load(Source.of(source="digits5", limit=20))
    assert np.bincount(data.train_labels).tolist() == [2] * 10


def test_colours_say_nothing_about_the_class() -> None:
    data = load_coloured_digits()
    for rows, labels, colour, each in (
        (data.train, data.train_labels, data.train_attribute, 250),
        (data.test, data.test_labels, data.test_attribute, 125),
    ):
        assert colour is not None
        assert np.bincount(2 * labels + colour).tolist() == [each] * 4
        images = np.asarray(rows).astype(int)
        for value, channel in ((data.attribute_names.index("red"), 0), (data.attribute_names.index("green"), 1)):
            mine = images[colour == value]
            assert mine[..., channel].any((1, 2)).all()
            assert not np.delete(mine, channel, axis=3).any()
    assert data.class_names == ("below five", "five or more")
    grey, digits = read_pack()["mnist/train"], read_pack()["mnist/train/labels"]
    assert np.array_equal(np.asarray(data.train).max(3), grey)
    assert np.array_equal(data.train_labels, digits >= 5)
