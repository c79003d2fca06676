"""Corruptions: the same for the same row, worse with severity, and on all rows of the client that has them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedkeel
from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator
from fedkeel.data.corruptions import CORRUPTIONS, corrupt, corrupted
from fedkeel.data.dataset import Dataset
from fedkeel.data.manifest import split
from fedkeel.data.shifts import Shift
from fedkeel.data.sources.digits5 import load_digits5
from fedkeel.data.splits.base import Split
from fedkeel.runs.config import Experiment
from fedkeel.runs.federation import divide


def draws(count: int, seed: int = 0) -> list[np.random.Generator]:
    return [generator(seed, "test", row) for row in range(count)]


def pictures(count: int = 12, side: int = 32, seed: int = 0) -> np.ndarray:
    """Coloured blobs with edges: something that every kind can change."""
    from scipy.ndimage import zoom

    small = generator(seed, "pictures").random((count, 6, 6, 3))
    large = zoom(small, (1, side / 6, side / 6, 1), order=1)
    return np.round(np.clip(large * 1.4 - 0.2, 0, 1) * 255).astype(np.uint8)


def distance(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.sqrt(((one.astype(float) - two) ** 2).mean()))


def test_there_are_nineteen_kinds_in_four_families() -> None:
    families = Counter(kind.family for kind in CORRUPTIONS.values())
    assert families == {"noise": 4, "blur": 5, "weather": 5, "digital": 5}
    first = [kind.family for kind in list(CORRUPTIONS.values())[:4]]
    assert len(set(first)) == 4, "four clients differ in family"


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("side", [28, 48])
def test_each_severity_is_worse_than_the_one_before(kind: str, side: int) -> None:
    images = pictures(side=side)
    changes = [distance(corrupt(images, kind, severity, draws(len(images))), images) for severity in range(1, 6)]
    assert changes[0] > 1
    assert all(low < high for low, high in pairwise(changes)), changes


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(CORRUPTIONS)),
    st.integers(1, 5),
    st.integers(0, 5),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
@example("fog", 3, 2, (1, 1))
@example("elastic", 5, 1, (1, 1))
def test_any_images_stay_images_and_each_by_itself(
    kind: str, severity: int, count: int, shape: tuple[int, int]
) -> None:
    """Of any size; and a row comes out the same alone as among others."""
    images = generator(count, "any").integers(256, size=(count, *shape, 3)).astype(np.uint8)
    before = images.copy()
    found = corrupt(images, kind, severity, draws(count))
    assert (found.shape, found.dtype) == (images.shape, np.uint8)
    assert np.array_equal(images, before)
    for row in range(count):
        alone = corrupt(images[row : row + 1], kind, severity, draws(count)[row : row + 1])[0]
        assert np.abs(alone.astype(int) - found[row]).max() <= 1


def test_chunks_do_not_show() -> None:
    images = np.repeat(pictures(1, side=8), 300, axis=0)
    found = corrupt(images, "gaussian-noise", 3, draws(300))
    assert np.array_equal(found[256:], corrupt(images[256:], "gaussian-noise", 3, draws(300)[256:]))
    assert len(np.unique(found, axis=0)) == 300, "every row has its own noise"


def grey(value: int, side: int = 40, count: int = 20) -> np.ndarray:
    return np.full((count, side, side, 3), value, dtype=np.uint8)


def test_strengths_worked_out_by_hand() -> None:
    """On even grey, 128 of 255, at severity 3.

    gaussian noise: standard deviation .12 * 255 = 30.6. shot noise: a Poisson count of mean m = 20 * 128 / 255 = 10.04
    has standard deviation sqrt(m), in grey values sqrt(10.04) / 20 * 255 = 40.4; what exceeds 255 (counts above 20,
    1 in 700) is cut. speckle: .35 * 128 = 44.8. impulse: a share .09 of the pixels, half of them white. brightness:
    128 + .3 * 255 = 204.5. contrast of two halves 0 and 200: the mean 100 plus or minus .36 * 100.
    """
    image, lots = grey(128), draws(20)

    def found(kind: str, images: np.ndarray = image) -> np.ndarray:
        return corrupt(images, kind, 3, lots).astype(float)

    assert found("gaussian-noise").std() == pytest.approx(30.6, rel=0.02)
    assert found("shot-noise").std() == pytest.approx(40.4, rel=0.02)
    lots = draws(20)
    assert found("speckle-noise").std() == pytest.approx(44.8, rel=0.02)
    hit = found("impulse-noise")
    assert (hit != 128).mean() == pytest.approx(0.09, abs=0.005)
    assert (hit == 255).mean() == pytest.approx(0.045, abs=0.004)
    assert set(np.unique(found("brightness"))) <= {204.0, 205.0}
    halves = grey(0)
    halves[:, :20] = 200
    assert set(np.unique(found("contrast", halves))) == {64.0, 136.0}


@pytest.mark.parametrize("kind", ["gaussian-blur", "defocus-blur", "motion-blur", "zoom-blur", "glass-blur", "elastic"])
def test_blurs_and_bends_only_move_what_is_there(kind: str) -> None:
    """Even grey stays; elsewhere no value beyond the darkest and brightest appears."""
    assert np.array_equal(corrupt(grey(77), kind, 5, draws(20)), grey(77))
    images = pictures() // 2 + 60
    found = corrupt(images, kind, 5, draws(len(images)))
    assert found.min() >= images.min()
    assert found.max() <= images.max()


def test_defocus_is_a_disc() -> None:
    """One white pixel on black becomes a disc: radius 1.7 at severity 3 covers the cross fully, corners in part.

    Weights by distance r from the middle, clip(1.7 + .5 - r, 0, 1): 1 at 0 and 1; sqrt 2 = 1.414: .786; 2: .2; sqrt 5
    = 2.236: 0. Sum 1 + 4 + 4 * .786 + 4 * .2 = 8.943, so the middle has 255 / 8.943 = 28.5 and the corners 22.4.
    """
    image = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    image[0, 16, 16] = 255
    found = corrupt(image, "defocus-blur", 3, draws(1))[0, :, :, 0]
    assert found[16, 16] in (28, 29)
    assert found[15, 15] == 22
    assert found[16, 18] == 6
    assert found[14, 15] == 0


def test_saturate_leaves_grey_alone_and_makes_red_redder() -> None:
    assert np.array_equal(corrupt(grey(90), "saturate", 5, draws(20)), grey(90))
    red = grey(90)
    red[..., 0] = 130
    found = corrupt(red, "saturate", 3, draws(20))
    assert (found[..., 0] > 130).all()
    assert (found[..., 1] < 90).all()


def test_there_is_no_severity_zero_and_no_kind_unheard_of() -> None:
    for severity in (0, 6):
        with pytest.raises(FedkeelError, match="expected 1, 2, 3, 4 or 5"):
            corrupt(grey(1), "fog", severity, draws(20))
    with pytest.raises(FedkeelError, match="did you mean 'fog'"):
        corrupt(grey(1), "fogg", 1, draws(20))
    with pytest.raises(FedkeelError, match=r"shift\.severity is 0"):
        fedkeel.experiment(set=["shift.severity=0"])


# --- as a shift -----------------------------------------------------------------------------------------------------


def experiment(**sections: Any) -> Experiment:
    return Experiment(**sections)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Every tenth row of each class of the pack."""
    whole = load_digits5()
    train, test = (np.flatnonzero(np.arange(n) % 100 < 20) for n in (5000, 2500))
    return replace(
        whole, train=whole.train[train], train_labels=whole.train_labels[train], train_client=None, test_client=None,
        test=whole.test[test], test_labels=whole.test_labels[test],
    )  # fmt: skip


def test_each_client_has_its_kind_on_all_its_rows(digits: Dataset) -> None:
    """22 clients: the last three have the first three kinds again."""
    partition = Split.of(kind="iid", clients=22, validation=0.2, test=0.2)
    exp = experiment(partition=partition, shift=Shift(corruption="per-client", severity=4))
    manifest, labels, data, _ = divide(exp, digits)
    plain = split(partition, digits, seed=0)
    kinds = [list(CORRUPTIONS)[k % 19] for k in range(22)]
    assert manifest.names == tuple(f"{name}-{kind}" for name, kind in zip(plain.names, kinds, strict=True))
    assert manifest.names[19] == "client-019-gaussian-noise"
    assert manifest.settings["corruption"] == "per-client"
    assert manifest.settings["severity"] == 4
    assert np.array_equal(labels, digits.train_labels)
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(manifest, part).rows, getattr(plain, part).rows)
        for client, kind in enumerate(kinds):
            rows = getattr(plain, part).of(client)
            lots = [generator(0, "corruption", kind, "train", row) for row in rows.tolist()]
            assert np.array_equal(data.train[rows], corrupt(digits.train[rows], kind, 4, lots)), (part, kind)
    assert np.array_equal(data.test, digits.test), "nobody's test rows"
    assert data.fingerprint != digits.fingerprint
    again = divide(exp, digits)[2]
    assert (again.fingerprint, again.ready) == (data.fingerprint, {})
    other = experiment(partition=partition, shift=Shift(corruption="per-client", severity=5))
    assert divide(other, digits)[2].fingerprint != data.fingerprint


def test_clients_that_the_data_name_have_it_on_their_test_rows() -> None:
    data = load_digits5()
    manifest = split(Split.of(kind="column"), data, seed=0)
    worse, told = corrupted(data, manifest, Shift(corruption="per-client", severity=1), 0)
    assert told.names[2:4] == ("mnist-fog", "mnist-photos-contrast")
    rows = manifest.test.of(2)
    lots = [generator(0, "corruption", "fog", "test", row) for row in rows.tolist()]
    assert np.array_equal(worse.test[rows], corrupt(np.asarray(data.test)[rows], "fog", 1, lots))


def test_one_kind_for_everybody(digits: Dataset) -> None:
    """Then the source's test rows have it too, unless clients have their own; rows of nobody stay as they are."""
    exp = experiment(partition=Split.of(kind="iid", clients=3), shift=Shift(corruption="fog", long_tail=5))
    manifest, _, data, _ = divide(exp, digits)
    assert manifest.names == ("client-000", "client-001", "client-002")
    owned = np.isin(np.arange(len(digits.train)), manifest.train.rows)
    changed = (np.asarray(data.train) != digits.train).any((1, 2, 3))
    assert np.array_equal(changed, owned)
    assert not owned.all()
    assert (np.asarray(data.test) != digits.test).any((1, 2, 3)).all()


def test_images_in_files_become_an_array(digits: Dataset) -> None:
    exp = experiment(partition=Split.of(kind="iid", clients=2), shift=Shift(corruption="fog"))
    stored = replace(digits, train=list(digits.train), test=list(digits.test))
    one, other = divide(exp, digits)[2], divide(exp, stored)[2]
    assert np.array_equal(one.train, other.train)
    assert np.array_equal(one.test, other.test)


def test_mistakes_are_told_in_a_line(digits: Dataset) -> None:
    split_in_two = Split.of(kind="iid", clients=2)
    sizes = [np.zeros((8, 8 + (row == 5), 3), dtype=np.uint8) for row in range(len(digits.train))]
    cases = [
        (digits, split_in_two, "per-client", r"set partition\.test"),
        (digits, split_in_two, "frog", "did you mean 'fog'"),
        (replace(digits, train=sizes, test=[]), split_in_two, "fog", r"some of 8 x 8 and some of 9 x 8 pixels"),
        (replace(digits, kind="features", train=np.ones((1000, 3))), split_in_two, "fog", "holds features"),
    ]
    for data, partition, corruption, line in cases:
        with pytest.raises(FedkeelError, match=line) as found:
            divide(experiment(partition=partition, shift=Shift(corruption=corruption)), data)
        assert "\n" not in str(found.value)
    assert divide(experiment(partition=split_in_two), digits)[2] is digits
