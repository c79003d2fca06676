"""What is to be run: a file, a value or the defaults, with settings laid over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fedkeel.personal.strategy  # noqa: F401  who takes a strategy for a method is told what it is
from fedkeel.core.method import Method, settings
from fedkeel.runs.config import Experiment, build, given
from fedkeel.runs.config import load as load_config

Config = str | Path | Experiment | None


def experiment(config: Config = None, *, set: Iterable[str] = (), **sections: Any) -> Experiment:
    """The experiment of a file, of a value or of the defaults, with ``key=value`` texts and sections laid over it.

    ``experiment(method={"name": "fedavg", "rounds": 5}, run={"seed": 42})``; ``method`` may also be a Method.
    """
    texts = list(set)
    base = config.with_texts(texts) if isinstance(config, Experiment) else load_config(config, texts)
    return build(plain(sections), base=given(config, texts)) if sections else base


def plain(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings(value) if isinstance(value, Method) else value for name, value in sections.items()}
