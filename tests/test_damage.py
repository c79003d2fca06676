"""Run folders that were damaged or killed: the result is the one that was there, or one line says what to do.

Bits are flipped, files are cut and deleted at ``FEDKEEL_DAMAGE`` places of each file (few by default). Whatever was done,
what can be read afterwards is what was written; and what the line names works.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkeel as fk
from fedkeel import api
from fedkeel.commands.run import carry_out
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.loading import load
from fedkeel.runs import checkpoint, events

PLACES = int(os.environ.get("FEDKEEL_DAMAGE", "3"))
DIGITS: dict[str, Any] = {"source": "digits", "limit": 150}
SPLIT: dict[str, Any] = {"kind": "dirichlet", "clients": 3, "alpha": 1.0, "test": 0.3, "validation": 0.2}
UNREAD = {"lock", "report.html"}
"""Files that nothing reads."""
LP = ("method.epochs=2",)


def run(folder: Path, method: str, stop_at: int | None = None, **settings: Any) -> Path:
    """A run with a checkpoint after every exchange, and without a page; or one that is stopped after a round."""
    exp = api.experiment(data=DIGITS, partition=SPLIT, method={"name": method, "rounds": 3}, run=settings)

    def stop(round: int, rounds: int, accuracy: float) -> None:
        if round == stop_at:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "EVERY", 0.0)
        try:
            carry_out(exp, folder, False, Watch(round=stop), lambda: load(exp.data), False)
        except Stopped:
            assert stop_at is not None
    return folder


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of every kind, which tests copy: with private trees and personal models, the best round, a strategy."""
    home = tmp_path_factory.mktemp("worlds")
    np.savez(home / "new.npz", x=np.random.default_rng(0).random((20, 64), dtype=np.float32))
    made = {
        "finished": run(home / "finished", "oll"),
        "interrupted": run(home / "interrupted", "oll", stop_at=2),
        "best": run(home / "best", "fedavg", stop_at=2, keep="best"),
        "personalised": run(home / "personalised", "fedavg"),
    }
    api.personalize(made["personalised"], method="lp", set=LP, page=False)
    return made


@pytest.fixture
def opened(worlds: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a world."""
    return lambda world: Path(shutil.copytree(worlds[world], tmp_path / world))


# ---- what can be read of a folder


def resumed(folder: Path) -> fk.Result:
    exp = api.experiment(api_stored(folder))
    return carry_out(exp, folder, True, SILENT, lambda: load(exp.data), False)


def api_stored(folder: Path) -> Any:
    from fedkeel.runs.folder import stored

    return stored(folder)


def timeless(value: Any) -> Any:
    """Without what differs from run to run: times, and the seals of files."""
    if isinstance(value, dict):
        unlike = {"folder", "files", "sealed", "model", "observed"}
        kept = {key: item for key, item in value.items() if key not in unlike and "seconds" not in key}
        return {key: timeless(item) for key, item in kept.items()}
    return [timeless(item) for item in value] if isinstance(value, list | tuple) else value


def record_of(folder: Path) -> Any:
    return timeless(vars(events.read(folder)))


def summary_of(folder: Path) -> Any:
    return timeless(fk.Result.load(folder).summary)


def predicted(folder: Path, **whose: Any) -> str:
    return api.predict(folder, input=folder.parent / "new.npz", **whose)


def personal(folder: Path) -> Any:
    return timeless(vars(api.personalize(folder, method="lp", set=LP, page=False)))


Uses = dict[str, Callable[[Path], Any]]
READ: Uses = {"record": record_of, "summary": summary_of, "model": predicted}
RESUMED: Uses = {"resumed": lambda folder: timeless(resumed(folder).summary), **READ}
USES: dict[str, Uses] = {
    "finished": {
        **{f"{name} as it is": use for name, use in READ.items()},
        "a client as it is": lambda folder: predicted(folder, client="client-001"),
        **RESUMED,
        "a client": lambda folder: predicted(folder, client="client-001"),
    },
    "interrupted": {**RESUMED, "a client": lambda folder: predicted(folder, client="client-001")},
    "best": RESUMED,
    "personalised": {
        "a client": lambda folder: predicted(folder, client="client-001"),
        "made again": personal,
        "a client again": lambda folder: predicted(folder, client="client-001"),
        **RESUMED,
    },
}


def outcome(world: str, folder: Path) -> dict[str, Any]:
    """What every use of the folder gives, one after the other; of a use that is refused in one line there is nothing."""
    found = {}
    for name, use in USES[world].items():
        try:
            found[name] = use(folder)
        except FedkeelError as error:
            assert "\n" not in str(error)
            assert str(folder) in str(error), f"{name}: {error}"
            if name == "resumed" and world in ("interrupted", "best"):
                break  # there is nothing yet to be read
    return found


@pytest.fixture(scope="module")
def sound(worlds: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the folders give that nothing happened to."""
    home = tmp_path_factory.mktemp("sound")
    shutil.copy(worlds["finished"].parent / "new.npz", home)
    found = {name: outcome(name, Path(shutil.copytree(path, home / name))) for name, path in worlds.items()}
    assert all(found[name].keys() == uses.keys() for name, uses in USES.items())
    return found


# ---- every file, every kind of damage


def flipped(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    bit = min(int(at * 8 * len(data)), 8 * len(data) - 1)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def cut(path: Path, at: float) -> None:
    path.write_bytes(path.read_bytes()[: int(at * path.stat().st_size)])


def deleted(path: Path, at: float) -> None:
    path.unlink()


def places(how: Callable[[Path, float], None]) -> Iterator[float]:
    """Spread over a file by the golden ratio, so that more of them fill the gaps."""
    count = 1 if how is deleted else PLACES
    return ((number * 0.6180339887 + 0.37) % 1 for number in range(count))


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNREAD)


@pytest.mark.parametrize("how", [flipped, cut, deleted])
@pytest.mark.parametrize("world", USES)
def test_damage_is_told_or_changes_nothing(
    world: str, how: Any, worlds: dict[str, Path], sound: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copy(worlds[world].parent / "new.npz", tmp_path)
    for path in files_in(worlds[world]):
        for at in places(how):
            copy = Path(shutil.copytree(worlds[world], tmp_path / world))
            how(copy / path.relative_to(worlds[world]), at)
            for name, value in outcome(world, copy).items():
                assert value == sound[world][name], f"{path.name} {how.__name__} at {at}: {name}"
            shutil.rmtree(copy)
