"""``fedkeel site --stock``: a site whose letters Flower's own ``flower-supernode`` brings, through a Unix socket.

The way for the day on which flwr's inside is another: nothing of flwr is called here. For each letter the SuperNode
runs ``engines/flower/stock_app.py``, which comes with the run and hands the letter to this process; this one never runs
what it was sent. One letter after the other:

    length (8 bytes) | letter   ->   length (8 bytes) | 0 and the signed reply, or 1 and why there is none

A SuperNode does not bring a letter twice, so there is no inbox: one that was begun and is sent once more is refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic

from fedkeel.core.atomic import claim
from fedkeel.core.errors import BadMessage, FedkeelError, memory_ran_out, printable, shortened
from fedkeel.core.watch import Watch
from fedkeel.deploy.finished import keep_finished
from fedkeel.deploy.rows import own_rows
from fedkeel.deploy.settings import SiteSettings
from fedkeel.deploy.site import LOCK
from fedkeel.deploy.worker import Worker, harmless, kept_folder
from fedkeel.engines.flower.contact import typed

SOCKET, SETTING = "stock.sock", "fedkeel-socket"
LONGEST_PATH = 107
"""Bytes that Linux takes as the path of a socket."""
LENGTH, LONGEST, PIECE = 8, 2**31, 2**20
"""Bytes of a length, of a letter at most, and of what is read at once."""
SECONDS = 60.0
"""In which a letter must have come, and a reply must have gone: whoever connects and is silent holds up all others."""
OK, FAILED = b"\x00", b"\x01"


def serve(site: SiteSettings, watch: Watch) -> None:
    """Work until somebody stops the process."""
    path = socket_path(site)
    folder = kept_folder(site)
    busy = f"site {site.name} runs already, in another process with {folder}: stop that one first"
    with (
        claim(folder, folder / LOCK, busy),
        closing(Worker(site, own_rows(site, watch), keep_finished, watch)) as worker,
        listening(path) as door,
    ):
        rows = worker.federation.manifest.train.sizes[0]
        watch.notice(f"site {site.name}: {rows:,} training rows, contract {site.terms.sha256[:16]}...")
        watch.notice(f"site {site.name}: waiting for what this brings: {typed(supernode_command(site))}")
        while True:
            line, _ = door.accept()
            with line:
                attend(worker, line, watch.notice)


def socket_path(site: SiteSettings) -> Path:
    path = site.kept.absolute() / SOCKET
    if (length := len(os.fsencode(path))) > LONGEST_PATH:
        raise FedkeelError(
            f"{path} has {length} bytes, and a socket's path at most {LONGEST_PATH}: set site.store to a shorter folder"
        )
    return path


def supernode_command(site: SiteSettings, port: int | None = None) -> list[str]:
    """How to start the SuperNode of a site; each one on a machine needs a port of its own."""
    path = str(socket_path(site))
    if "'" in path or "\n" in path:
        raise FedkeelError(f"{path!r} cannot be given to flower-supernode: set site.store to a folder without quotes")
    command = ["flower-supernode", "--superlink", site.superlink, "--root-certificates", str(site.path(site.ca))]
    command += ["--auth-supernode-private-key", str(site.path(site.key)), "--isolation", "subprocess"]
    command += ["--node-config", f"{SETTING}='{path}'"]
    return command if port is None else [*command, "--port", str(port)]


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket for this user alone; one that a killed process left is replaced, since the caller holds the lock."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        try:
            path.chmod(0o600)  # before anybody can connect
            door.listen()
            yield door
        finally:
            path.unlink(missing_ok=True)


def attend(worker: Worker, line: socket.socket, notice: Callable[[str], None]) -> None:
    """Answer the one letter of a connection."""
    try:
        data = _received(line)
    except BadMessage as bad:
        notice(f"refused what came: {bad}")
        reply = _failed(bad)
    except OSError as error:
        notice(f"a request broke off: {(error.strerror or str(error)).lower()}")
        return
    else:
        reply = answered(worker, data, notice)
    try:
        line.settimeout(SECONDS)
        line.sendall(len(reply).to_bytes(LENGTH, "big") + reply)
    except OSError as error:
        notice(f"nobody waits for the reply any more: {(error.strerror or str(error)).lower()}")


def answered(worker: Worker, data: bytes, notice: Callable[[str], None]) -> bytes:
    """Status and reply. That a letter was here is on disk before it is worked on, and it is never worked on again."""
    try:
        letter = worker.opened(data)
        worker.remember(letter)
    except BadMessage as bad:
        notice(f"refused a request: {bad}")
        return _failed(bad)
    except OSError as error:
        notice(f"{error.filename or worker.site.kept}: {(error.strerror or str(error)).lower()}")
        return _failed(error)
    try:
        return OK + worker.answer(letter)
    except Exception as error:  # a site outlives whatever its rows or a method do
        what = memory_ran_out(error) or f"{type(error).__name__}: {error}"
        notice(str(error) if isinstance(error, FedkeelError) else what)
        return _failed(error)


def _failed(error: BaseException) -> bytes:
    return FAILED + shortened(printable(harmless(error))).encode()


def _received(line: socket.socket) -> bytes:
    until = monotonic() + SECONDS
    length = int.from_bytes(_exactly(line, LENGTH, until), "big")
    if not 0 < length <= LONGEST:
        raise BadMessage(f"it would have {length} bytes, expected 1 to {LONGEST}")
    return _exactly(line, length, until)


def _exactly(line: socket.socket, length: int, until: float) -> bytes:
    got = bytearray()  # it grows with what comes, not with what was announced
    while len(got) < length:
        line.settimeout(max(0.001, until - monotonic()))
        piece = line.recv(min(PIECE, length - len(got)))
        if not piece:
            raise ConnectionError("the other side hung up")
        got += piece
    return bytes(got)
