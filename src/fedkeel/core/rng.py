"""Keyed randomness: every draw belongs to a key, so order does not matter and there is nothing to save."""

from __future__ import annotations

import json
from hashlib import blake2b

import numpy as np


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """The generator of one purpose, e.g. ``generator(seed, "cohort", round)``.

    The same seed and key always give the same numbers; any other key gives independent ones.
    """
    digest = blake2b(json.dumps([seed, *key]).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8")))
