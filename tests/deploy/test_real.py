"""Real processes: SuperLink, server and sites over TLS with keys; killed, and to the bit what a simulation gives."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch

import real
from fedkeel.api import personalize
from fedkeel.runs.model import Model
from real import Real

LONG = pytest.mark.long


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedkeel", *words], capture_output=True, text=True, timeout=400, check=False
    )


def same_files(one: Path, other: Path) -> bool:
    return sha256(one.read_bytes()).digest() == sha256(other.read_bytes()).digest()


def test_killed_one_after_the_other_it_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    """SCAFFOLD, whose sites keep something of their own; then each personalises for itself."""
    exp = real.of("method.name=scaffold", "method.rounds=4", "method.epochs=1")
    expected = real.simulated(exp, tmp_path / "wire")
    with Real(tmp_path / "real", exp) as processes:
        processes.start(*processes.names, "server")
        processes.until(lambda: "waiting" in processes.log("server"), "a server that waits for its SuperLink")
        processes.start("superlink")
        for done, victim in enumerate(("server", processes.names[1], "superlink"), 1):
            processes.until(lambda done=done: len(processes.events("exchange")) > done, "an exchange")
            processes.kill(victim)
            processes.start(victim)
        summary = processes.finished()
        assert summary["digest"] == expected.digest
        assert summary["accuracy_curve"] == expected.summary["accuracy_curve"]
        assert len(processes.events("exchange")) <= 5 + 1, "at most one phase is done again"
        site = processes.folder / "sites" / processes.names[1]
        processes.end(processes.names[1])
        made = command("personalize", "--site", str(site / "site.toml"), "--method", "lp:epochs=2")
        assert made.returncode == 0, made.stderr
    personalize(tmp_path / "wire", method="lp:epochs=2", page=False)
    name = f"personal/lp_epochs=2/clients/{processes.names[1]}.safetensors"
    assert same_files(site / "private" / "run" / name, tmp_path / "wire" / name)


def test_a_late_site_of_a_ridge_run_adds_its_sums(tmp_path: Path) -> None:
    """Also to a run that had ended; the model is then that of all, but for the order in which float64 added it up."""
    exp = real.of("method.name=ridge", "method.rounds=1", "data.features=l2")
    expected = real.simulated(exp, tmp_path / "wire")
    with Real(tmp_path / "real", exp, wait=8.0) as processes:
        first, second, late = processes.names
        processes.start("superlink", first, second)
        processes.until(lambda: all("does not know" in processes.log(name) for name in (first, second)), "two sites")
        processes.start("server")
        without = processes.finished()
        assert without["digest"] != expected.digest
        processes.start(late)
        processes.until(lambda: "joined" in processes.log(late), "the late site")
        processes.start("server")
        assert processes.finished()["accuracy"] == expected.accuracy
        ours, theirs = Model.of(processes.run).shared, Model.of(tmp_path / "wire").shared
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-7)
        model = processes.folder / "sites" / late / "private" / "run" / "model.safetensors"
        processes.until(model.exists, "the model at the late site")


@LONG
@pytest.mark.parametrize(
    "texts",
    [
        ("method.name=ridge", "method.rounds=1"),
        ("method.name=ova-lp", "method.rounds=3", "partition.validation=0.1"),
        ("method.name=scaffold", "method.rounds=3"),
        ("method.name=fedpurel", "method.rounds=2", "method.peft=prompt", "data.limit=200"),
    ],
    ids=lambda texts: texts[0].partition("=")[2],
)
def test_real_processes_give_what_a_simulation_gives(texts: tuple[str, ...], tmp_path: Path) -> None:
    exp = real.of(*texts)
    expected = real.simulated(exp, tmp_path / "wire")
    with Real(tmp_path / "real", exp).everything() as processes:
        summary = processes.finished(300)
        assert summary["digest"] == expected.digest
        assert summary["accuracy"] == expected.accuracy


@LONG
def test_lp_ft_at_a_site_is_that_of_a_simulation(tmp_path: Path) -> None:
    """A whole network, trained by all and then by each for itself."""
    network = ("data.source=digits", "data.encoder=cnn", "method.tune=network", "method.lr=0.001", "method.batch=32")
    exp = real.of(*network, "method.name=fedavg", "method.rounds=2", "method.epochs=1")
    expected = real.simulated(exp, tmp_path / "wire")
    personalize(tmp_path / "wire", method="lp-ft:epochs=3", page=False)
    with Real(tmp_path / "real", exp).everything() as processes:
        assert processes.finished(300)["digest"] == expected.digest
    for name in processes.names:
        site = processes.folder / "sites" / name
        made = command("personalize", "--site", str(site / "site.toml"), "--method", "lp-ft:epochs=3")
        assert made.returncode == 0, made.stderr
        (ours,) = site.glob(f"private/run/personal/*/clients/{name}.safetensors")
        (theirs,) = tmp_path.glob(f"wire/personal/*/clients/{name}.safetensors")
        assert same_files(ours, theirs), name
