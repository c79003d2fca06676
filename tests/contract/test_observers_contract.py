"""What every observer promises, checked for all that are registered: a new file is tested by itself.

Each observes a few small simulations all by itself, with ``run.observe`` naming it: those that want it, and the others.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from duals import NAMES, bert_folder, texts_of
from fedkeel import api
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import State, from_settings
from fedkeel.core.tree import digest
from fedkeel.core.watch import SILENT
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.runs import simulate
from fedkeel.runs.checkpoint import Checkpoints
from fedkeel.runs.config import Experiment
from fedkeel.runs.events import EVENTS, Log, read
from fedkeel.runs.federation import assemble
from fedkeel.runs.observers.base import OBSERVERS, Observer, Round, Running, Simulation, observers_of

DIGITS = {"source": "digits", "limit": 120}
OWN_TESTS = {"kind": "iid", "clients": 3, "test": 0.3}
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "a head, the best round kept": {
        "data": DIGITS,
        "partition": {"kind": "iid", "clients": 3, "validation": 0.2},
        "method": {"name": "fedavg", "rounds": 2},
        "run": {"drift": True, "keep": "best"},
    },
    "heads of their own, tested by the clients": {
        "data": DIGITS,
        "partition": OWN_TESTS,
        "method": {"name": "oll", "rounds": 2},
        "run": {"evaluate": "federated"},
    },
    "networks of their own": {
        "data": {**DIGITS, "encoder": "cnn"},
        "partition": OWN_TESTS,
        "method": {"name": "fedbn", "rounds": 2, "batch": 8},
    },
    "a dual encoder": {
        "partition": OWN_TESTS,
        "method": {"name": "fedpurel", "rounds": 2, "batch": 8, "personal_epochs": 1},
        "run": {"drift": True},
    },
}
"""Together they ask for everything that a run can be asked to observe."""
ALWAYS = {"start", "resume", "exchange", "end"}
"""Events that no observer writes."""


@cache
def files() -> Path:
    """Where encoded features are kept, and the texts that a dual encoder reads."""
    folder = Path(tempfile.mkdtemp(prefix="fedkeel-observed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    labels = [k % len(NAMES) for k in range(40)]
    lines = [f"{text},{NAMES[label]}" for text, label in zip(texts_of(labels), labels, strict=True)]
    (folder / "texts.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return folder


def experiment(run: str, name: str) -> Experiment:
    sections = RUNS[run]
    texts = {"source": f"csv:{files() / 'texts.csv'}", "encoder": f"hf:{bert_folder()}"}
    data = {**sections.get("data", texts), "cache": str(files())}
    asked = {**sections.get("run", {}), "observe": [name] if name else []}
    return api.experiment(**{**sections, "data": data, "run": asked})


@cache
def rows(run: str) -> Dataset:
    return load(experiment(run, "").data)


class Killed(BaseException):
    """No exception that a run could answer by writing down how far it is."""


@dataclass(frozen=True)
class Stop:
    """Where a run ends too early, and how: before or after its observers are told of a round, or of the end."""

    when: str
    of: int | str
    how: type[BaseException]


STOPS = [Stop("before", 1, KeyboardInterrupt), Stop("after", 1, KeyboardInterrupt), Stop("after", 1, Killed),
         Stop("after", "end", KeyboardInterrupt)]  # fmt: skip


class Spy(Observer):
    """Told before or after the others, it notes all that the server and the clients hold, and stops the run."""

    def __init__(self, run: Running, when: str, stop: Stop | None) -> None:
        super().__init__(run)
        self.when, self.stop, self.states = when, stop, list[str]()

    def round_ended(self, round: Round, state: State) -> None:
        engine = self.run.simulated.engine
        own = {name: engine.mine(self.run.method, state, client) for name, client in engine.numbers.items()}
        private = {f"{name}/{key}": value for name, tree in own.items() for key, value in tree.items()}
        self.states.append(digest({**state.down, **private}))
        self.reached(round.number)

    def ended(self, state: State) -> dict[str, Any]:
        self.reached("end")
        return {}

    def reached(self, here: int | str) -> None:
        if self.stop is not None and (self.when, here) == (self.stop.when, self.stop.of):
            raise self.stop.how


def carry_out(run: str, name: str, folder: Path, observed: bool = True, stop: Stop | None = None) -> list[str]:
    """Run or continue in a folder, observed by one alone or by nobody; gives the states before and after it is told."""
    exp, spies = experiment(run, name), list[Spy]()

    def alone(running: Running) -> list[Observer]:
        spies.extend(Spy(running, when, stop) for when in ("before", "after"))
        wanted = [observer for observer in observers_of(running) if observed and observer.name == name]
        return [spies[0], *wanted, spies[1]]

    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, Checkpoints(folder, exp.digest()) as checkpoints:
        patch.setattr(simulate, "observers_of", alone)
        with Log(folder / EVENTS) as log:
            simulate.train(exp, assemble(exp, rows(run)), log, checkpoints, SILENT)
    return spies[0].states + spies[1].states


def wanting(name: str) -> list[str]:
    """The runs that want an observer."""
    return [run for run in RUNS if OBSERVERS[name].wanted(opened(run, name))]


def opened(run: str, name: str) -> Running:
    """A run before it begins."""
    exp = experiment(run, name)
    federation, method, nothing = assemble(exp, rows(run)), from_settings(exp.method), Any
    sites = federation.sites(0)
    engine = simulate.ENGINES[exp.run.engine](sites)
    seen = Simulation(federation, engine, federation.test_sets(sites))
    return Running(exp, method, engine, nothing, nothing, SILENT, None, seen)  # type: ignore[arg-type]


def events(folder: Path) -> list[dict[str, Any]]:
    def no_number(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return [json.loads(line, parse_constant=no_number) for line in (folder / EVENTS).read_text().splitlines()]


def told(folder: Path) -> dict[str, Any]:
    """The record of a run, without what takes time and how often it was continued."""
    record = asdict(read(folder))
    observed = {kind: found for kind, found in record.pop("observed").items() if kind != "resume"}
    del record["folder"]

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: timeless(item) for key, item in value.items() if not key.endswith("seconds")}
        return [timeless(item) for item in value] if isinstance(value, list) else value

    return {key: timeless(value) for key, value in {**record, **observed}.items()}


every_observer = pytest.mark.parametrize("name", sorted(OBSERVERS))


@every_observer
def test_some_run_wants_it(name: str) -> None:
    assert OBSERVERS[name].name == name
    assert wanting(name), f"no run in RUNS wants {name}: add one that does"


def test_an_observer_that_does_not_exist_is_told_before_the_run_begins() -> None:
    with pytest.raises(FedkeelError, match=r"run\.observe: unknown observer 'drft': did you mean 'drift'\?") as error:
        api.experiment(run={"observe": ["drft"]})
    assert "\n" not in str(error.value)


@every_observer
def test_it_knows_whether_it_is_wanted(name: str) -> None:
    """On a server of real sites as well; one that says nothing of it waits until ``run.observe`` names it."""
    cls = OBSERVERS[name]
    for run in RUNS:
        assert cls.wanted(replace(opened(run, name), simulation=None)) in (True, False)
        by_name = "wanted" not in {key for base in cls.__mro__[:-2] for key in vars(base)}
        assert not (by_name and cls.wanted(opened(run, "")))


@every_observer
def test_it_changes_nothing(name: str, tmp_path: Path) -> None:
    for number, run in enumerate(wanting(name)):
        bare = carry_out(run, name, tmp_path / f"bare-{number}", observed=False)
        assert carry_out(run, name, tmp_path / f"{number}") == bare
        assert not {event["event"] for event in events(tmp_path / f"bare-{number}")} - ALWAYS


@every_observer
def test_it_tells_something_where_it_is_wanted_and_nothing_elsewhere(name: str, tmp_path: Path) -> None:
    for number, run in enumerate(RUNS):
        carry_out(run, name, tmp_path / f"{number}")
        found = events(tmp_path / f"{number}")
        own = {event["event"] for event in found} - ALWAYS
        ended = found[-1].keys() - {"event", "digest", "model", "check", "kept_round"}
        assert bool(own or ended) == (run in wanting(name)), run


@every_observer
def test_a_run_that_was_interrupted_tells_the_same(name: str, tmp_path: Path) -> None:
    """Of what is told twice, the last counts: the record is that of a run without interruptions."""
    for number, run in enumerate(wanting(name)):
        carry_out(run, name, tmp_path / f"whole-{number}")
        for place, stop in enumerate(STOPS):
            folder = tmp_path / f"{number}-{place}"
            with pytest.raises(stop.how):
                carry_out(run, name, folder, stop=stop)
            carry_out(run, name, folder)
            assert told(folder) == told(tmp_path / f"whole-{number}"), stop
