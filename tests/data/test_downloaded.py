"""Datasets as they are downloaded: what is read of tiny copies, and what is said of copies that are not whole."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io

import downloads
from downloads import MAKERS, TEST, TRAIN, write
from fedkeel.core.errors import FedkeelError
from fedkeel.data import listed
from fedkeel.data.dataset import Dataset
from fedkeel.data.images import open_image
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.data.sources.domainnet import DOMAINS, TEN

LISTED = [name for name in MAKERS if name != "digit5"]
NAMES = {
    "domainnet": tuple(name.replace("_", " ") for name in sorted(TEN)),
    "imagenet-lt": ("tench", "crane bird", "construction crane"),
    "places-lt": ("airfield", "apartment building outdoor", "zen garden"),
    "food101": ("apple pie", "baby back ribs", "waffles"),
    "dtd": ("banded", "blotchy", "polka-dotted"),
    "aircraft": ("707-320", "727-200", "F-16A/B"),
    "dogs": ("Chihuahua", "golden retriever", "flat-coated retriever"),
    "pets": ("Abyssinian", "american bulldog", "Bengal"),
}


def read(name: str, folder: Path, **settings: object) -> Dataset:
    return load(Source.of(source=f"{name}:{folder}", **settings), notice=lambda text: None)


def refused(name: str, folder: Path, **settings: object) -> str:
    """The one line that is said of a copy."""
    with pytest.raises(FedkeelError) as caught:
        read(name, folder, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", LISTED)
def test_lists_say_which_images_are_trained_on_and_what_they_are(name: str, tmp_path: Path) -> None:
    data = read(name, MAKERS[name](tmp_path))
    assert data.class_names == NAMES[name]
    of_one, tests = (2 * len(DOMAINS), len(DOMAINS)) if name == "domainnet" else (TRAIN, TEST)
    assert np.bincount(data.train_labels).tolist() == [of_one] * data.classes
    assert np.bincount(data.test_labels).tolist() == [tests] * data.classes
    assert not set(data.train) & set(data.test)
    for rows, labels in ((data.train, data.train_labels), (data.test, data.test_labels)):
        for row, label in list(zip(rows, labels, strict=True))[::5]:
            assert open_image(row, 0).size == (20, 20)
            if name not in ("aircraft", "places-lt", "imagenet-lt"):
                assert data.class_names[label] in re.sub(r"[_/]", " ", str(row)), "the class is in the image's path"


@pytest.mark.parametrize("name", LISTED)
def test_an_image_that_a_list_names_must_be_there(name: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path)
    data = read(name, folder)
    for lost in (data.train[-1], data.test[0]):
        content = lost.read_bytes()
        lost.unlink()
        assert re.search(rf"(line|row) \d+ names .*{re.escape(lost.name)}, which is not in /", refused(name, folder))
        lost.write_bytes(content)
    shutil.rmtree(data.train[0].parent)
    assert re.search(r"unpack the whole dataset there|give the folder in which the dataset", refused(name, folder))


@pytest.mark.parametrize("name", LISTED)
def test_another_image_is_another_fingerprint(name: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path)
    before = read(name, folder)
    before.train[0].write_bytes(before.train[1].read_bytes())
    after = read(name, folder)
    assert after.fingerprint != before.fingerprint
    assert after.train_sha256 is not None
    assert after.train_sha256[0] == after.train_sha256[1]


@pytest.mark.parametrize("name", MAKERS)
def test_the_folder_above_will_do_and_an_empty_one_says_what_is_missing(name: str, tmp_path: Path) -> None:
    if name in ("digit5", "domainnet", "imagenet-lt", "places-lt", "dogs", "pets"):  # others have one of their own
        assert len(read(name, MAKERS[name](tmp_path / "above" / "unpacked").parent).train)
    (tmp_path / "empty").mkdir()
    said = refused(name, tmp_path / "empty")
    assert said.startswith(f"{name}:{tmp_path / 'empty'}: neither ")
    assert re.search(r"train|mnist_data\.mat", said)
    assert "there is no folder" in refused(name, tmp_path / "nowhere")


def test_lists_that_are_no_lists(tmp_path: Path) -> None:
    folder = downloads.imagenet_lt(tmp_path)
    path = folder / "ImageNet_LT_train.txt"
    lines = path.read_text().splitlines()
    for line in ("train/n01440764/x.JPEG", "train/n01440764/x.JPEG two", "../x.JPEG 0", "/etc/hostname 0"):
        write(path, [lines[0], "", line])
        said = refused("imagenet-lt", folder)
        assert said == f"{path} line 3 is {line!r}: expected train/n01440764/n01440764_190.JPEG 0"
    write(path, [*lines, f"train/{'x' * 5000} 0"])
    assert "which is not in" in refused("imagenet-lt", folder)
    assert len(refused("imagenet-lt", folder)) < 600
    path.write_bytes(b"\xff\xfe\x00")
    assert refused("imagenet-lt", folder) == f"{path} is damaged: it is not text; get it again"
    path.write_text("\n")
    assert "is empty" in refused("imagenet-lt", folder)
    write(path, [*lines, lines[0].replace(" 0", " 1")])
    assert "class 1 has images of 'n02012849' and of 'n01440764'" in refused("imagenet-lt", folder)
    write(path, [line.replace(" 1", " 5") if k % 2 else line for k, line in enumerate(lines)])
    assert "'n02012849' has several numbers" in refused("imagenet-lt", folder)
    write(path, lines[: 2 * TRAIN])
    assert "unknown class in imagenet-lt:" in refused("imagenet-lt", folder), "that is in the test list only"
    path.unlink()
    assert f"has {path.name}: give the folder" in refused("imagenet-lt", folder)
    write(path, lines)
    (folder / "ImageNet_LT_test.txt").unlink()
    assert refused("imagenet-lt", folder) == f"cannot read {folder / 'ImageNet_LT_test.txt'}: No such file or directory"


def test_what_wordnet_ids_stand_for_is_in_a_file(tmp_path: Path) -> None:
    folder = downloads.imagenet_lt(tmp_path)
    lines = ["n02012849\tcrane, wading bird", "n01440764  tench, Tinca tinca", "n03126707 crane"]
    write(folder / "words.txt", lines)
    (folder / "LOC_synset_mapping.txt").unlink()
    assert read("imagenet-lt", folder).class_names == ("tench", "crane wading bird", "construction crane")
    own = ["n01440764 tench", "n02012849 crane bird", "n03126707 construction_crane"]
    write(folder / "classnames.txt", own)
    assert read("imagenet-lt", folder).class_names == ("tench", "crane bird", "construction crane")
    write(folder / "classnames.txt", own[:2])
    assert refused("imagenet-lt", folder).endswith("has no line about n03126707: add one, such as n03126707 tench")
    write(folder / "classnames.txt", ["tench"])
    assert "classnames.txt line 1 is 'tench': expected an id and a name" in refused("imagenet-lt", folder)
    for name in ("words.txt", "classnames.txt"):
        (folder / name).unlink()
    said = refused("imagenet-lt", folder)
    assert f"no file says what they stand for: put LOC_synset_mapping.txt (of Kaggle's ImageNet) into {folder}" in said


def test_validation_images_may_lie_flat_as_in_the_archive(tmp_path: Path) -> None:
    """The list says val/n01440764/ILSVRC2012_val_1.JPEG, where ILSVRC's archive has val/ILSVRC2012_val_1.JPEG."""
    folder = downloads.imagenet_lt(tmp_path)
    before = read("imagenet-lt", folder)
    val = folder / "ILSVRC/Data/CLS-LOC/val"
    for image in list(val.glob("*/*.JPEG")):
        image.rename(val / image.name)
    after = read("imagenet-lt", folder)
    assert after.test == [val / path.name for path in before.test]
    assert after.test_labels.tolist() == before.test_labels.tolist()
    after.test[0].unlink()
    assert "line 1 names val/n01440764/n01440764_0.JPEG, which is not in" in refused("imagenet-lt", folder)
    first = after.train[0]
    first.rename(first.parents[1] / first.name)
    assert "names train/n01440764/" in refused("imagenet-lt", folder), "training images are told apart by folders"


def test_lists_of_places_in_both_ways_are_the_same_classes(tmp_path: Path) -> None:
    nested, easy = (read("places-lt", downloads.places_lt(tmp_path / str(way), easy=way)) for way in (False, True))
    assert nested.class_names == easy.class_names
    assert nested.train_labels.tolist() == easy.train_labels.tolist()
    assert easy.train[TRAIN].parent.name == "apartment_building-outdoor"
    assert nested.test[0].parent.name == "val_256"


def test_domainnet_has_a_client_for_each_domain_and_ten_classes_or_all(tmp_path: Path) -> None:
    folder = downloads.domainnet(tmp_path)
    ten, every = read("domainnet", folder), read("domainnet", folder, classes="all")
    assert every.class_names == ("aircraft carrier", *ten.class_names)
    for data in (ten, every):
        assert data.train_client is not None
        assert data.test_client is not None
        assert sorted(set(data.train_client)) == sorted(set(data.test_client)) == list(DOMAINS)
        assert all(path.parts[-3] == client for path, client in zip(data.train, data.train_client, strict=True))
    for domain in DOMAINS:
        shutil.rmtree(folder / domain / "aircraft_carrier")
    assert read("domainnet", folder).fingerprint == ten.fingerprint, "what is not wanted need not be there"
    assert "which is not in" in refused("domainnet", folder, classes="all")
    (folder / "quickdraw_test.txt").unlink()
    assert refused("domainnet", folder).startswith(f"cannot read {folder / 'quickdraw_test.txt'}")


def test_lists_that_end_before_their_time(tmp_path: Path) -> None:
    """Cut off between two lines; and a domain of DomainNet of which a list says nothing that it could mean."""
    for name, path in (("food101", "food-101/meta/test.txt"), ("pets", "annotations/test.txt")):
        lists = downloads.MAKERS[name](tmp_path / name) / path
        write(lists, lists.read_text().splitlines()[:-TEST])
        said = refused(name, tmp_path / name)
        assert re.search(r"no test image is listed of class '(waffles|Bengal)': get the lists again", said)
    folder = downloads.domainnet(tmp_path / "domainnet")
    path = folder / "sketch_test.txt"
    whole = path.read_text().splitlines()
    write(path, whole[:1])
    assert refused("domainnet", folder).startswith(f"{path} names nothing of the ten classes: get it again, or set ")
    for line in ("sketch\\bird\\x.jpg", "sketch/bird/x.jpg", "sketch/aircraft_carrier/x.jpg 0.jpg"):
        write(path, [*whole, line])
        assert f"{path} line {len(whole) + 1} is {line!r}: expected domain/class/image.jpg number" in refused(
            "domainnet", folder
        )


def test_dogs_whose_lists_do_not_fit(tmp_path: Path) -> None:
    folder = downloads.dogs(tmp_path)
    path = folder / "train_list.mat"
    whole = scipy.io.loadmat(path)
    scipy.io.savemat(path, {"file_list": whole["file_list"], "labels": whole["labels"][1:]})
    assert f"{path} has {3 * TRAIN} files and {3 * TRAIN - 1} labels" in refused("dogs", folder)
    scipy.io.savemat(path, {"file_list": whole["labels"], "labels": whole["labels"]})
    assert "row 0 names 1, which is not in" in refused("dogs", folder)
    scipy.io.savemat(path, {"file_list": whole["file_list"][:, [0, 0]], "labels": whole["labels"]})
    assert "expected as many" in refused("dogs", folder)
    scipy.io.savemat(path, {"files": whole["file_list"]})
    assert f"{path} has files: expected the variables file_list, labels; get it" in refused("dogs", folder)


def test_many_images_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed, "MANY", 18)
    told: list[str] = []
    load(Source.of(source=f"pets:{downloads.pets(tmp_path)}"), notice=told.append)
    assert told == [f"pets:{tmp_path}: reading 18 images for their fingerprint"]


# --- digits


def test_five_domains_of_digits_are_alike(tmp_path: Path) -> None:
    data = read("digit5", downloads.digit5(tmp_path))
    assert (data.train.shape, data.test.shape) == ((150, 32, 32, 3), (100, 32, 32, 3))  # type: ignore[union-attr]
    assert data.train.dtype == np.uint8  # type: ignore[union-attr]
    assert data.class_names == tuple("0123456789")
    assert data.train_client is not None
    for domain in ("mnist", "mnist-m", "svhn", "synthdigits", "usps"):
        mine = data.train_client == domain
        images, labels = np.asarray(data.train)[mine], data.train_labels[mine]
        assert labels.tolist() == list(range(10)) * 3
        colour = domain in ("mnist-m", "svhn", "synthdigits")
        assert bool((images == images[..., :1]).all()) is not colour
        shape = {"mnist": (32, 32), "mnist-m": (28, 28, 3), "usps": (1, 28, 28)}.get(domain, (32, 32, 3))
        expected, _ = downloads.digits(domain, 30, shape)
        np.testing.assert_allclose(images.mean((1, 2, 3)), expected.reshape(30, -1).mean(1), atol=1)
        if shape == (32, 32, 3):
            assert (images == expected).all()


@pytest.mark.parametrize("where", ["", "MNIST/raw", "mnist"])
@pytest.mark.parametrize("packed", [False, True])
def test_mnist_in_its_own_files(where: str, packed: bool, tmp_path: Path) -> None:
    whole = read("digit5", downloads.digit5(tmp_path))
    (tmp_path / "mnist_data.mat").unlink()
    downloads.mnist_idx(tmp_path / where, packed)
    data = read("digit5", tmp_path)
    assert data.train_labels.tolist() == whole.train_labels.tolist()
    assert np.array_equal(np.asarray(data.train)[30:], np.asarray(whole.train)[30:])
    path = next(tmp_path.rglob("train-images*"))
    content = path.read_bytes()
    repacked = [gzip.compress(gzip.decompress(content)[:-1])] if packed else []
    for data_left in (*repacked, content[:-1], content[:3], b"PNG" + content):
        path.write_bytes(data_left)
        assert refused("digit5", tmp_path).startswith(f"{path} is damaged: ")
    path.write_bytes(content)
    next(tmp_path.rglob("t10k-labels*")).unlink()
    assert "which belongs to the others there" in refused("digit5", tmp_path)


def test_a_header_of_mnist_that_asks_for_all_memory(tmp_path: Path) -> None:
    downloads.digit5(tmp_path)
    (tmp_path / "mnist_data.mat").unlink()
    downloads.mnist_idx(tmp_path, packed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + b"\xff" * 12)
    assert "more than there is memory" in refused("digit5", tmp_path)


def test_other_files_of_digits(tmp_path: Path) -> None:
    """SVHN and SynthDigits under their first names, MNIST without 32 x 32, and a domain in an npz file."""
    whole = read("digit5", downloads.digit5(tmp_path))
    for part in ("train", "test"):
        (tmp_path / f"svhn_{part}_32x32.mat").rename(tmp_path / f"{part}_32x32.mat")
        images, labels = downloads.digits("synthdigits", 30 if part == "train" else 20, (32, 32, 3))
        scipy.io.savemat(tmp_path / f"synth_{part}_32x32.mat", {"X": np.moveaxis(images, 0, -1), "y": labels[:, None]})
    (tmp_path / "syn_number.mat").unlink()
    usps = {}
    for part, count in (("", 30), ("_test", 20)):
        usps[f"x{part}"], usps[f"y{part}"] = downloads.digits("usps", count, (28, 28))
    (tmp_path / "usps_28x28.mat").unlink()
    np.savez(tmp_path / "usps.npz", **usps)
    assert read("digit5", tmp_path).fingerprint == whole.fingerprint
    mnist = scipy.io.loadmat(tmp_path / "mnist_data.mat")
    names = ("train_28", "label_train", "test_28", "label_test")
    scipy.io.savemat(tmp_path / "mnist_data.mat", {name: mnist[name] for name in names})
    assert read("digit5", tmp_path).train.shape == (150, 32, 32, 3)  # type: ignore[union-attr]
    np.savez(tmp_path / "usps.npz", x=usps["x"], y=usps["y"])
    assert refused("digit5", tmp_path).endswith("usps.npz has no array x_test: expected x, y, x_test, y_test")


def test_pickles_of_fedbn_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "MNIST").mkdir()
    (tmp_path / "MNIST" / "train_part0.pkl").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    said = refused("digit5", tmp_path)
    assert "expected mnist_data.mat, train-images-idx3-ubyte" in said
    assert said.endswith(
        "or mnist.npz with the arrays x, y, x_test and y_test; train_part0.pkl is a pickle, and those are not read, as "
        "they may run code"
    )
    assert not Path("pwned").exists()


def changed(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        there = scipy.io.loadmat(folder / name)
        scipy.io.savemat(folder / name, {key: value for key, value in there.items() if key[0] != "_"} | values)

    return change


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "fewer labels": (changed("syn_number.mat", train_label=np.zeros((29, 1))), "has 30 images and 29 labels"),
    "no rows": (changed("syn_number.mat", train_data=np.zeros((0, 32, 32, 3), np.uint8)), "images of shape"),
    "a flat image": (changed("syn_number.mat", train_data=np.zeros((30, 3072), np.uint8)), "of shape (30, 3072)"),
    "four colours": (changed("syn_number.mat", train_data=np.zeros((30, 32, 32, 4), np.uint8)), "images of shape"),
    "an odd label": (changed("syn_number.mat", train_label=np.full((30, 1), 11)), "labels other than 0 to 9"),
    "half a label": (changed("syn_number.mat", train_label=np.full((30, 1), 0.5)), "labels other than 0 to 9"),
    "labels of nothing": (changed("mnistm_with_label.mat", label_test=np.zeros((20, 10))), "labels other than 0 to 9"),
    "words for labels": (changed("syn_number.mat", train_label="a" * 30), "labels other than 0 to 9"),
    "numbers beyond": (changed("syn_number.mat", test_data=np.full((20, 32, 32, 3), 256.0)), "beyond 0 to 255"),
    "no number": (changed("syn_number.mat", test_data=np.full((20, 32, 32, 3), np.nan)), "beyond 0 to 255"),
    "no cells": (changed("usps_28x28.mat", dataset=np.zeros((2, 2))), "expected two by two cells"),
    "cells of cells": (changed("usps_28x28.mat", dataset=downloads.cell(1, downloads.cell(2, 3))), "two by two cells"),
    "no MATLAB file": (lambda folder: (folder / "syn_number.mat").write_bytes(b"x" * 500), "cannot be read as a MAT"),
    "an empty file": (lambda folder: (folder / "syn_number.mat").write_bytes(b""), "cannot be read as a MAT"),
    "version 7.3": (
        lambda folder: (folder / "syn_number.mat").write_bytes(
            b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n" * 9
        ),
        "it is of version 7.3; get it again, or save it as version 7",
    ),
    "half of SVHN": (lambda folder: (folder / "svhn_test_32x32.mat").unlink(), "No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "line"), WRONG.values(), ids=WRONG.keys())
def test_digits_that_are_wrong_are_told(change: Callable[[Path], object], line: str, tmp_path: Path) -> None:
    downloads.digit5(tmp_path)
    change(tmp_path)
    assert line in refused("digit5", tmp_path)


def test_a_file_of_digits_that_is_cut_off(tmp_path: Path) -> None:
    downloads.digit5(tmp_path)
    for name in ("syn_number.mat", "usps_28x28.mat", "svhn_train_32x32.mat"):
        content = (tmp_path / name).read_bytes()
        for left in (200, len(content) // 2, len(content) - 1):
            (tmp_path / name).write_bytes(content[:left])
            assert f"{tmp_path / name} " in refused("digit5", tmp_path)
        (tmp_path / name).write_bytes(content)
