"""Rows that are images, wherever they are kept."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedkeel.core.errors import FedkeelError


class RowError(FedkeelError):
    """A row that cannot be read or encoded; ``index`` is its position among the rows given."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def open_image(row: Any, index: int) -> Image.Image:
    """A row as an RGB image, whether it is a path, the bytes of an image file or an array."""
    try:
        if isinstance(row, np.ndarray):
            return Image.fromarray(row).convert("RGB")
        with Image.open(io.BytesIO(row) if isinstance(row, bytes) else row) as image:
            return image.convert("RGB")
    except Exception as error:  # a broken file makes the decoders raise nearly anything
        what = f"{row} " if isinstance(row, str | Path) else ""
        raise RowError(index, f"{what}cannot be read as an image ({error}): mend or remove it") from None
