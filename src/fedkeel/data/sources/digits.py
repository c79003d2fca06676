"""scikit-learn's handwritten digits; fedkeel's smallest real task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.data.sources.base import Source, register

SHA256 = "7160db74a3333ecfbdf632845a46e5e209fcaf8fc08ccb132a540003282b055d"
"""Of images and labels."""


@register({"digits": "1,797 handwritten digits of 8 x 8 pixels, from scikit-learn"})
class Digits(Source):
    source: str = "digits"

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """Grey images, their one channel three times."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
        labels = digits.target.astype(np.int64)
        fingerprint = digest([grey, labels])
        if fingerprint != SHA256:
            raise FedkeelError("scikit-learn's digits are not those that fedkeel knows: install scikit-learn again")
        return Dataset(
            name="digits",
            kind="images",
            train=np.repeat(grey[..., None], 3, axis=3),
            train_labels=labels,
            test=np.empty((0, 8, 8, 3), dtype=np.uint8),
            test_labels=labels[:0],
            class_names=tuple("0123456789"),
            fingerprint=fingerprint,
            encoder="pixels",
        )
