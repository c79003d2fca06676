"""Files of datasets as they are downloaded: MATLAB's, idx and lists of images."""

from __future__ import annotations

import gzip
from pathlib import Path

import downloads
from fedkeel.data.digit_files import alike, cells, four_idx
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.data.sources.digit5 import FILES
from fuzz.given import sound_rows
from fuzz.mutations import changed, one_of
from fuzz.target import Target, target


@target
def mat(home: Path) -> Target:
    """Plain arrays and cells, of which those are compressed."""
    whole = downloads.digit5(home / "digit5")
    path, mnist = home / "digits.mat", FILES["mnist"]["mnist_data.mat"]

    def check(data: bytes) -> None:
        path.write_bytes(data)
        for part in (mnist if b"train_32" in data else cells)(path):
            images, labels = alike(part, path)
            assert images.shape == (len(labels), 32, 32, 3)
            assert labels.min() >= 0
            assert labels.max() <= 9

    files = [(whole / name).read_bytes() for name in ("usps_28x28.mat", "mnist_data.mat")]
    return Target(one_of(*map(changed, files)), check)


@target
def idx(home: Path) -> Target:
    downloads.mnist_idx(home, packed=False)
    downloads.mnist_idx(home, packed=True)
    plain, packed = home / "train-images-idx3-ubyte", home / "train-images-idx3-ubyte.gz"
    wholes = plain.read_bytes(), packed.read_bytes()

    def check(data: bytes) -> None:
        path = packed if data[:2] == b"\x1f\x8b" else plain
        path.write_bytes(data)
        images, labels = alike(four_idx(path)[0], path)
        assert images.shape == (len(labels), 32, 32, 3)

    repacked = changed(wholes[0])
    return Target(one_of(*map(changed, wholes), lambda draw: gzip.compress(repacked(draw))), check)


@target
def image_list(home: Path) -> Target:
    """Lists and names of the classes, of one source each."""
    places, pets = downloads.places_lt(home / "places"), downloads.pets(home / "pets")
    names = downloads.imagenet_lt(home / "imagenet") / "LOC_synset_mapping.txt"
    files = {
        b"0": (places / "Places_LT_train.txt", f"places-lt:{places}"),
        b"1": (pets / "annotations" / "test.txt", f"pets:{pets}"),
        b"2": (names, f"imagenet-lt:{names.parent}"),
    }

    def check(data: bytes) -> None:
        path, source = files.get(data[:1], files[b"0"])
        path.write_bytes(data[1:])
        try:
            sound_rows(load(Source.of(source=source), notice=lambda text: None))
        finally:
            path.write_bytes(wholes[path])

    wholes = {path: path.read_bytes() for path, _ in files.values()}
    return Target(one_of(*(changed(key + wholes[path]) for key, (path, _) in files.items())), check)
