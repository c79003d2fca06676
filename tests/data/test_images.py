"""Image files of every kind, read as a person sees them: 16 bits, transparency, photos taken sideways."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedkeel as fk
from fedkeel.data.images import RowError, open_image
from fedkeel.models import cache
from fedkeel.models.encoders import open_named

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(values: np.ndarray, colours: int) -> bytes:
    """A PNG of 16 bits: 0 grey, 2 RGB, 4 grey with alpha, 6 RGB with alpha, which Pillow does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = values.shape[:2]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    head = struct.pack(">IIBBBBB", width, height, 16, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def tiff(data: bytes, bits: int, white_is_zero: bool = False, numbers: int = 1) -> bytes:
    """A TIFF of 16 x 16 pixels; ``numbers``: 1 unsigned, 2 signed, 3 floating point."""
    tags = {256: 16, 257: 16, 258: bits, 259: 1, 262: int(not white_is_zero), 273: 8, 277: 1, 278: 16}
    tags |= {279: len(data), 339: numbers}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def in_12_bits(values: np.ndarray) -> bytes:
    pairs = zip(values.ravel()[::2].tolist(), values.ravel()[1::2].tolist(), strict=True)
    return b"".join(bytes((a >> 4, (a & 15) << 4 | b >> 8, b & 255)) for a, b in pairs)


WIDE = GREY.astype(np.uint16) * 257
ALIKE: dict[str, Callable[[], bytes]] = {
    "8 bits": lambda: saved(Image.fromarray(GREY)),
    "16 bits": lambda: saved(Image.fromarray(WIDE)),
    "16 bits in TIFF": lambda: saved(Image.fromarray(WIDE), "TIFF"),
    "16 bits counted from white": lambda: tiff((65535 - WIDE).astype("<u2").tobytes(), 16, white_is_zero=True),
    "12 bits in TIFF": lambda: tiff(in_12_bits(np.round(GREY * (4095 / 255)).astype(int)), 12),
    "16 bits in colour": lambda: png(np.repeat(WIDE[..., None], 3, 2), 2),
    "16 bits, opaque grey": lambda: png(np.stack([WIDE, np.full_like(WIDE, 65535)], 2), 4),
    "16 bits, opaque colour": lambda: png(np.stack([WIDE, WIDE, WIDE, np.full_like(WIDE, 65535)], 2), 6),
    "16 bits in PGM": lambda: b"P5 16 16 65535\n" + WIDE.astype(">u2").tobytes(),
    "a palette": lambda: saved(Image.fromarray(GREY).convert("P")),
    "opaque": lambda: saved(Image.fromarray(GREY).convert("RGBA")),
    "CMYK": lambda: saved(Image.fromarray(GREY).convert("CMYK"), "TIFF"),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_the_same_image_however_it_is_stored(kind: str) -> None:
    image = open_image(ALIKE[kind](), 0)
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), np.repeat(GREY[..., None], 3, 2))


def test_16_bits_are_rounded_to_the_nearest_of_8() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    read = np.asarray(open_image(saved(Image.fromarray(values)), 0))[..., 0]
    assert np.array_equal(read, np.round(values / 257))


@pytest.mark.parametrize("numbers", [1, 2, 3])
def test_pixels_of_an_unknown_range_are_refused(numbers: int) -> None:
    data = (GREY * 1.0).astype("<f4").tobytes() if numbers == 3 else GREY.astype("<u4").tobytes()
    with pytest.raises(RowError, match=r"numbers of 32 bits, of which nobody knows the range; save it in 8 or 16 bits"):
        open_image(tiff(data, 32, numbers=numbers), 0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    """The colour below what is transparent is anything; nobody sees it."""
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 2, 4))
    read = np.asarray(open_image(saved(image.convert(mode)), 0))
    assert (read[:, :2] == 0).all()
    assert (read[:, 2:] == 255).all()


def test_a_colour_declared_transparent_is_white() -> None:
    image = Image.new("RGB", (4, 4), (9, 9, 9))
    assert (np.asarray(open_image(saved(image, transparency=(9, 9, 9)), 0)) == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_photos_stand_upright(kind: str) -> None:
    photo, tags = Image.new("RGB", (40, 20), "white"), Image.Exif()
    photo.paste((0, 0, 0), (0, 0, 20, 20))  # dark on the left, and told to be turned clockwise: dark on top
    tags[274] = 6
    read = np.asarray(open_image(saved(photo, kind, exif=tags), 0))
    assert read.shape == (40, 20, 3)
    assert read[:16].max() < 60
    assert read[24:].min() > 200


def test_broken_tags_say_nothing() -> None:
    image = open_image(saved(Image.fromarray(GREY), "JPEG", exif=b"Exif\0\0MM\0*nonsense", quality=95), 0)
    assert image.size == (16, 16)


def test_no_memory_is_no_broken_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image, "open", no_memory)
    with pytest.raises(MemoryError):
        open_image(b"", 0)


def test_a_model_of_8_bits_predicts_the_same_in_16(tmp_path: Path) -> None:
    """Through the embedded encoder: the same images in both depths have the same features."""
    rng = np.random.default_rng(0)
    small = [np.clip(rng.normal(90 + 40 * (k % 3), 40, (24, 24)), 0, 255).astype(np.uint8) for k in range(6)]
    encoder = open_named("efficientnet-lite0", "auto", "images", [], "these")
    features = [
        encoder.encode([saved(Image.fromarray(image * deep)) for image in map(np.asarray, images)])
        for images, deep in ((small, np.uint8(1)), ([image.astype(np.uint16) for image in small], np.uint16(257)))
    ]
    assert np.array_equal(*features)
    assert features[0].std() > 0


def test_features_of_files_are_encoded_again_when_files_are_read_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(4):
            path = tmp_path / "photos" / name / f"{k}.png"
            path.write_bytes(saved(Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8))))
    files = {"source": f"images:{tmp_path / 'photos'}", "encoder": "pixels", "cache": str(tmp_path / "cache")}
    arrays = {"source": "digits", "cache": str(tmp_path / "cache")}
    assert not fk.encode(data=files).cached
    assert fk.encode(data=files).cached
    assert not fk.encode(data=arrays).cached
    monkeypatch.setattr(cache, "READING", "another")
    assert not fk.encode(data=files).cached
    assert fk.encode(data=arrays).cached, "arrays are no files"
