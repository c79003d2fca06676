"""CIFAR-10, CIFAR-100, their corrupted versions and TinyImageNet-200, read from small copies of the official files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_cifar
from data.test_sources import fails
from fedkeel.core.errors import FedkeelError
from fedkeel.data import cifar
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256
from fedkeel.data.loading import load
from fedkeel.data.sources import cifar_c
from fedkeel.data.sources.base import Source
from fedkeel.data.splits.base import SPLITS
from fedkeel.runs.config import build
from small_cifar import COARSE, FINE, TEN, WNIDS, pickle_2

Damage = Callable[[Path], object]


def read(source: str, folder: Path, **settings: Any) -> Dataset:
    return load(Source.of(source=f"{source}:{folder}", **settings))


# --- CIFAR-10 and CIFAR-100 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "make", "versions"),
    [("cifar10", small_cifar.cifar_10, ("py", "bin")), ("cifar100", small_cifar.cifar_100, ("python", "binary"))],
)
def test_both_versions_hold_the_same_rows(
    source: str, make: Callable[..., Path], versions: tuple[str, str], tmp_path: Path
) -> None:
    first, second = (read(source, make(tmp_path / version, version)) for version in versions)
    for part in ("train", "test", "train_labels", "test_labels"):
        assert np.array_equal(getattr(first, part), getattr(second, part))
    assert first.class_names == second.class_names
    assert first.superclass_names == second.superclass_names
    for version, dataset in zip(versions, (first, second), strict=True):
        assert read(source, tmp_path / version).fingerprint == dataset.fingerprint, "the folder above is as good"
    assert (first.name, first.kind) == (source, "images")


def test_rows_of_cifar_10_are_the_images_of_its_files_in_their_order(tmp_path: Path) -> None:
    dataset = read("cifar10", small_cifar.cifar_10(tmp_path, "py", each=10))
    expected = small_cifar.photos(np.arange(10), seed=2).reshape(10, 3, 32, 32)
    assert np.array_equal(dataset.train[20:30], expected.transpose(0, 2, 3, 1))
    assert np.array_equal(
        dataset.test, small_cifar.photos(np.arange(10), 5).reshape(10, 3, 32, 32).transpose(0, 2, 3, 1)
    )
    assert dataset.train_labels.tolist() == [*range(10)] * 5
    assert dataset.class_names == TEN == cifar.CIFAR10


def test_the_fingerprint_of_the_binary_version_is_that_of_its_six_files(tmp_path: Path) -> None:
    """What was encoded before the python version could be read is still found."""
    folder = small_cifar.cifar_10(tmp_path, "bin")
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    assert read("cifar10", folder).fingerprint == digest(file_sha256(folder / name) for name in names)


def test_cifar_100_has_superclasses(tmp_path: Path) -> None:
    dataset = read("cifar100", small_cifar.cifar_100(tmp_path))
    assert dataset.class_names == tuple(name.replace("_", " ") for name in FINE)
    assert dataset.superclass_names == tuple(name.replace("_", " ") for name in COARSE)
    assert {name for name in cifar.CIFAR100 if " " in name} > {"aquarium fish", "sweet pepper"}
    assert dataset.superclasses == small_cifar.COARSE_OF
    assert dataset.train_labels[:5].tolist() == [0, 1, 2, 3, 0]


def rewritten(name: str, **entries: Any) -> Damage:
    """A batch of the python version with other entries; None takes one out."""

    def damage(folder: Path) -> None:
        labels = {"fine_labels": [0, 1], "coarse_labels": [2, 1]}
        whole = {**labels, "data": small_cifar.photos(np.arange(2)), **entries}
        (folder / name).write_bytes(pickle_2({key: value for key, value in whole.items() if value is not None}))

    return damage


def cut(name: str, count: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:count])


def gone(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def meta(**names: list[str]) -> Damage:
    whole = {"fine_label_names": list(FINE), "coarse_label_names": list(COARSE), **names}
    return lambda folder: (folder / "meta").write_bytes(pickle_2(whole))


NO_ROWS = np.zeros((0, 3072), np.uint8)
PYTHON_DAMAGE: dict[str, tuple[Damage, str]] = {
    "a file is missing": (gone("test"), "cifar-100-python has no file test: expected train, test, meta"),
    "no names": (meta(fine_label_names=[]), "train is damaged: it holds label 0"),
    "names that are missing": (
        lambda folder: (folder / "meta").write_bytes(pickle_2({"fine_label_names": list(FINE)})),
        "meta has no list of class names",
    ),
    "a name twice": (meta(fine_label_names=["a", "a", "b", "c"]), "meta names a class twice"),
    "cut off": (cut("train", 5000), "train is refused (expected 368640 bytes in a string4, but only"),
    "a forbidden name": (
        lambda folder: (folder / "train").write_bytes(b"cos\nsystem\n(S'true'\ntR."),
        "train is refused (it asks for os.system)",
    ),
    "no labels": (rewritten("train", fine_labels=None), "train has no entry fine_labels: it holds coarse_labels, data"),
    "labels of other rows": (rewritten("train", fine_labels=[0]), "train: fine_labels is no list of 2 numbers"),
    "labels that are texts": (rewritten("train", fine_labels=["a", "b"]), "fine_labels is no list of 2 numbers"),
    "a label below all": (rewritten("train", fine_labels=[0, -1]), "train is damaged: it holds label -1, expected 0"),
    "a label above all": (rewritten("test", coarse_labels=[4, 0]), "test is damaged: it holds label 4, expected 0"),
    "rows of another length": (rewritten("train", data=np.zeros((2, 3071), np.uint8)), "data is no array of rows"),
    "rows that are a text": (rewritten("train", data="x"), "train: data is no array of rows of 3,072 bytes"),
    "no rows": (rewritten("test", data=NO_ROWS, fine_labels=[], coarse_labels=[]), "test is empty"),
    "a class of two superclasses": (
        rewritten("train", fine_labels=[0, 0]),
        "class 'apple' has rows in the superclasses 'fish' and 'fruit and vegetables'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), PYTHON_DAMAGE.values(), ids=PYTHON_DAMAGE.keys())
def test_a_python_version_that_is_not_whole_is_one_line(damage: Damage, words: str, tmp_path: Path) -> None:
    folder = small_cifar.cifar_100(tmp_path)
    damage(folder)
    assert words in fails(f"cifar100:{folder}")


BINARY_DAMAGE: dict[str, tuple[Damage, str]] = {
    "cut off": (cut("train.bin", 3073), "train.bin has 3,073 bytes, expected rows of 3,074: it is cut off"),
    "nothing": (cut("test.bin", 0), "test.bin is empty"),
    "names are missing": (gone("fine_label_names.txt"), "has no file fine_label_names.txt"),
    "names that are no text": (
        lambda folder: (folder / "fine_label_names.txt").write_bytes(b"\xff\xff"),
        "fine_label_names.txt as text",
    ),
    "fewer names": (
        lambda folder: (folder / "coarse_label_names.txt").write_text("a\nb\n"),
        "train.bin is damaged: it holds label 2, expected 0 to 1",
    ),
}


@pytest.mark.parametrize(("damage", "words"), BINARY_DAMAGE.values(), ids=BINARY_DAMAGE.keys())
def test_a_binary_version_that_is_not_whole_is_one_line(damage: Damage, words: str, tmp_path: Path) -> None:
    folder = small_cifar.cifar_100(tmp_path, "binary")
    damage(folder)
    assert words in fails(f"cifar100:{folder}")


@pytest.mark.parametrize("name", ["data_batch_4.bin", "test_batch.bin"])
def test_files_of_cifar_10_are_of_one_length(name: str, tmp_path: Path) -> None:
    """So that one which was cut off between two rows is seen."""
    folder = small_cifar.cifar_10(tmp_path, "bin", each=20)
    cut(name, 3073 * 10)(folder)
    assert f"{name} has 10 rows, others 20" in fails(f"cifar10:{folder}")


@pytest.mark.parametrize("source", ["cifar10", "cifar100", "cifar10-c", "cifar100-c", "tinyimagenet"])
def test_a_folder_of_something_else_is_one_line(source: str, tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert f"{source}:{folder}: {folder} " in fails(f"{source}:{folder}")


# --- CIFAR-10-C and CIFAR-100-C ---------------------------------------------------------------------------------------


def test_a_kind_is_a_client_and_the_severity_a_setting(tmp_path: Path) -> None:
    """In the small copy severity s adds 10 s to every photo, and the second kind one more."""
    folder = small_cifar.cifar_c(tmp_path, kinds=("fog", "brightness"), each=5)
    dark, light = (read("cifar10-c", folder, severity=s) for s in (1, 4))
    assert np.array_equal(light.train, dark.train + np.uint8(30))  # type: ignore[operator]
    assert light.train_client is not None
    assert light.test_client is not None
    assert (len(light.train), len(light.test)) == (80, 20)
    assert light.train_client.tolist() == ["brightness"] * 40 + ["fog"] * 40
    assert np.array_equal(light.train[:40], light.train[40:] + np.uint8(1))  # type: ignore[operator]
    labels = np.arange(50) % 10
    clean = small_cifar.photos(labels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    known = {photo.tobytes(): label for photo, label in zip(clean, labels.tolist(), strict=True)}
    for rows, given in ((light.train, light.train_labels), (light.test, light.test_labels)):
        fog = slice(len(rows) // 2, None)
        assert [known[(row - np.uint8(40)).tobytes()] for row in rows[fog]] == given[fog].tolist()
    assert light.fingerprint != dark.fingerprint
    assert light.class_names == cifar.CIFAR10
    assert read("cifar10-c", tmp_path).fingerprint == read("cifar10-c", folder, severity=3).fingerprint
    whole = read("cifar10-c", folder, severity=0)
    assert (len(whole.train), len(whole.test)) == (400, 100)
    assert {light.train[7].tobytes(), dark.train[7].tobytes()} <= {row.tobytes() for row in whole.train}


def test_a_photo_is_tested_in_all_kinds_or_in_none(tmp_path: Path) -> None:
    """Otherwise a client would be tested on photos that others trained on."""
    folder = small_cifar.cifar_c(tmp_path, kinds=("a", "b", "c"), each=10)
    dataset = read("cifar10-c", folder, severity=0, holdout=0.3)

    def photos(rows: Any) -> set[bytes]:
        """Without what severity and kind add: the difference to the first pixel."""
        return {(row - row[0, 0]).tobytes() for row in rows}

    assert len(photos(dataset.train)) == 70
    assert len(photos(dataset.test)) == 30
    assert not photos(dataset.train) & photos(dataset.test)
    assert np.bincount(dataset.test_labels).tolist() == [3 * 15] * 10
    other = read("cifar10-c", folder, severity=0, holdout=0.1)
    assert len(photos(other.test)) == 10
    assert other.fingerprint != dataset.fingerprint


def test_the_split_by_column_has_the_kinds(tmp_path: Path) -> None:
    folder = small_cifar.cifar_c(tmp_path, each=5)
    dataset = read("cifar10-c", folder)
    column = SPLITS["column"].model_validate({"kind": "column"})
    assert column.names(dataset) == ("brightness", "fog")


def saved(name: str, array: np.ndarray) -> Damage:
    return lambda folder: np.save(folder / name, array)


FIFTY = np.zeros((150, 32, 32, 3), np.uint8)
C_DAMAGE: dict[str, tuple[Damage, str]] = {
    "cut off": (cut("fog.npy", 100_000), "fog.npy is damaged: its array says that it is uint8 (150, 32, 32, 3), which"),
    "cut off in its head": (cut("fog.npy", 50), "fog.npy is damaged: its array has no sound header"),
    "empty": (cut("fog.npy", 0), "fog.npy is damaged: its array has no sound header"),
    "labels cut off": (cut("labels.npy", 140), "but 12 are there; get it again"),
    "objects": (
        lambda folder: np.save(folder / "fog.npy", np.array([{}], dtype=object), allow_pickle=True),
        "fog.npy: its array holds Python objects, which are not read",
    ),
    "several arrays": (
        lambda folder: np.savez((folder / "fog.npy").open("wb"), x=FIFTY),
        "fog.npy is damaged: its array has no sound header",
    ),
    "no rows": (saved("fog.npy", FIFTY[:0]), "fog.npy is empty: its array is uint8 (0, 32, 32, 3)"),
    "numbers of no bytes": (
        lambda folder: (folder / "fog.npy").write_bytes(
            (folder / "fog.npy").read_bytes().replace(b"'|u1'", b"'|V0'", 1)
        ),
        "fog.npy is damaged: its array has no sound header",
    ),
    "a row less": (saved("fog.npy", FIFTY[1:]), "fog.npy is uint8 (149, 32, 32, 3): expected uint8 (150, 32, 32, 3)"),
    "other numbers": (saved("fog.npy", FIFTY.astype("f4")), "fog.npy is float32 (150, 32, 32, 3): expected uint8"),
    "other images": (saved("fog.npy", FIFTY[:, :16]), "fog.npy is uint8 (150, 16, 32, 3)"),
    "labels of no severities": (saved("labels.npy", np.zeros(151, np.uint8)), "as many rows for each of 5 severities"),
    "labels in another order": (
        saved("labels.npy", np.repeat(np.arange(10, dtype=np.uint8), 15)),
        "labels.npy: expected the same labels 5 times",
    ),
    "a label above all": (saved("labels.npy", np.full(150, 10)), "labels.npy row 0 is 10: expected 0 to 9"),
    "labels that are no numbers": (saved("labels.npy", np.full(150, "a")), "labels.npy is <U1 (150,)"),
    "no labels": (gone("labels.npy"), "holds neither labels.npy nor a folder CIFAR-10-C with it"),
    "no kinds": (
        lambda folder: [(folder / f"{name}.npy").unlink() for name in ("fog", "brightness")],
        "has no file but labels.npy: expected one for each kind, such as fog.npy",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), C_DAMAGE.values(), ids=C_DAMAGE.keys())
def test_corrupted_files_that_are_not_whole_are_one_line(damage: Damage, words: str, tmp_path: Path) -> None:
    folder = small_cifar.cifar_c(tmp_path)
    damage(folder)
    assert words in fails(f"cifar10-c:{folder}")


def test_official_kinds_that_are_missing_are_told(tmp_path: Path) -> None:
    """Nobody notices 18 clients where there should be 19; other kinds may stand beside them."""
    told: list[str] = []
    folder = small_cifar.cifar_c(tmp_path, kinds=[*cifar_c.OFFICIAL[1:], "caustic_noise"])
    dataset = load(Source.of(source=f"cifar10-c:{folder}"), notice=told.append)
    line = f"cifar10-c:{folder}: 1 of the 19 official kinds are not there (brightness), so 19 clients"
    assert told == [line]
    assert dataset.train_client is not None
    assert len(set(dataset.train_client)) == 19
    np.save(folder / "brightness.npy", np.load(folder / "fog.npy"))
    load(Source.of(source=f"cifar10-c:{folder}"), notice=told.append)
    assert told == [line]


def test_more_kinds_than_fit_are_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small_cifar.cifar_c(tmp_path)
    monkeypatch.setattr(cifar_c, "available", lambda: 2 * 150 * 3072 - 1)
    assert len(read("cifar10-c", folder).train) == 40
    assert "with data.severity = 0 takes 0.0 GB, but 0.0 GB of memory are free" in fails(
        f"cifar10-c:{folder}", severity=0
    )


def test_a_severity_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FedkeelError, match="severity"):
        build({"data": {"source": f"cifar10-c:{tmp_path}", "severity": 6}})
    with pytest.raises(FedkeelError, match="severity"):
        build({"data": {"source": f"cifar10:{tmp_path}", "severity": 1}})


# --- TinyImageNet-200 -------------------------------------------------------------------------------------------------


def test_tiny_imagenet_is_tested_on_its_validation_images(tmp_path: Path) -> None:
    folder = small_cifar.tiny_imagenet(tmp_path, train=3, test=2)
    dataset = read("tinyimagenet", folder)
    assert dataset.class_names == (
        "goldfish", "European fire salamander", "crane bird", "construction crane",
    )  # fmt: skip
    assert [path.name for path in dataset.train[:4]] == [f"n01443537_{k}.JPEG" for k in range(3)] + ["n01629819_0.JPEG"]
    assert dataset.train_labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert [path.name for path in dataset.test] == [f"val_{k}.JPEG" for k in range(8)]
    assert dataset.test_labels.tolist() == [0, 1, 2, 3] * 2
    assert read("tinyimagenet", tmp_path).fingerprint == dataset.fingerprint
    annotations = folder / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace("val_0.JPEG\tn01443537", "val_0.JPEG\tn01629819"))
    assert read("tinyimagenet", folder).fingerprint != dataset.fingerprint, "labels are content as well"


def said(path: str, text: str) -> Damage:
    return lambda folder: (folder / path).write_text(text)


def added(path: str, text: str) -> Damage:
    return lambda folder: (folder / path).write_text((folder / path).read_text() + text)


TINY_DAMAGE: dict[str, tuple[Damage, str]] = {
    "a class folder is missing": (
        lambda folder: shutil.rmtree(folder / "train" / "n02012849"),
        "train has no folder n02012849, which wnids.txt names",
    ),
    "a class folder too many": (
        lambda folder: (folder / "train" / "n99").mkdir(),
        "train has a folder n99, which wnids.txt does not name",
    ),
    "a class without images": (
        lambda folder: shutil.rmtree(folder / "train" / "n02012849" / "images"),
        "n02012849/images holds no images",
    ),
    "no training images": (lambda folder: shutil.rmtree(folder / "train"), "train has no folder n01443537"),
    "a training image that is listed": (
        gone("train/n02012849/images/n02012849_0.JPEG"),
        "n02012849_boxes.txt names n02012849_0.JPEG, which is not in",
    ),
    "an image that is listed": (gone("val/images/val_3.JPEG"), "val_annotations.txt names val_3.JPEG, which is not in"),
    "an image that is not listed": (
        lambda folder: shutil.copy(folder / "val/images/val_3.JPEG", folder / "val/images/val_99.JPEG"),
        "images holds val_99.JPEG, of which",
    ),
    "an image of no class": (
        said("val/val_annotations.txt", "val_0.JPEG\tn77\t0\t0\t1\t1\n"),
        "val_annotations.txt says n77 of val_0.JPEG, which is not in wnids.txt",
    ),
    "a line that is cut off": (added("val/val_annotations.txt", "val_9"), "annotations.txt line 9: expected 2 fields"),
    "validation images in folders of classes": (
        lambda folder: shutil.rmtree(folder / "val" / "images"),
        "images holds no images",
    ),
    "no annotations": (gone("val/val_annotations.txt"), "val_annotations.txt (No such file or directory)"),
    "no words": (gone("words.txt"), "words.txt (No such file or directory)"),
    "a class without a word": (said("words.txt", "n01443537\tgoldfish\n"), "words.txt has no name for n01629819"),
    "words that are no text": (
        lambda folder: (folder / "words.txt").write_bytes(b"\xff\n"),
        "words.txt (it is no text)",
    ),
    "no classes": (said("wnids.txt", "\n"), "wnids.txt is empty"),
    "a class elsewhere": (added("wnids.txt", "../val\n"), "train has no folder ../val"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), TINY_DAMAGE.values(), ids=TINY_DAMAGE.keys())
def test_tiny_imagenet_that_is_not_whole_is_one_line(damage: Damage, words: str, tmp_path: Path) -> None:
    folder = small_cifar.tiny_imagenet(tmp_path)
    damage(folder)
    assert words in fails(f"tinyimagenet:{folder}")


def test_names_of_classes_are_the_first_of_their_words(tmp_path: Path) -> None:
    folder = small_cifar.tiny_imagenet(tmp_path)
    words = {**WNIDS, "n03126707": "crane machine, derrick"}
    (folder / "words.txt").write_text("".join(f"{wnid}\t{names}\n" for wnid, names in words.items()))
    assert read("tinyimagenet", folder).class_names[2:] == ("crane", "crane machine")
