"""Rows that are images, wherever they are kept."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fedkeel.core.errors import FedkeelError

BITS, PHOTOMETRIC = 258, 262
"""Tags of TIFF files: bits per sample; whether black or white is 0."""
READING = "1"
"""Changes whenever image files are read in another way: what was encoded before is then encoded again."""


class RowError(FedkeelError):
    """A row that cannot be read or encoded; ``index`` is its position among the rows given."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def open_image(row: Any, index: int) -> Image.Image:
    """A row as an RGB image of 8 bits, whether it is a path, the bytes of an image file or an array.

    Photos stand upright, as their EXIF tag says; what is transparent is white; 16 bits become 8 by v / 257, rounded.
    """
    try:
        if isinstance(row, np.ndarray):
            return Image.fromarray(row).convert("RGB")
        with Image.open(io.BytesIO(row) if isinstance(row, bytes) else row) as image:
            with suppress(Exception):  # tags that are broken say nothing
                ImageOps.exif_transpose(image, in_place=True)
            return _in_8_bits(image)
    except MemoryError:
        raise
    except Exception as error:  # a broken file makes the decoders raise nearly anything
        what = f"{row} " if isinstance(row, str | Path) else ""
        raise RowError(index, f"{what}cannot be read as an image ({error}): mend or remove it") from None


def _in_8_bits(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        tags = getattr(image, "tag_v2", {})  # of TIFF files, whose grey may have 12 bits, and may count from white
        most = 2 ** min(tags.get(BITS, (16,))[0], 16) - 1
        grey = (np.asarray(image).astype(np.uint32) * 255 + most // 2) // most
        return Image.fromarray((255 - grey if tags.get(PHOTOMETRIC) == 0 else grey).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):  # Pillow would cut off everything above 255
        raise ValueError("its pixels are numbers of 32 bits, of which nobody knows the range; save it in 8 or 16 bits")
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")
    return image.convert("RGB")
