"""What is to be run: a file, a value or the defaults, with settings laid over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fedkeel.personal.strategy  # noqa: F401  who takes a strategy for a method is told what it is
from fedkeel.core.method import Method, settings
from fedkeel.data.sources.arrays import Arrays
from fedkeel.runs.config import Experiment, build, given
from fedkeel.runs.config import load as load_config
from fedkeel.runs.variant import Variant

NAMING = {"method": "name", "partition": "kind"}
"""Sections that a name with settings may stand for."""
Config = str | Path | Experiment | None


def experiment(config: Config = None, *, set: Iterable[str] = (), **sections: Any) -> Experiment:
    """The experiment of a file, of a value or of the defaults, with ``key=value`` texts and sections laid over it.

    ``experiment(method={"name": "fedavg", "rounds": 5}, run={"seed": 42})``. ``method`` may also be a Method, it and
    ``partition`` may be a name with settings, ``"ova-lp:stages=1"``; ``data`` may be the name of a source, or rows: see
    ``Arrays``. Rows that name their clients are split by these, unless a kind of partition is given.
    """
    texts, sections = list(set), held(sections)
    base = config.with_texts(texts) if isinstance(config, Experiment) else load_config(config, texts)
    if not sections:
        return base
    said, changes = given(config, texts), plain(sections)
    rows = sections.get("data")
    if isinstance(rows, Arrays) and rows.named and "kind" not in said.get("partition", {}):
        changes = {**changes, "partition": {"kind": "column", **changes.get("partition", {})}}
    return build(changes, base=said)


def held(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with rows as ``Arrays``: as long as a command holds these, its experiment can read them."""
    rows = sections.get("data", {})
    return {**sections} if isinstance(rows, Mapping | str) else {**sections, "data": Arrays.of(rows)}


def plain(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Sections as a file has them."""
    return {name: _plain(name, value) for name, value in sections.items()}


def _plain(section: str, value: Any) -> Any:
    if isinstance(value, Method):
        return settings(value)
    if section == "data" and isinstance(value, Arrays | str):
        return {"source": value if isinstance(value, str) else value.source}
    if section in NAMING and isinstance(value, str):
        variant = Variant.parse(value)
        return {NAMING[section]: variant.name, **variant.settings}
    return value
