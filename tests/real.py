"""A federation of real processes on loopback, with TLS and keys: it can be started, killed and looked at."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fedkeel.commands.experiment import experiment
from fedkeel.commands.run import run as simulate
from fedkeel.core.watch import SILENT
from fedkeel.deploy.init import Deploy, commands, init
from fedkeel.deploy.settings import SITE, ServerSettings, read_server
from fedkeel.deploy.trial import planned
from fedkeel.runs.config import Experiment

SPLIT = (
    "data.limit=600",
    "partition.kind=dirichlet",
    "partition.alpha=0.5",
    "partition.clients=3",
    "partition.test=0.2",
)
THREADS = "run.threads=1"
PATIENCE = 400.0
"""Seconds after which something that should come on any machine has failed to."""
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}


def of(*texts: str) -> Experiment:
    return experiment(set=[*SPLIT, THREADS, *texts])


def simulated(exp: Experiment, folder: Path) -> Any:
    """The same without machines, message by message through bytes."""
    return simulate(exp.with_texts(["run.engine=wire", "run.evaluate=federated"]), out=folder)


class Real:
    """Processes by name: "superlink", "server", and the sites."""

    def __init__(self, folder: Path, exp: Experiment, database: bool = True, **server: Any) -> None:
        self.folder, self._database = folder, database
        plan = planned(exp)
        plan.server.update(server)  # type: ignore[union-attr]
        init(folder, plan, SILENT)
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def settings(self) -> ServerSettings:
        return read_server(self.folder)

    @property
    def names(self) -> tuple[str, ...]:
        return self.settings.terms.names

    @property
    def run(self) -> Path:
        return self.folder / "server" / "run"

    def __enter__(self) -> Real:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.running):
            self.end(name)

    # ---- processes

    def command(self, name: str) -> list[str]:
        if name == "superlink":
            deploy = Deploy(sites=list(self.names), superlink=self.settings.superlink)
            said = commands(deploy, self.folder.absolute() / "server", self._database)
            return [str(Path(sys.executable).parent / said[0]), *said[1:]]
        if name == "server":
            return [sys.executable, "-m", "fedkeel", "server", str(self.folder / "server")]
        return [sys.executable, "-m", "fedkeel", "site", str(self.folder / "sites" / name / SITE)]

    def start(self, *names: str, more: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        for name in names:
            with (self.logs / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen(
                    [*self.command(name), *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, env={**os.environ, **ENVIRONMENT, **(environment or {})},
                )  # fmt: skip
            if name == "superlink":
                _, _, port = self.settings.superlink.rpartition(":")
                self.until(lambda port=port: socket.socket().connect_ex(("127.0.0.1", int(port))) == 0, "superlink")

    def everything(self) -> Real:
        self.start("superlink", *self.names, "server")
        return self

    def kill(self, name: str) -> None:
        """As a power cut would."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self, name: str) -> int:
        process = self.running.pop(name)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return process.returncode

    def alive(self, name: str) -> bool:
        return name in self.running and self.running[name].poll() is None

    def until(self, true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        until = monotonic() + seconds
        while not true():
            assert monotonic() < until, f"{what} did not come:\n{self.told()}"
            sleep(0.02)

    def told(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.logs.iterdir()))

    def log(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def finished(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The summary, once the server has ended well."""
        process = self.running["server"]
        self.until(lambda: process.poll() is not None, "the end of the server", seconds)
        assert process.returncode == 0, self.told()
        found: dict[str, Any] = json.loads((self.run / "summary.json").read_bytes())
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.run / "events.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]
