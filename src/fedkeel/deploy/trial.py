"""``fedkeel deploy trial``: a SuperLink, sites and a server on one machine, over loopback, with TLS and keys.

All sites have one source, and each takes the share that a simulation would give it: so the run can be held against
``fedkeel run`` with ``run.engine = "wire"``, to the bit.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from fedkeel.core.errors import FedkeelError, printable, shortened
from fedkeel.core.watch import Watch
from fedkeel.data.loading import load
from fedkeel.deploy.init import Deploy, Plan, commands, init
from fedkeel.deploy.server import serve
from fedkeel.deploy.settings import SITE, read_server
from fedkeel.engines.flower.contact import QUIET, must_be_installed
from fedkeel.runs.config import Experiment

STARTS, ENDS = 60.0, 10.0
"""Seconds that a process may take to be there, and to go."""
WAIT = 120.0
MOST_SITES = 60


def trial(folder: Path, experiment: Experiment, watch: Watch) -> Path:
    """Set everything up in a folder, or go on with what is there, and run it; gives the run's folder."""
    must_be_installed()
    if not (folder / "contract.toml").exists():
        plan = planned(experiment)
        contract = init(folder, plan, watch)
        watch.notice(f"contract {contract.sha256[:16]}... of {len(contract.sites)} sites in {folder}")
    settings = read_server(folder)
    host, _, port = settings.superlink.rpartition(":")
    deploy = Deploy(sites=list(settings.terms.names), superlink=settings.superlink)
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    must_be_free(host, int(port))
    with Processes(logs) as processes:
        superlink = commands(deploy, folder.absolute() / "server")
        processes.start("superlink", [str(Path(sys.executable).parent / superlink[0]), *superlink[1:]])
        processes.until_there("superlink", host, int(port))
        watch.notice(f"SuperLink on {settings.superlink}, with TLS and keys; logs in {logs}")
        for name in settings.terms.names:
            processes.start(name, [sys.executable, "-m", "fedkeel", "site", str(folder / "sites" / name / SITE)])
        with processes.watched():
            return serve(settings, False, watch)


def planned(experiment: Experiment) -> Plan:
    """As many sites as the split has clients, on a port that is free."""
    names = list(experiment.partition.names(load(experiment.data)))
    if len(names) > MOST_SITES:
        raise FedkeelError(
            f"a trial of {len(names)} sites would start as many processes: at most {MOST_SITES}, --clients 3"
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    deploy = Deploy(name=f"a trial on {experiment.data.source}", sites=names, superlink=f"127.0.0.1:{port}")
    return Plan(deploy, experiment, "the trial", share=True, server={"wait": WAIT})


def must_be_free(host: str, port: int) -> None:
    """Told before anything is started: a server would wait for a SuperLink that is somebody else."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise FedkeelError(
            f"the trial's SuperLink cannot have {host}:{port} ({os.strerror(error.errno or 0).lower()}): stop what "
            "listens there, or begin a trial in another folder"
        ) from None


class Processes:
    """Processes that end with the block, however it ends."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._running = logs, dict[str, subprocess.Popen[bytes]]()

    def __enter__(self) -> Processes:
        return self

    def start(self, name: str, command: Sequence[str]) -> None:
        """In a session of its own: Ctrl-C is for the trial, which ends the others in order."""
        with (self._logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **QUIET, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def until_there(self, name: str, host: str, port: int) -> None:
        until = monotonic() + STARTS
        while monotonic() < until:
            self.must_run()
            with socket.socket() as attempt:
                attempt.settimeout(1.0)
                if attempt.connect_ex((host, port)) == 0:
                    return
            sleep(0.1)
        raise FedkeelError(f"{name} is not there after {STARTS:g} s: {self._logs / f'{name}.log'} may say why")

    def must_run(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                said = (self._logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
                last = shortened(printable(said[-1])) if said else "it said nothing"
                raise FedkeelError(f"{name} has ended ({process.returncode}): {last}; see {self._logs / f'{name}.log'}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Where the block fails because a process has ended, that is what is told."""
        try:
            yield
        except FedkeelError:
            self.must_run()
            raise

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._running.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = monotonic() + ENDS
        for process in self._running.values():
            try:
                process.wait(max(0.1, until - monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
