"""What every kind of split promises, checked for all that are registered: a new file is tested by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedkeel.core.rng import generator
from fedkeel.data.dataset import Dataset
from fedkeel.data.manifest import Manifest, split
from fedkeel.data.splits.base import SPLITS, Split
from fedkeel.runs.config import Experiment, build, load

CLASSES, TRAIN, TEST, CLIENTS = 4, 240, 80, 5
FEATURES = generator(0, "features").standard_normal((TRAIN, 3))
PARTS = [{}, {"validation": 0.2}, {"validation": 0.1, "test": 0.3}]


def rows(count: int) -> dict[str, np.ndarray]:
    """Labels, attributes and clients, all combinations equally often."""
    number = np.arange(count)
    client = np.array([f"site {k}" for k in range(CLIENTS)])[number % CLIENTS]
    return {"labels": number % CLASSES, "attribute": number // CLASSES % 2, "client": client}


def everything_known() -> Dataset:
    """Rows with all that a kind of split could ask for."""
    train, test = rows(TRAIN), rows(TEST)
    return Dataset(
        "toy", "features", FEATURES, train["labels"], np.zeros((TEST, 3)), test["labels"],
        tuple(f"class {c}" for c in range(CLASSES)), "f00d", "none",
        train_client=train["client"], test_client=test["client"],
        train_attribute=train["attribute"], test_attribute=test["attribute"], attribute_names=("a", "b"),
        superclasses=(0, 0, 1, 1), superclass_names=("x", "y"),
    )  # fmt: skip


DATA = everything_known()


def made(kind: str, seed: int = 3, kept: np.ndarray | None = None, **settings: object) -> Manifest:
    config = Split.of(kind=kind, clients=CLIENTS, **settings)
    return split(config, DATA, seed=seed, features=lambda: FEATURES, rows=kept)


@pytest.mark.parametrize("parts", PARTS, ids=["whole", "validation", "validation and test"])
@pytest.mark.parametrize("kind", sorted(SPLITS))
def test_nobody_shares_a_row(kind: str, parts: dict[str, float]) -> None:
    manifest = made(kind, **parts)
    assert len(set(manifest.names)) == len(manifest.names) == manifest.train.clients
    own = [manifest.train.rows, manifest.validation.rows]
    own += [manifest.test.rows] if manifest.test_rows == "train" else []
    together = np.concatenate(own)
    assert len(np.unique(together)) == len(together)
    assert len(together) > 0
    assert together.min() >= 0
    assert together.max() < TRAIN
    if manifest.test_rows == "test":
        assert len(np.unique(manifest.test.rows)) == len(manifest.test.rows) <= TEST
    assert bool(len(manifest.validation.rows)) == bool(parts.get("validation"))
    assert len(manifest.test.rows) > 0 or not parts.get("test")


@pytest.mark.parametrize("kind", sorted(SPLITS))
def test_rows_that_are_left_out_belong_to_nobody(kind: str) -> None:
    kept = np.arange(TRAIN)[np.arange(TRAIN) % 3 > 0]
    assert np.isin(made(kind, kept=kept).train.rows, kept).all()


@pytest.mark.parametrize("kind", sorted(SPLITS))
def test_the_seed_decides(kind: str) -> None:
    assert made(kind).hash == made(kind).hash
    assert made(kind).hash != made(kind, seed=4).hash


@pytest.mark.parametrize("kind", sorted(SPLITS))
def test_a_manifest_survives_the_disk(kind: str, tmp_path: Path) -> None:
    manifest = made(kind, validation=0.2)
    manifest.save(tmp_path / "manifest.json")
    again = Manifest.load(tmp_path / "manifest.json")
    assert again.hash == manifest.hash == json.loads((tmp_path / "manifest.json").read_text())["hash"]
    assert (again.names, again.settings) == (manifest.names, manifest.settings)
    assert {"kind", "validation", "test", "seed"} <= manifest.settings.keys()


@pytest.mark.parametrize("way", ["same", "even", "own"])
@pytest.mark.parametrize("kind", sorted(SPLITS))
def test_test_rows_are_dealt_in_the_ways_it_says(kind: str, way: str) -> None:
    if way not in SPLITS[kind].test_splits:
        with pytest.raises(Exception, match=r"partition\.test_split"):
            made(kind, test_split=way)
        return
    manifest = made(kind, test_split=way)
    assert (manifest.test_rows, manifest.settings["test_split"]) == ("test", way)


@pytest.mark.parametrize("kind", sorted(SPLITS))
def test_it_is_listed_and_its_settings_are_a_section(kind: str, tmp_path: Path) -> None:
    model = SPLITS[kind]
    assert model.about
    assert "\n" not in model.about
    assert model.model_fields["kind"].default == kind
    experiment = build({"partition": {"kind": kind}})
    assert type(experiment.partition) is model
    (tmp_path / "config.toml").write_text(experiment.toml())
    assert load(tmp_path / "config.toml") == experiment
    assert Experiment.model_validate(experiment.model_dump()) == experiment
    assert load(None, ["partition.kind=zipf", "partition.exponent=3"]).with_values({"partition.kind": kind})
