"""Tiny copies of public datasets as they are downloaded: the same folders, files and formats, few rows."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

from duals import pictures_in
from fedkeel.core.rng import generator
from fedkeel.data.sources.domainnet import DOMAINS, TEN

TRAIN, TEST = 4, 2
"""Images of each class, of each domain."""


def photo(path: Path, label: int) -> None:
    """A noisy picture in the colour of its class, no two of which are alike."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = generator(0, "photo", path.parent.name, path.name).integers(-20, 20, (20, 20, 3))
    picture = pictures_in(np.array([label % 3]))[0] + noise
    Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(path, format="PNG")  # whatever it is called


def write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


# --- digits


def digits(domain: str, count: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images whose brightness tells the digit, 0 to 9 in turn."""
    labels = np.arange(count) % 10
    noise = generator(0, "digits", domain, count).integers(0, 20, (count, *shape))
    return (noise + 20 * labels.reshape(-1, *[1] * len(shape))).astype(np.uint8), labels


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(10)[labels]


def cell(*values: object) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def digit5(folder: Path) -> Path:
    """The files of DomainBed and FedBN: 30 training and 20 test rows of each domain."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train": 30, "test": 20}
    mnist, mnistm, synthetic, usps = dict[str, object](), dict[str, object](), dict[str, object](), []
    for part, count in parts.items():
        images, labels = digits("mnist", count, (32, 32))
        mnist |= {f"{part}_32": images, f"{part}_28": images[:, 2:30, 2:30, None], f"label_{part}": one_hot(labels)}
        images, labels = digits("mnist-m", count, (28, 28, 3))
        mnistm |= {part: images, f"label_{part}": one_hot(labels)}
        images, labels = digits("svhn", count, (32, 32, 3))
        y = np.where(labels == 0, 10, labels)[:, None]
        scipy.io.savemat(folder / f"svhn_{part}_32x32.mat", {"X": np.moveaxis(images, 0, -1), "y": y})
        images, labels = digits("synthdigits", count, (32, 32, 3))
        synthetic |= {f"{part}_data": images, f"{part}_label": labels[:, None]}
        images, labels = digits("usps", count, (1, 28, 28))
        usps.append([images / 255, labels[:, None]])
    scipy.io.savemat(folder / "mnist_data.mat", mnist)
    scipy.io.savemat(folder / "mnistm_with_label.mat", mnistm)
    scipy.io.savemat(folder / "syn_number.mat", synthetic)
    two_by_two = np.empty((2, 2), dtype=object)
    for row, (images, labels) in enumerate(usps):
        two_by_two[row, 0], two_by_two[row, 1] = images, labels
    scipy.io.savemat(folder / "usps_28x28.mat", {"dataset": two_by_two}, do_compression=True)
    return folder


def mnist_idx(folder: Path, packed: bool) -> None:
    """MNIST's own four files, in place of the one of ``digit5``."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 30), ("t10k", 20)):
        images, labels = digits("mnist", count, (28, 28))
        for name, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
            data = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)


# --- images that lists name


def domainnet(folder: Path) -> Path:
    """The ten classes of FedBN and an eleventh, which is numbered before them."""
    for domain in DOMAINS:
        for part, first, count in (("train", 0, 2), ("test", 2, 1)):
            lines = []
            for number, name in enumerate(["aircraft_carrier", *sorted(TEN)]):
                for row in range(first, first + count):
                    lines.append(f"{domain}/{name}/{domain}_{number:03}_{row:06}.jpg {7 * number}")
                    photo(folder / lines[-1].split()[0], number)
            write(folder / f"{domain}_{part}.txt", lines)
    return folder


WNIDS = {"n01440764": "tench, Tinca tinca", "n02012849": "crane", "n03126707": "crane"}


def imagenet_lt(folder: Path) -> Path:
    """The images as Kaggle's archive has them, the lists beside."""
    images = folder / "ILSVRC" / "Data" / "CLS-LOC"
    for part, file, each in (("train", "train", TRAIN), ("val", "test", TEST)):
        lines = [
            f"{part}/{wnid}/{wnid}_{row}.JPEG {number}" for number, wnid in enumerate(WNIDS) for row in range(each)
        ]
        for line in lines:
            photo(images / line.split()[0], int(line.split()[1]))
        write(folder / f"ImageNet_LT_{file}.txt", lines)
    write(folder / "LOC_synset_mapping.txt", [f"{wnid} {words}" for wnid, words in WNIDS.items()])
    return folder


PLACES = ("a/airfield", "a/apartment_building/outdoor", "z/zen_garden")


def places_lt(folder: Path, easy: bool = False) -> Path:
    """Both ways in which the lists are handed on; with the first, test images lie in one folder."""
    for part, each in (("train", TRAIN), ("test", TEST)):
        lines = []
        for number, place in enumerate(PLACES):
            for row in range(each):
                name = f"{number}{row:04}.jpg"
                flat = place[2:].replace("/", "-")
                top = {"train": f"train/{flat}" if easy else f"data_256/{place}", "test": f"val/{flat}"}[part]
                lines.append(f"{'val_256' if part == 'test' and not easy else top}/{name} {number}")
                photo(folder / lines[-1].split()[0], number)
        write(folder / f"Places_LT_{part}.txt", lines)
    return folder


def food101(folder: Path) -> Path:
    """In the archive's own folder ``food-101``."""
    top, dishes = folder / "food-101", ("apple_pie", "baby_back_ribs", "waffles")
    for part, each in (("train", TRAIN), ("test", TEST)):
        names = [f"{dish}/{k}{row:05}" for k, dish in enumerate(dishes) for row in range(each)]
        names = [name if part == "train" else f"{name}9" for name in names]
        for name in names:
            photo(top / "images" / f"{name}.jpg", dishes.index(name.split("/")[0]))
        write(top / "meta" / f"{part}.txt", names)
    write(top / "meta" / "classes.txt", dishes)
    write(top / "meta" / "labels.txt", ["Apple pie", "Baby back ribs", "Waffles"])
    return folder


def dtd(folder: Path) -> Path:
    top, textures = folder / "dtd", ("banded", "blotchy", "polka-dotted")
    for part, first, each in (("train", 0, 2), ("val", 2, 2), ("test", 4, TEST)):
        names = [f"{name}/{name}_{row:04}.jpg" for name in textures for row in range(first, first + each)]
        for name in names:
            photo(top / "images" / name, textures.index(name.split("/")[0]))
        write(top / "labels" / f"{part}1.txt", names)
    return folder


VARIANTS = ("707-320", "727-200", "F-16A/B")


def aircraft(folder: Path) -> Path:
    """In the archive's own folder, whose files are below ``data``."""
    top = folder / "fgvc-aircraft-2013b" / "data"
    for part, first, each in (("trainval", 0, TRAIN), ("test", 50, TEST)):
        lines = [f"{100 * k + first + row:07} {name}" for k, name in enumerate(VARIANTS) for row in range(each)]
        for line in lines:
            photo(top / "images" / f"{line.split()[0]}.jpg", VARIANTS.index(line.split()[1]))
        write(top / f"images_variant_{part}.txt", lines)
    write(top / "variants.txt", VARIANTS)
    return folder


BREEDS = ("n02085620-Chihuahua", "n02099601-golden_retriever", "n02099267-flat-coated_retriever")


def dogs(folder: Path) -> Path:
    for part, first, each in (("train", 0, TRAIN), ("test", 50, TEST)):
        files = [f"{breed}/{breed[:9]}_{first + row}.jpg" for breed in BREEDS for row in range(each)]
        for k, name in enumerate(files):
            photo(folder / "Images" / name, k // each)
        labels = np.repeat(np.arange(1, 4), each)[:, None]
        lists = {"file_list": cell(*files)[:, None], "annotation_list": cell(*files)[:, None], "labels": labels}
        scipy.io.savemat(folder / f"{part}_list.mat", lists)
    return folder


PETS = ("Abyssinian", "american_bulldog", "Bengal")


def pets(folder: Path) -> Path:
    for part, first, each in (("trainval", 0, TRAIN), ("test", 50, TEST)):
        lines = [f"{breed}_{first + row} {k + 1} {1 + k % 2} 1" for k, breed in enumerate(PETS) for row in range(each)]
        for line in lines:
            photo(folder / "images" / f"{line.split()[0]}.jpg", int(line.split()[1]) - 1)
        write(folder / "annotations" / f"{part}.txt", lines)
    return folder


MAKERS = {
    "digit5": digit5, "domainnet": domainnet, "imagenet-lt": imagenet_lt, "places-lt": places_lt, "food101": food101,
    "dtd": dtd, "aircraft": aircraft, "dogs": dogs, "pets": pets,
}  # fmt: skip
"""By the name of the source; each makes its copy in a folder and returns that."""
