"""Names of classes in plain words, for encoders that read them; the user's own come before all others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedkeel.core.errors import FedkeelError, shortened, unknown
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import read_lines

NUMBERED = re.compile(r"^(n\d{8}[-_ ]+|\d+\.\s*(?=[^\W\d]))")
"""What datasets put before a name: a WordNet id (n02085620-Chihuahua) or a number (001.Black_footed_Albatross)."""
ALIKE = {"n02012849": "crane bird", "n03126707": "construction crane"}
"""WordNet ids that have one name and no other, and what the class names of CLIP's authors call them."""


def clean(name: str) -> str:
    """The name of a class, or of its folder, as one would say it; a name that holds no words stays as it is."""
    return " ".join(NUMBERED.sub("", name).replace("_", " ").split()) or name


def in_words(names: Sequence[str]) -> Sequence[str]:
    """All names as one would say them, if they are then still told apart."""
    said = [clean(name) for name in names]
    return said if len({*said}) == len({*names}) else names


def of_wordnet(words: Mapping[str, str]) -> list[str]:
    """What to call WordNet ids, of which lists say ``tench, Tinca tinca``: the first name, where no other id has it.

    Else all of its names together, and the id with them where that does not tell them apart. Large and small letters
    are alike: encoders read them so.
    """
    first = [clean(said.partition(",")[0]) for said in words.values()]
    more = [_together(said.split(",")) for said in words.values()]
    more = [ALIKE.get(wnid, name) if other == name else other
            for wnid, name, other in zip(words, first, more, strict=True)]  # fmt: skip
    names = [name if one else other for name, other, one in zip(first, more, _alone(first), strict=True)]
    return [name if one else f"{name} ({wnid})" for wnid, name, one in zip(words, names, _alone(names), strict=True)]


def _alone(names: Sequence[str]) -> list[bool]:
    """Of each name whether nobody else has it."""
    count = Counter(map(str.casefold, names))
    return [count[name.casefold()] == 1 for name in names]


def _together(names: Iterable[str]) -> str:
    """All names of one thing, without those whose words another has: of Cardigan, Cardigan Welsh corgi the longer."""
    found = [f" {clean(name)} " for name in names if name.strip()]
    return " ".join(name.strip() for name in found if not any(name != other and name in other for other in found))


def renamed(dataset: Dataset, path: Path) -> Dataset:
    """The dataset with its classes called as a file says.

    It has one name in each line, as many as there are classes and in their order; or an old name, a tab and a new one,
    for those classes that are to be called otherwise.
    """
    lines, before = read_lines(path), dataset.class_names
    names = [line for _, line in lines]
    if any("\t" in name for name in names):
        names = list(before)
        for place, line in lines:
            old, _, new = (part.strip() for part in line.partition("\t"))
            if not new or "\t" in new:
                raise FedkeelError(
                    f"{path} {place} is {shortened(line, 100)!r}: expected an old name, a tab, a new one"
                )
            if old not in before:
                raise unknown(f"class in {path} {place}:", old, before)
            names[before.index(old)] = new
    elif len(names) != len(before):
        raise FedkeelError(
            f"{path} has {len(names):,} names, {dataset.name} has {len(before):,} classes ({shortened(before[0], 50)} "
            f"... {shortened(before[-1], 50)}): expected one for each, in this order, or lines with an old name, a tab "
            "and a new one"
        )
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise FedkeelError(f"{path} calls two classes {shortened(twice, 100)!r}: expected a name of its own for each")
    return replace(dataset, class_names=tuple(names))
