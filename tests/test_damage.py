"""Run folders that were damaged or killed: the result is the one that was there, or one line says what to do.

Bits are flipped, files are cut and deleted, at ``FEDKEEL_DAMAGE`` places of each file (few by default). Whatever was
done, what can be read afterwards is what was written; and what the line names works.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkeel as fk
from fedkeel import api
from fedkeel.commands.page import with_twin
from fedkeel.commands.run import carry_out
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.loading import load
from fedkeel.data.manifest import Manifest
from fedkeel.runs import checkpoint, events
from fedkeel.runs.events import EVENTS
from fedkeel.runs.folder import begin, check, stored

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
        "best": run(home / "best", "scaffold", stop_at=2, keep="best"),
        "personalised": run(home / "personalised", "fedavg"),
    }
    api.personalize(made["personalised"], method="lp", set=LP, page=False)
    return made


@pytest.fixture
def opened(worlds: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a world."""
    shutil.copy(worlds["finished"].parent / "new.npz", tmp_path)
    return lambda world: Path(shutil.copytree(worlds[world], tmp_path / world))


# ---- what can be read of a folder


def resumed(folder: Path) -> fk.Result:
    exp = stored(folder)
    return carry_out(exp, folder, True, SILENT, lambda: load(exp.data), False)


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


def one_line(error: FedkeelError, folder: Path) -> None:
    assert "\n" not in str(error)
    assert str(folder) in str(error), error


def outcome(world: str, folder: Path) -> dict[str, Any]:
    """What every use of the folder gives, one after the other; one that is refused in one line gives nothing."""
    found = {}
    for name, use in USES[world].items():
        try:
            found[name] = use(folder)
        except FedkeelError as error:
            one_line(error, folder)
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


# ---- what the line names works

OTHER = "{folder}/config.toml --out OTHER runs it again"
AGAIN = "fedkeel run --out {folder} --resume"
DELETE = f"delete it, and {AGAIN} writes it again"
STRATEGY = "personal/lp_epochs=2"
REMEDIES = {
    "summary": ("finished", "summary.json", "summary as it is", f"is damaged (its seal is broken): {AGAIN} writes it"),
    "model": ("finished", "model.safetensors", "model as it is", f"is damaged or no fedkeel model: {AGAIN} makes it"),
    "own": ("finished", "clients/client-001.safetensors", "a client as it is", f"is damaged: delete it, and {AGAIN}"),
    "checkpoint": ("interrupted", "journal/000002-00.safetensors", "resumed", "delete it, and --resume continues from"),
    "config": ("finished", "config.toml", "resumed", f"restore it; or {DELETE}"),
    "config before": ("interrupted", "config.toml", "resumed", f"restore it; or {DELETE}"),
    "manifest": ("finished", "manifest.json", "resumed", f"is damaged: {DELETE}"),
    "manifest before": ("interrupted", "manifest.json", "resumed", f"is damaged: {DELETE}"),
    "events": ("finished", EVENTS, "record as it is", f"is not as it was written: fedkeel run {OTHER}"),
    "events before": ("interrupted", EVENTS, "resumed", f"is not as it was written: fedkeel run {OTHER}"),
    "store": ("interrupted", "journal/private.sqlite", "resumed", "run again with another --out"),
    "best": ("best", "journal/best.safetensors", "resumed", f"is damaged: fedkeel run {OTHER}"),
    "personal": ("personalised", f"{STRATEGY}/clients/client-001.safetensors", "a client", "delete it, and fedkeel"),
    "strategy": ("personalised", f"{STRATEGY}/config.toml", "a client", "delete it, and the same fedkeel personalize"),
    "of it": ("personalised", f"{STRATEGY}/{EVENTS}", "a client", f"delete {{folder}}/{STRATEGY}, and fedkeel"),
}


def middle_flipped(path: Path) -> None:
    """All of a piece in the middle, which in a database is sure to hold something."""
    data = bytearray(path.read_bytes())
    at = len(data) // 3
    data[at : at + max(1, len(data) // 3 if path.suffix == ".sqlite" else 1)] = b"~"
    path.write_bytes(data)


@pytest.mark.parametrize("case", REMEDIES)
def test_the_remedy_works(
    case: str, opened: Callable[[str], Path], sound: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    world, file, use, line = REMEDIES[case]
    folder = opened(world)
    before = (folder / file).read_bytes()
    middle_flipped(folder / file)
    with pytest.raises(FedkeelError) as told:
        USES[world][use](folder)
    assert line.format(folder=folder) in str(told.value)
    assert str(folder / file) in str(told.value)
    if "OTHER" in line or "another --out" in line:
        exp = api.experiment(folder / "config.toml")
        done = carry_out(exp, tmp_path / "other", False, SILENT, lambda: load(exp.data), False)
        assert timeless(done.summary) == sound[world]["resumed"]
        return
    if "delete {folder}" in line:
        shutil.rmtree((folder / file).parent)
    elif "delete it" in line:
        (folder / file).unlink()
    again = {"personalised": "made again"}.get(world, "resumed")
    assert USES[world][again](folder) == sound[world][again]
    assert outcome(world, folder) == sound[world]
    if file in ("config.toml", "manifest.json", f"{STRATEGY}/config.toml"):
        assert (folder / file).read_bytes() == before


def test_a_deleted_model_does_not_lead_in_a_circle(
    opened: Callable[[str], Path], sound: dict[str, dict[str, Any]]
) -> None:
    folder = opened("finished")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FedkeelError, match=f"there is no .*: fedkeel run --out {folder} --resume makes it"):
        predicted(folder)
    resumed(folder)
    assert predicted(folder) == sound["finished"]["model"]


@pytest.mark.parametrize("world", ["finished", "interrupted"])
@pytest.mark.parametrize("file", [EVENTS, "manifest.json", "config.toml"])
def test_a_file_of_another_run_is_told(file: str, world: str, opened: Callable[[str], Path]) -> None:
    """Sound in itself."""
    folder, other = opened(world), opened("personalised")
    if file == "manifest.json":
        api.partition(stored(folder), set=["run.seed=5"]).manifest.save(other / file)
    shutil.copy(other / file, folder / file)
    with pytest.raises(FedkeelError, match=str(folder)):
        resumed(folder)


def test_the_settings_of_another_run_are_told_where_nothing_else_differs(opened: Callable[[str], Path]) -> None:
    """Three rounds or five: the data, the split and the method's code are the same."""
    folder = opened("interrupted")
    exp = stored(folder).with_values({"method.rounds": 5})
    begin(folder.parent / "other", exp, Manifest.load(folder / "manifest.json"))
    shutil.copy(folder.parent / "other" / "config.toml", folder)
    for saved in (folder / "journal").iterdir():
        saved.unlink()
    with pytest.raises(FedkeelError, match=r"events\.jsonl is of another configuration than config\.toml"):
        resumed(folder)


def test_without_what_clients_kept_a_run_does_not_go_on(opened: Callable[[str], Path]) -> None:
    folder = opened("best")
    (folder / "journal" / "private.sqlite").unlink()
    with pytest.raises(FedkeelError, match=rf"private\.sqlite, .* is gone: fedkeel run {folder}/config.toml"):
        resumed(folder)


def test_the_model_of_another_client_is_told(opened: Callable[[str], Path]) -> None:
    folder = opened("finished")
    shutil.copy(folder / "clients" / "client-002.safetensors", folder / "clients" / "client-001.safetensors")
    with pytest.raises(FedkeelError, match=r"client-001\.safetensors is of another client: delete it, and fedkeel run"):
        predicted(folder, client="client-001")


def test_a_model_of_another_run_is_told_and_replaced(
    opened: Callable[[str], Path], sound: dict[str, dict[str, Any]]
) -> None:
    folder = opened("finished")
    shutil.copy(opened("personalised") / "model.safetensors", folder)
    with pytest.raises(
        FedkeelError, match=f"is not the one that {folder} ended with: fedkeel run --out {folder} --res"
    ):
        predicted(folder)
    resumed(folder)
    assert predicted(folder) == sound["finished"]["model"]


def test_a_record_that_was_cut_before_the_checkpoint_is_told_and_stays_as_it_is(opened: Callable[[str], Path]) -> None:
    folder = opened("interrupted")
    lines = (folder / EVENTS).read_bytes().splitlines(keepends=True)
    (folder / EVENTS).write_bytes(b"".join(lines[:4]))
    with pytest.raises(FedkeelError, match=r"it ends before the checkpoint in journal/: fedkeel run .*OTHER"):
        resumed(folder)
    assert (folder / EVENTS).read_bytes() == b"".join(lines[:4])


@pytest.mark.parametrize("change", ["swapped", "doubled", "dropped"])
def test_lines_that_are_whole_but_not_in_their_place_are_told(change: str, opened: Callable[[str], Path]) -> None:
    folder = opened("finished")
    lines = (folder / EVENTS).read_bytes().splitlines(keepends=True)
    lines[3:5] = {"swapped": [lines[4], lines[3]], "doubled": [lines[3], lines[3]], "dropped": [lines[4]]}[change]
    (folder / EVENTS).write_bytes(b"".join(lines))
    with pytest.raises(FedkeelError, match=rf"line {5 if change == 'doubled' else 4} is not as it was written"):
        events.read(folder)


def test_a_run_of_an_older_fedkeel_is_told(opened: Callable[[str], Path], tmp_path: Path) -> None:
    """Its config.toml has no seal and its lines no checks."""
    folder = opened("finished")
    config, log = folder / "config.toml", folder / EVENTS
    config.write_text(config.read_text().partition("\n")[2])
    log.write_bytes(b"".join(line.rpartition(b',"check"')[0] + b"}\n" for line in log.read_bytes().splitlines()))
    (folder / "summary.json").unlink()
    for read in (stored, events.read):
        with pytest.raises(FedkeelError, match=rf"is of an older fedkeel: fedkeel run {config} --out OTHER"):
            read(folder)
    exp = api.experiment(config)
    carry_out(exp, tmp_path / "other", False, SILENT, lambda: load(exp.data), False)


# ---- neighbours


def test_a_damaged_neighbour_is_passed_over_with_a_notice(opened: Callable[[str], Path]) -> None:
    folder, beside, told = opened("finished"), opened("personalised"), list[str]()
    flipped(beside / EVENTS, 0.5)
    record = events.read(folder)
    assert with_twin(record, Watch(notice=told.append)) == [record]
    assert len(told) == 1
    assert str(beside / EVENTS) in told[0]
    flipped(beside / EVENTS, 0.5)
    flipped(beside / STRATEGY / EVENTS, 0.5)
    told.clear()
    api.report([beside], out=folder.parent / "page.html", watch=Watch(notice=told.append))
    assert sum(str(beside / STRATEGY / EVENTS) in text for text in told) == 1


# ---- born whole


def born(folder: Path, seed: int = 0) -> None:
    exp = api.experiment(data=DIGITS, partition=SPLIT, run={"seed": seed})
    check(folder, exp, resume=True)
    begin(folder, exp, api.partition(exp).manifest)


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Do the work in another process, which is killed before its nth step on the disk; whether it came so far."""
    child = os.fork()
    if not child:
        left = step

        def count(event: str, *given: Any) -> None:
            nonlocal left
            if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.fsync"):
                left -= 1
                if left < 0:
                    os._exit(9)

        fsync = os.fsync
        os.fsync = lambda handle: (count("os.fsync"), fsync(handle))[1]  # type: ignore[assignment]
        sys.addaudithook(count)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("there", [False, True])
def test_killed_at_any_step_of_its_birth_a_folder_is_not_there_or_whole(there: bool, tmp_path: Path) -> None:
    """Or it is empty as before, if somebody made it; and whatever is then begun in it is what is in it."""
    exp = api.experiment(data=DIGITS, partition=SPLIT)
    manifest = api.partition(exp).manifest
    steps, killed = 0, True
    while killed:
        folder = tmp_path / f"{steps}" / "run"
        if there:
            folder.mkdir(parents=True)
        killed = killed_at(steps, lambda folder=folder: begin(folder, exp, manifest))
        whole = (folder / "config.toml").exists()
        assert whole <= (folder / "manifest.json").exists()
        assert whole or there or not folder.exists()
        assert not whole or stored(folder) == exp
        if not whole:
            born(folder, seed=1)
            assert stored(folder).run.seed == 1
        else:
            born(folder)
            with pytest.raises(FedkeelError, match=r"holds a run with another run.seed"):
                born(folder, seed=1)
        assert sorted(path.name for path in folder.glob("[!.]*")) == ["config.toml", "manifest.json"]
        assert not list(folder.parent.glob(".*.partial"))
        steps += 1
    assert steps > 10


def test_a_folder_that_lost_its_config_is_not_taken_for_another_run(opened: Callable[[str], Path]) -> None:
    folder = opened("finished")
    (folder / "config.toml").unlink()
    exp = api.experiment(data=DIGITS, partition=SPLIT, method={"name": "ridge"})
    for resume, line in ((False, "already holds a run"), (True, r"holds a run with another method\.name")):
        with pytest.raises(FedkeelError, match=line):
            carry_out(exp, folder, resume, SILENT, lambda: load(exp.data), False)


def test_what_killed_processes_left_is_cleared_away_and_what_others_write_is_not(opened: Callable[[str], Path]) -> None:
    from fedkeel.core.atomic import hold

    folder = opened("interrupted")
    left = [folder / name for name in (".model.safetensors.7.partial", "journal/.x.7.partial", "clients/.a.7.partial")]
    (folder / "clients").mkdir()
    for path in (*left, folder / ".report.html.8.partial"):
        path.write_bytes(b"half")
    with (folder / ".report.html.8.partial").open() as held:
        assert hold(held.fileno())
        resumed(folder)
    assert not any(path.exists() for path in left)
    assert (folder / ".report.html.8.partial").exists()
