"""What an exchange over Flower costs on loopback: with three real sites, and by number of sites and size of messages.

    python -m benchmarks.flower [--part exchange|stock|sites|sizes] [--json FILE]

``exchange`` starts a SuperLink, three sites and a server as ``fedkeel deploy trial`` does, with and without --database,
and takes the seconds of a round by two, as a round is a training and a test; and how long a server takes from its start
to the finished model of ridge; ``stock`` has the same over Flower's SuperNodes. ``sites`` and ``sizes`` do not train:
sites reply with as many bytes as they got, so that what is left is the SuperLink's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from flwr.app import Message

from fedkeel.commands.experiment import experiment
from fedkeel.core.watch import SILENT
from fedkeel.deploy.init import Deploy, commands, init
from fedkeel.deploy.settings import SITE, read_server, read_site
from fedkeel.deploy.site import PAUSE, until_next_look
from fedkeel.deploy.stock import supernode_command
from fedkeel.deploy.trial import Processes, planned
from fedkeel.engines.flower import keys, link
from fedkeel.engines.flower.contact import Unreachable
from fedkeel.engines.flower.fleet import Fleet
from fedkeel.engines.flower.post import POLL
from fedkeel.runs.model import MODEL

SPLIT = (
    "partition.kind=dirichlet",
    "partition.alpha=0.5",
    "partition.test=0.2",
    "partition.clients=3",
    "run.threads=1",
)
MB = 10**6
REPEATS = 5


@contextmanager
def superlink(folder: Path, port: int, database: bool) -> Iterator[Processes]:
    deploy = Deploy(sites=["a"], superlink=f"127.0.0.1:{port}")
    (folder / "logs").mkdir(exist_ok=True)
    with Processes(folder / "logs") as processes:
        command = commands(deploy, folder / "server", database)
        processes.start("superlink", [str(Path(sys.executable).parent / command[0]), *command[1:]])
        processes.until_there("superlink", "127.0.0.1", port)
        yield processes


def exchange(database: bool, stock: bool = False) -> dict[str, float]:
    """Seconds per exchange of OvA-LP; and of ridge until its model is there, and until the server has ended."""
    found: dict[str, float] = {}
    for method, texts in (
        ("ova-lp", ("method.name=ova-lp", "method.rounds=6")),
        ("ridge", ("method.name=ridge", "method.rounds=1")),
    ):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve() / "trial"
            init(folder, planned(experiment(set=[*SPLIT, *texts])), SILENT)
            settings = read_server(folder)
            with superlink(folder, int(settings.superlink.rpartition(":")[2]), database) as processes:
                if stock:  # a SuperNode ends where its key is not known
                    link.register(settings.address(False), settings.terms.sites)
                for site in settings.terms.names:
                    start(processes, folder / "sites" / site / SITE, stock)
                sleep(20)  # until all of them have read their rows
                began = monotonic()
                command = [sys.executable, "-m", "fedkeel", "server", str(folder / "server")]
                with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
                    run = folder / "server" / "run"
                    while not (run / MODEL).exists() and server.poll() is None:
                        sleep(0.05)
                    model = monotonic() - began
                    if server.wait():
                        raise RuntimeError("the server failed")
                if method == "ridge":
                    found |= {"ridge model": model, "ridge end": monotonic() - began}
            lines = (run / "events.jsonl").read_text().splitlines()
            rounds = [event["seconds"] for event in map(json.loads, lines) if event["event"] == "round"]
            if len(rounds) > 1:
                found["exchange"] = statistics.median(rounds[1:]) / 2
    return found


def start(processes: Processes, path: Path, stock: bool) -> None:
    site = read_site(path)
    command = [sys.executable, "-m", "fedkeel", "site", str(path)]
    if not stock:
        processes.start(site.name, command)
        return
    processes.start(site.name, [*command, "--stock"])
    binaries = Path(sys.executable).parent
    own = ["env", f"FLWR_HOME={path.parent / 'flwr'}", f"PATH={binaries}:{os.environ['PATH']}"]
    processes.start(f"supernode-{site.name}", [*own, *supernode_command(site, free_port())])


def echo(sites: int, size: int, database: bool = True) -> dict[str, float]:
    """Seconds of an exchange in which every site sends back as many bytes as it was sent."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name).resolve()
        (folder / "server").mkdir()
        keys.write_certificates(folder / "server", ["127.0.0.1"])
        keys.write_new_secret(folder / "server" / "secret")
        port = free_port()
        stack.enter_context(superlink(folder, port, database))
        address = link.Address(f"127.0.0.1:{port}", (folder / "server" / "ca.crt").read_bytes())
        own = {f"site-{number}": keys.new_key() for number in range(sites)}
        link.register(address, {site: keys.public_text(key.public_key()) for site, key in own.items()})
        ended = threading.Event()
        for site, key in own.items():
            fleet = stack.enter_context(Fleet(address, key, folder / site))
            threading.Thread(target=_echo, args=(fleet, ended), daemon=True).start()
        seconds = []
        with link.grid(address, (folder / "server" / "secret").read_bytes()) as grid:
            nodes = [node.node_id for node in grid.get_nodes()]
            for number in range(REPEATS + 1):
                letters = {node: os.urandom(size) for node in nodes}  # as signed ones, no two are alike
                began = monotonic()
                waiting = set(grid.push_messages([
                    Message(link.payload(letter), node, "train", ttl=600, group_id=str(number))
                    for node, letter in letters.items()
                ]))  # fmt: skip
                while waiting:
                    waiting -= {message.metadata.reply_to_message_id for message in grid.pull_messages(list(waiting))}
                    sleep(POLL)
                seconds.append(monotonic() - began)
            ended.set()
            sleep(0.5)
        kept = sum(path.stat().st_size for path in (folder / "server").glob("superlink.db*"))
    return {"seconds": statistics.median(seconds[1:]), "database_mb": kept / MB}


def _echo(fleet: Fleet, ended: threading.Event) -> None:
    while not ended.is_set():
        began = monotonic()
        try:
            delivery = fleet.receive()
        except Unreachable:  # its database is locked
            sleep(PAUSE)
            continue
        if delivery is None:
            sleep(until_next_look(monotonic() - began))
            continue
        fleet.confirm(delivery)
        fleet.reply(delivery, os.urandom(len(delivery.content)))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=("exchange", "stock", "sites", "sizes"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    if asked.part in (None, "exchange"):
        found |= {"with --database": exchange(True), "without": exchange(False)}
    if asked.part in (None, "stock"):
        found |= {"stock path, with --database": exchange(True, stock=True)}
    if asked.part in (None, "sites"):
        for size, name in ((10_000, "10 KB"), (MB, "1 MB")):
            found |= {f"{sites} sites, {name}": echo(sites, size) for sites in (3, 10, 30)}
        found |= {f"{sites} sites, 10 KB, without --database": echo(sites, 10_000, False) for sites in (3, 10, 30)}
    if asked.part in (None, "sizes"):
        found |= {f"3 sites, {size} MB": echo(3, size * MB) for size in (1, 10, 50)}
        found |= {f"3 sites, {size} MB, without --database": echo(3, size * MB, False) for size in (1, 10, 50)}
    for what, numbers in found.items():
        print(f"{what:<42}", "  ".join(f"{name} {value:.2f}" for name, value in numbers.items()))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
