"""An experiment as one frozen value: the TOML file, the --set overrides and the Python keywords are the same thing."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, field_validator

from fedkeel.core.errors import FedkeelError, shortened, unknown
from fedkeel.core.method import METHODS, from_settings, settings
from fedkeel.core.settings import Open, Section
from fedkeel.data.shifts import Shift
from fedkeel.data.sources.base import SOURCES, Source
from fedkeel.data.splits.base import SPLITS, Split
from fedkeel.metrics.drift import measurable

DEFAULT_METHOD = "ova-lp"
OPEN: dict[str, type[Open]] = {"data": Source, "partition": Split}
"""Sections that have settings of the source or the kind of split they name."""
Model = TypeVar("Model", bound=BaseModel)
LONGEST_FILE = 1 << 20
Said = dict[str, Any]
"""Sections with some of their keys."""


class Run(Section):
    seed: int = Field(0, ge=0, le=2**63 - 1)
    engine: Literal["local", "wire", "flower"] = "local"
    """local is the fast one, wire puts every message through bytes, flower is that of a server of real sites"""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads; 0 = all cores"""
    keep: Literal["last", "best"] = "last"
    """the finished model: after the last round, or after the round that is best on the clients' validation rows"""
    evaluate: Literal["central", "federated"] = "central"
    """where models are tested: on the server's test rows, or by every client on its own, of which only sums leave"""
    observe: tuple[str, ...] = ()
    """further observers of the run, by name"""
    drift: bool = False
    """measure after every round how far clients pull apart (linear heads) or leave zero-shot (dual encoders)"""
    lost: int = Field(3, ge=1)
    """times in a row that a round may be lost, nobody's update accepted, before the run stops"""

    @field_validator("observe", mode="before")
    @classmethod
    def _one_name(cls, names: Any) -> Any:
        """``--set run.observe=moved`` names one."""
        return (names,) if isinstance(names, str) else names


class Report(Section):
    """How reports of a run read its events: no result depends on it."""

    head: int = Field(100, ge=0)
    """classes with more training rows than this, over all clients, are head classes"""
    tail: int = Field(20, ge=0)
    """classes with at most so many are tail classes; mid is what is between"""
    balance_scale: float = Field(10.0, gt=0)
    """how fast balancedness falls with the differences between the accuracies of classes"""


class Experiment(Section):
    """Everything a run depends on. ``method`` is open here: the named method's own model checks it."""

    data: SerializeAsAny[Source] = Field(default_factory=Source.of)
    shift: Shift = Shift()
    partition: SerializeAsAny[Split] = Field(default_factory=Split.of)
    method: dict[str, Any] = Field(default_factory=lambda: {"name": DEFAULT_METHOD})
    run: Run = Run()
    report: Report = Report()

    def digest(self) -> str:
        """sha256 of the complete configuration, leaving out what cannot change a result."""
        plain = self.model_dump(mode="json", exclude={"data": {"cache"}, "run": {"lost"}, "report": True})
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        """The complete configuration; reading it back gives an equal experiment."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    def with_values(self, values: Mapping[str, Any]) -> Experiment:
        """A copy with some dotted keys set, e.g. ``{"run.seed": 42}``."""
        return build(nested(values), base=self.said())

    def with_texts(self, overrides: Iterable[str]) -> Experiment:
        """A copy with ``key=value`` texts applied, as --set gives them."""
        changes = dict(assignment(text) for text in overrides)
        return build(nested(changes), base=self.said(), where="--set") if changes else self

    def said(self) -> Said:
        """All sections, without the defaults of what has a name: what is named instead has defaults of its own."""
        own = from_settings(self.method).model_dump(exclude_defaults=True)
        named = {"data": self.data.said(), "partition": self.partition.said()}
        return {**self.model_dump(), **named, "method": {"name": self.method["name"], **own}}


def load(path: str | Path | None, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment of a TOML file (None: all defaults) with ``key=value`` overrides on top."""
    experiment = build({}, base=_plain(path), where=str(path))
    overrides = list(overrides)
    return build({}, base=given(path, overrides), where="--set") if overrides else experiment


def given(config: str | Path | Experiment | None, overrides: Iterable[str] = ()) -> Said:
    """What a file or value and ``key=value`` texts say, without the defaults of what they leave out.

    A method that is chosen later then comes with its own defaults instead of those of another one.
    """
    said = config.said() if isinstance(config, Experiment) else _plain(config)
    return laid(said, nested(dict(assignment(text) for text in overrides)))


def _plain(path: str | Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            text = file.read(LONGEST_FILE + 1)
        if len(text) > LONGEST_FILE:
            raise FedkeelError(f"{path} has more than {LONGEST_FILE:,} bytes: expected a config, which is a short text")
        return _parsed(text.decode("utf-8-sig").replace("\r\n", "\n"))
    except FileNotFoundError:
        raise FedkeelError(f"there is no config file {path}") from None
    except ValueError as error:
        raise FedkeelError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise FedkeelError(f"{path} cannot be read: {error.strerror}") from None


def _parsed(text: str) -> dict[str, Any]:
    """What TOML reads; a ValueError says what it cannot, a number of 100,000 digits or brackets as deep among it."""
    if re.search(r"(\.\s*[\w-]+\s*){100}", text):  # tomllib takes minutes
        raise ValueError("a key of 100 parts and more")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def build(changes: Mapping[str, Any], base: Mapping[str, Any] | None = None, where: str = "config") -> Experiment:
    """An experiment from nested sections laid over others; every key and value is checked, the method's too."""
    experiment = checked(Experiment, laid(base or {}, changes), where)
    named = METHODS[str(experiment.method.get("name", DEFAULT_METHOD))]
    fields = {key: value for key, value in experiment.method.items() if key != "name"}
    method = checked(named, fields, where, prefix="method.")
    if experiment.run.keep == "best":
        if not experiment.partition.validation:
            raise FedkeelError(
                f"{where}: run.keep is 'best', but clients hold no rows back to judge by: set partition.validation, "
                "e.g. 0.1"
            )
        if method.personal:
            raise FedkeelError(f"{where}: run.keep is 'best', but {method.name} has personal models: set it to 'last'")
    if (experiment.run.engine == "flower") != experiment.data.source.startswith("sites:"):
        raise FedkeelError(
            f"{where}: run.engine = 'flower' is that of real sites, set up by fedkeel deploy init: choose local or wire"
        )
    head, tail = experiment.report.head, experiment.report.tail
    if tail > head:
        raise FedkeelError(f"{where}: report.tail is {tail}, above report.head, {head}: make it the smaller one")
    if experiment.run.drift:
        measurable(method)
    if experiment.run.observe:
        _must_be_observers(experiment.run.observe, where)
    return experiment.model_copy(update={"method": settings(method)})


def _must_be_observers(names: Iterable[str], where: str) -> None:
    from fedkeel.runs.observers.base import OBSERVERS  # observers read configs

    for name in names:
        if name not in OBSERVERS:
            raise FedkeelError(f"{where}: run.observe: {unknown('observer', name, OBSERVERS)}")


def laid(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Said:
    """Sections laid over others, key by key.

    Another method, source or kind of split drops the settings that only the old one has.
    """
    return {**base, **{name: _laid_over(name, base.get(name) or {}, values) for name, values in changes.items()}}


def _laid_over(section: str, before: Mapping[str, Any], values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        if section not in Experiment.model_fields:
            raise unknown("key", section, _keys())
        raise FedkeelError(_section_wanted(section))
    if section in OPEN or section == "method":
        old, new = _fields(section, before), _fields(section, {**before, **values})
        before = {key: value for key, value in before.items() if key in new or key not in old}  # drop the old one's own
    return {**before, **values}


def _section_wanted(section: str) -> str:
    example = next(key for key in _keys() if key.startswith(f"{section}."))
    return f"{section} is a section: set one of its keys, e.g. {example}"


def _fields(section: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the method, source or kind of split that is named."""
    if section in OPEN:
        return OPEN[section].named(settings).model_fields
    return METHODS[str(settings.get("name", DEFAULT_METHOD))].model_fields


def _keys() -> list[str]:
    """Every dotted key outside of a method's own."""
    sections: dict[str, Iterable[type[Section]]] = {"data": SOURCES.values(), "shift": [Shift]}
    sections |= {"partition": SPLITS.values(), "run": [Run], "report": [Report]}
    found = ["method.name", "method.rounds", "method.participation"]
    found += [f"{name}.{key}" for name, models in sections.items() for model in models for key in model.model_fields]
    return list(dict.fromkeys(found))


def checked(model: type[Model], values: Mapping[str, Any], where: str, prefix: str = "") -> Model:
    """The model with these values; a key or value it does not take is told in one line."""
    try:
        model_of_them = model.model_validate(values)
        _no_truth_for_a_number(values, model_of_them, where, prefix)
        return model_of_them
    except ValidationError as error:
        first = error.errors()[0]
        key = prefix + ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [f"{prefix}{field}" for field in model.model_fields] if prefix else _keys()
            raise FedkeelError(f"{where}: {_elsewhere(key, values) or unknown('key', key, known)}") from None
        wrong = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # of keys that do not go together
            raise FedkeelError(f"{where}: {wrong}") from None
        if key in Experiment.model_fields:
            raise FedkeelError(f"{where}: {_section_wanted(key)}") from None
        got = shortened(repr(first["input"]))
        raise FedkeelError(f"{where}: {key} is {got}: {wrong[0].lower()}{wrong[1:]}") from None


def _no_truth_for_a_number(values: Mapping[str, Any], model: BaseModel, where: str, prefix: str) -> None:
    """``run.seed=true`` would be seed 1."""
    for key, value in values.items():
        got = getattr(model, key, None)
        if isinstance(value, bool) and type(got) in (int, float):
            raise FedkeelError(f"{where}: {prefix}{key} is {str(value).lower()}: expected a number")
        if isinstance(value, Mapping) and isinstance(got, BaseModel):
            _no_truth_for_a_number(value, got, where, f"{prefix}{key}.")


def _elsewhere(key: str, sections: Mapping[str, Any]) -> str | None:
    """What to say of a setting that the source or the kind of split in use does not have, if others have it."""
    section, _, name = key.partition(".")
    if section not in OPEN:
        return None
    base = OPEN[section]
    having = [repr(one) for one, model in sorted(base.registry.items()) if name in model.model_fields]
    got = sections[section].get(base.naming, base.usual)
    told = f"{key} goes with {section}.{base.naming} = {', '.join(having)} only, not with {got!r}; leave it out"
    return told if having else None


def assignment(text: str) -> tuple[str, Any]:
    key, equals, value = must_be_utf8(text).partition("=")
    if not equals or not key.strip():
        raise FedkeelError(f"--set {text!r}: expected key=value, e.g. --set method.rounds=20")
    return key.strip(), value_of(value)


def must_be_utf8(text: str) -> str:
    """The text itself, if it can be written down: a command line may hold bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FedkeelError(f"{text!a} is not UTF-8 (at {text[error.start]!a}): type it anew") from None
    return text


def value_of(text: str) -> Any:
    """What TOML reads a text as, else the text itself; and {} is text, as no setting is a table."""
    try:
        value = _parsed(f"value = {text}")["value"]
    except ValueError:
        return text.strip()
    return text.strip() if isinstance(value, dict) else value


def nested(values: Mapping[str, Any]) -> Said:
    """Dotted keys as sections: {"run.seed": 42} -> {"run": {"seed": 42}}."""
    sections: Said = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if not dot:
            sections[section] = value
        elif isinstance(inside := sections.setdefault(section, {}), dict):  # else it is told that it is a section
            inside[name] = value
    return sections


def _without_none(value: Any) -> Any:
    """TOML has no null: a key that is not set is not written."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
