"""Whole runs through the Python API: what a folder holds, that the same config gives the same digest, and resuming."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedkeel as fk
from fedkeel.core.message import Down, Up, size
from fedkeel.core.tree import digest
from fedkeel.runs import checkpoint, events
from fedkeel.runs.config import load

SMALL = {
    "data": {"source": "digits"},
    "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.3},
    "method": {"name": "ova-lp", "rounds": 4},
}
SUMMARY_KEYS = {
    "method", "partition", "seed", "clients", "rounds", "accuracy", "accuracy_curve", "acc95_round", "bytes_up",
    "bytes_down", "seconds", "seconds_per_round", "digest",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fk.Result:
    return fk.run(out=tmp_path_factory.mktemp("runs") / "first", **SMALL)


def test_a_run_folder_holds_everything(finished: fk.Result) -> None:
    assert "of its IID accuracy" not in (finished.folder / "report.html").read_text(), "it has no twin"
    names = {path.name for path in finished.folder.iterdir()}
    files = {"config.toml", "manifest.json", "events.jsonl", "model.safetensors", "summary.json", "report.html"}
    assert files <= names
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert summary.keys() >= SUMMARY_KEYS
    assert len(summary["accuracy_curve"]) == summary["rounds"] == 4
    assert summary["accuracy"] == summary["accuracy_curve"][-1] > 0.6
    shared = {name: value for name, value in load_file(finished.folder / "model.safetensors").items() if "head" in name}
    assert digest(shared) == summary["digest"]


def test_the_written_config_runs_again_to_the_same_digest(finished: fk.Result, tmp_path: Path) -> None:
    again = fk.run(finished.folder / "config.toml", out=tmp_path / "again")
    assert again.digest == finished.digest
    assert again.curve == finished.curve
    assert again.summary["manifest"] == finished.summary["manifest"]


def test_another_seed_is_another_run(finished: fk.Result, tmp_path: Path) -> None:
    other = fk.run(out=tmp_path / "other", **SMALL, run={"seed": 1})
    assert other.digest != finished.digest
    assert other.summary["manifest"] != finished.summary["manifest"]


def test_the_engines_agree_on_a_whole_run(finished: fk.Result, tmp_path: Path) -> None:
    wire = fk.run(out=tmp_path / "wire", **SMALL, run={"engine": "wire"})
    ours, theirs = finished.model.shared, wire.model.shared
    for name, value in theirs.items():
        assert float((ours[name] - value).abs().max()) <= 1e-5 * float(value.abs().max())
    for key in ("bytes_up", "bytes_down", "rounds", "acc95_round"):
        assert finished.summary[key] == wire.summary[key]
    assert np.abs(np.subtract(finished.curve, wire.curve)).max() <= 1 / 300


def test_bytes_by_hand(finished: fk.Result) -> None:
    """Eight clients of ``client-00k``: one exchange of the mean (64 floats up), one that tells it (64 floats down),
    then four rounds of a head of 10 x 64 weights each way; headers as the codec makes them."""
    head = {"head.weight": torch.zeros(10, 64)}
    mean = {"mean": torch.zeros(64)}
    clients = finished.summary["clients"]
    exchanges = finished.record.exchanges
    active = [event["clients"] for event in exchanges]
    assert active == [clients] * 6
    run = load(finished.folder / "config.toml").digest()[:16]
    up = clients * size(Up(run, 0, "mean", "client-000", 1.0, mean))
    down = clients * (size(Down(run, 0, "mean", mean)) + size(Down(run, 0, "tell-mean", mean)))
    for phase in ("stage-1", "stage-2", "stage-2", "stage-2"):
        up += clients * size(Up(run, 1, phase, "client-000", 1.0, head))
        down += clients * size(Down(run, 1, phase, head))
    assert finished.summary["bytes_up"] == up
    assert finished.summary["bytes_down"] == down


def test_predict_repeats_the_test_accuracy(finished: fk.Result) -> None:
    from fedkeel.data.loading import load as load_source

    digits = load_source(load(finished.folder / "config.toml").data)
    classes, scores = finished.predict(digits.test)
    right = np.mean(np.array(classes) == np.array(digits.class_names)[digits.test_labels])
    assert right == pytest.approx(finished.accuracy, abs=0.003)  # float16 in the cache, float32 here
    assert ((scores > 0) & (scores <= 1)).all()


def test_save_and_load_the_model(finished: fk.Result, tmp_path: Path) -> None:
    finished.save(tmp_path / "model.safetensors")
    model = fk.Model.load(tmp_path / "model.safetensors")
    assert model.digest == finished.digest
    assert model.class_names == tuple("0123456789")


def test_a_finished_run_is_not_run_again(finished: fk.Result) -> None:
    before = (finished.folder / "events.jsonl").read_bytes()
    again = fk.run(out=finished.folder, resume=True)
    assert again.digest == finished.digest
    assert (finished.folder / "events.jsonl").read_bytes() == before
    assert "ova-lp" in finished.table()


CHILD = """
import sys, fedkeel as fk
from fedkeel.runs import checkpoint
checkpoint.EVERY = float(sys.argv[3])
fk.run(out=sys.argv[1], resume=len(sys.argv) > 4, data={"source": "digits"}, run={"engine": "wire"},
       partition={"kind": "dirichlet", "clients": 8, "alpha": 0.3}, method={"name": sys.argv[2], "rounds": 12})
"""


def child(folder: Path, method: str, every: float, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(folder), method, str(every), *more]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE)


def wait_for_round(folder: Path, round: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        log = folder / "events.jsonl"
        if log.exists() and log.read_text().count('"event":"round"') >= round:
            return
        time.sleep(0.005)
    pytest.fail(f"round {round} was never reached")


@pytest.mark.parametrize(("method", "every"), [("ova-lp", checkpoint.EVERY), ("scaffold", 0.0)])
def test_kill_9_at_any_moment_changes_nothing(method: str, every: float, tmp_path: Path) -> None:
    """With a checkpoint now and then, or after every exchange and with what clients keep for themselves."""
    whole = child(tmp_path / "whole", method, every)
    assert whole.wait(120) == 0
    reference = fk.Result.load(tmp_path / "whole")
    folder = tmp_path / "killed"
    for attempt, round in enumerate((2, 8)):
        process = child(folder, method, every, *(["resume"] if attempt else []))
        wait_for_round(folder, round)
        process.send_signal(signal.SIGKILL)
        process.wait()
    if not every:
        assert len(list((folder / "journal").glob("*.safetensors"))) >= checkpoint.KEEP
    assert child(folder, method, every, "resume").wait(120) == 0
    result = fk.Result.load(folder)
    assert result.digest == reference.digest
    assert result.curve == reference.curve
    for key in ("bytes_up", "bytes_down", "acc95_round", "manifest"):
        assert result.summary[key] == reference.summary[key]


def test_a_half_written_event_is_passed_over(finished: fk.Result, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes((finished.folder / "events.jsonl").read_bytes() + b'{"event":"round","rou')
    assert events.read(tmp_path).accuracy_curve == finished.curve
    with events.Log(log) as more:
        more.write("notice", text="after the crash")
    assert events.read(tmp_path).accuracy_curve == finished.curve
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["event"], last["text"]) == ("notice", "after the crash")


@pytest.mark.parametrize("kept", [0, 20])
def test_killed_while_the_first_event_was_written(kept: int, finished: fk.Result, tmp_path: Path) -> None:
    for name in ("config.toml", "manifest.json"):
        (tmp_path / name).write_bytes((finished.folder / name).read_bytes())
    (tmp_path / "events.jsonl").write_bytes((finished.folder / "events.jsonl").read_bytes()[:kept])
    assert fk.run(out=tmp_path, resume=True).digest == finished.digest


def interrupted(folder: Path) -> None:
    """A run that stopped after some rounds."""

    def stop(round: int, rounds: int, accuracy: float) -> None:
        if round == 2:
            raise KeyboardInterrupt

    with pytest.raises(fk.FedkeelError, match="--resume continues"):
        fk.run(out=folder, watch=fk.Watch(round=stop), **SMALL)


def test_ctrl_c_leaves_a_run_that_resume_continues(finished: fk.Result, tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    assert fk.run(out=tmp_path / "run", resume=True).digest == finished.digest


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_takes_over(
    finished: fk.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    interrupted(tmp_path / "run")
    _, newest = sorted((tmp_path / "run" / "journal").glob("*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1  # one flipped bit in the last number
    newest.write_bytes(data)
    with pytest.raises(fk.FedkeelError, match=rf"{newest.name} is damaged: delete it, and --resume continues"):
        fk.run(out=tmp_path / "run", resume=True)
    newest.unlink()
    assert fk.run(out=tmp_path / "run", resume=True).digest == finished.digest
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    rounds = [event["round"] for event in lines if event["event"] == "exchange" and event["round"]]
    assert rounds == [1, 2, 2, 3, 4], "the round of the damaged one is done again, and no more"


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95pickle", b"PK\x03\x04", bytes(range(64))])
def test_a_checkpoint_that_is_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    sorted((tmp_path / "run" / "journal").glob("*.safetensors"))[-1].write_bytes(content)
    with pytest.raises(fk.FedkeelError, match="is damaged"):
        fk.run(out=tmp_path / "run", resume=True)


def test_half_written_checkpoints_are_cleared_away(finished: fk.Result, tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    torn = tmp_path / "run" / "journal" / ".000003-00.safetensors.1234.partial"
    torn.write_bytes(b"half")
    assert fk.run(out=tmp_path / "run", resume=True).digest == finished.digest
    assert not torn.exists()


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    with (
        checkpoint.Checkpoints(tmp_path / "run", "held"),
        pytest.raises(fk.FedkeelError, match="in use by another run"),
    ):
        fk.run(out=tmp_path / "run", resume=True)


def test_a_changed_split_is_noticed(tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    other = fk.partition(**{**SMALL, "run": {"seed": 5}}).manifest
    manifest.unlink()
    other.save(manifest)
    with pytest.raises(fk.FedkeelError, match="the data or the split is not the one this run began with"):
        fk.run(out=tmp_path / "run", resume=True)


def test_compare_keeps_finished_cells(tmp_path: Path) -> None:
    grid = {"methods": ["fedavg", "ova-lp"], "partitions": ["shard-1", "iid"], "seeds": [0, 1]}
    small = {**SMALL, "method": {"rounds": 2}, "partition": {"clients": 10}}
    first = fk.compare(out=tmp_path, **grid, **small)
    assert len(first) == 8
    assert (tmp_path / "report.html").exists()
    skewed = next(result for result in first if result.summary["partition"] == "shard-1")
    assert "of its IID accuracy" in (skewed.folder / "report.html").read_text(), "set against its twin"
    times = {result.folder: (result.folder / "events.jsonl").stat().st_mtime_ns for result in first}
    (first[3].folder / "summary.json").unlink()  # as if it had been stopped just before the end
    again = fk.compare(out=tmp_path, **grid, **small)
    assert [result.digest for result in again] == [result.digest for result in first]
    untouched = [folder for folder in times if folder != first[3].folder]
    assert all((folder / "events.jsonl").stat().st_mtime_ns == times[folder] for folder in untouched)


def test_own_test_rows_and_label_noise(tmp_path: Path) -> None:
    result = fk.run(
        out=tmp_path / "run",
        data={"source": "digits"},
        shift={"noise": "symmetric", "noise_ratio": 0.3, "long_tail": 5},
        partition={"kind": "iid", "clients": 5, "test": 0.25, "validation": 0.1},
        method={"rounds": 3},
    )
    end = result.record.end
    assert end is not None
    assert end["per_client_basis"] == "own test rows"
    assert all(0 < value <= 1 for value in end["per_client"])
    assert result.accuracy > 0.6


def test_features_as_they_are_need_no_exchange(tmp_path: Path) -> None:
    raw = fk.run(out=tmp_path / "raw", **{**SMALL, "data": {"source": "digits", "features": "raw"}})
    assert [event["round"] for event in raw.record.exchanges] == [1, 2, 3, 4]
    assert raw.model.mean is None
    energy = raw.record.start["data"]["mean_energy"]
    assert energy > 0.5, "grey pixels have a large common mean"
    assert "centred" in (raw.folder / "report.html").read_text()


def test_public_names_exist() -> None:
    for name in fk.__all__:
        assert getattr(fk, name) is not None
    assert callable(fk.run)
    assert callable(fk.report), "a sub-package of the same name must not hide the function"
    with pytest.raises(AttributeError):
        fk.nothing  # noqa: B018
