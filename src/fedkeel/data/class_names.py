"""Names of classes in plain words, for encoders that read them."""

from __future__ import annotations

import re

NUMBERED = re.compile(r"^(n\d{8}[-_ ]+|\d+\.\s*(?=[^\W\d]))")
"""What datasets put before a name: a WordNet id (n02085620-Chihuahua) or a number (001.Black_footed_Albatross)."""


def clean(name: str) -> str:
    """The name of a class, or of its folder, as one would say it; a name that holds no words stays as it is."""
    return " ".join(NUMBERED.sub("", name).replace("_", " ").split()) or name
