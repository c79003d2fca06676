"""Letters that Flower's own SuperNode brings: a run of real processes equals a simulation, and lies are told."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

pytest.importorskip("flwr", reason="pip install 'fedkeel[flower]'")

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedkeel import api
from fedkeel.commands.deploy import TRIAL
from fedkeel.commands.experiment import experiment
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import Down, encode
from fedkeel.core.watch import SILENT
from fedkeel.deploy import stock
from fedkeel.deploy.init import Deploy, commands, init
from fedkeel.deploy.rows import own_rows
from fedkeel.deploy.settings import SITE, SiteSettings, read_server, read_site
from fedkeel.deploy.trial import Processes, planned
from fedkeel.deploy.worker import Worker, kept_folder
from fedkeel.engines.flower import contact, stock_app
from fedkeel.engines.flower.envelope import Head, unwrap, wrap
from fedkeel.engines.flower.keys import read_private

SETTINGS = (*TRIAL, "partition.clients=2", "data.limit=600", "method.name=ridge", "method.rounds=1", "run.threads=1")
BIN = Path(sys.executable).parent
Notices = list[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("s") / "t"
    init(folder, planned(experiment(None, set=SETTINGS)), SILENT)
    return folder


def site_of(folder: Path) -> SiteSettings:
    return read_site(folder / "sites" / "client-000" / SITE)


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Worker]:
    site = site_of(folder)
    kept_folder(site)
    with closing(Worker(site, own_rows(site, SILENT))) as worker:
        yield worker


def letter(folder: Path, number: int) -> bytes:
    terms = site_of(folder).terms
    down = encode(Down(terms.run, 0, "enrol", {}))
    key = read_private(folder / "server" / "server.key")
    return wrap(Head(terms.sha256, "client-000", number, "enrol"), down, key)


def exchanged(worker: Any, sent: bytes) -> tuple[bytes, Notices]:
    """All that comes back for what is sent, and what the site's log has."""
    notices: Notices = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        stock.attend(worker, theirs, notices.append)
        theirs.close()
        return b"".join(iter(lambda: ours.recv(2**16), b"")), notices


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


# ---- the site's process


def test_a_letter_is_answered_once(folder: Path, worker: Worker) -> None:
    sent = letter(folder, 1)
    reply, notices = exchanged(worker, framed(sent))
    assert not notices
    assert reply[:9] == (len(reply) - 8).to_bytes(8, "big") + stock.OK
    head, _ = unwrap(reply[9:], worker.key.public_key(), "the site")
    assert (head.number, head.ask) == (1, "enrol")
    reply, notices = exchanged(worker, framed(sent))
    assert reply[8:9] == stock.FAILED
    assert b"somebody sends it once more" in reply
    assert len(notices) == 1


def test_a_letter_that_was_begun_is_not_begun_again(
    folder: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what went wrong with it stays at the site."""

    def wrong(letter: object) -> bytes:
        raise ValueError("row 7 is Ms Miller's")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "answer", wrong)
        reply, notices = exchanged(worker, framed(letter(folder, 5)))
    assert reply[8:] == stock.FAILED + b"the site could not do it (ValueError), its own log says why"
    assert notices == ["ValueError: row 7 is Ms Miller's"]
    reply, _ = exchanged(worker, framed(letter(folder, 5)))
    assert b"somebody sends it once more" in reply


def test_what_is_no_letter_is_refused_and_the_next_one_answered(folder: Path, worker: Worker) -> None:
    for sent in (framed(b"x" * 100), bytes(8), (2**31 + 1).to_bytes(8, "big"), framed(letter(folder, 10)[:-1] + b"x")):
        reply, notices = exchanged(worker, sent)
        assert reply[8:].startswith(stock.FAILED + b"the site refuses the request: ")
        assert len(notices) == 1
        assert "\n" not in notices[0]
    for sent in (b"", b"abc", framed(letter(folder, 10))[:-1]):
        assert exchanged(worker, sent) == (b"", ["a request broke off: the other side hung up"])
    assert exchanged(worker, framed(letter(folder, 10)))[0][8:9] == stock.OK


def test_a_silent_connection_is_not_waited_for(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "SECONDS", 0.05)
    notices: Notices = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stock.attend(worker, theirs, notices.append)
    assert notices == ["a request broke off: timed out"]


def test_the_site_goes_on_when_nobody_waits_for_the_reply(folder: Path, worker: Worker) -> None:
    notices: Notices = []
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(framed(letter(folder, 20)))
        ours.close()
        stock.attend(worker, theirs, notices.append)
    assert notices == ["nobody waits for the reply any more: broken pipe"]


def test_the_socket_is_for_this_user_alone_and_goes_with_the_process(tmp_path: Path) -> None:
    path = tmp_path / stock.SOCKET
    path.write_bytes(b"what a killed process left")
    with stock.listening(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_ISSOCK(path.stat().st_mode)
    assert not path.exists()


def test_a_path_that_no_socket_can_have_is_told(folder: Path) -> None:
    long = site_of(folder).model_copy(update={"store": "s" * 200})
    with pytest.raises(FedkeelError, match=r"a socket's path at most 107: set site\.store"):
        stock.serve(long, SILENT)
    quoted = site_of(folder).model_copy(update={"store": "/tmp/it's"})
    with pytest.raises(FedkeelError, match="a folder without quotes"):
        stock.supernode_command(quoted)


def test_stock_and_insecure_exclude_each_other(folder: Path) -> None:
    with pytest.raises(FedkeelError, match="over TLS only"):
        api.site(folder / "sites" / "client-000" / SITE, insecure=True, stock=True)


# ---- the app that a SuperNode runs


def asked(content: RecordDict, node_config: dict[str, Any]) -> Message:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("task_id", "run_id", "node_id"):
            patch.setattr(TaskIdentity, f"_{name}", 1)
        message = Message(content, 7, "train")
        message.metadata.__dict__["_message_id"] = "m"
        return stock_app.app(message, Context(1, 7, node_config, RecordDict(), {}))


@contextmanager
def answering(path: Path, reply: bytes) -> Iterator[list[bytes]]:
    got: list[bytes] = []

    def once(door: socket.socket) -> None:
        line, _ = door.accept()
        with line:
            length = int.from_bytes(stock_app.exactly(line, 8), "big")
            got.append(stock_app.exactly(line, length))
            line.sendall(reply)

    with stock.listening(path) as door:
        thread = threading.Thread(target=once, args=(door,), daemon=True)
        thread.start()
        yield got
        thread.join(5)


def test_the_app_hands_over_what_came_and_what_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with answering(path, framed(stock.OK + b"reply")) as got:
        reply = asked(contact.payload(b"letter"), {stock.SETTING: str(path)})
    assert got == [b"letter"]
    assert contact.content_of(reply) == b"reply"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (framed(stock.FAILED + b"no"), "no"),
        (framed(stock.OK), "the site's process gave no reply (ValueError)"),
        (framed(b""), "the site's process gave no reply (ValueError)"),
        (framed(stock.OK + b"reply")[:-1], "the site's process gave no reply (ConnectionError)"),
    ],
)
def test_the_app_says_that_there_is_no_reply(tmp_path: Path, reply: bytes, reason: str) -> None:
    with answering(tmp_path / "s", reply):
        message = asked(contact.payload(b"letter"), {stock.SETTING: str(tmp_path / "s")})
    assert message.has_error()
    assert message.error.reason == reason


def test_the_app_needs_a_site_and_a_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock_app, "PATIENCE", 0.1)
    here = {stock.SETTING: str(tmp_path / "s")}
    assert "without fedkeel-socket" in asked(contact.payload(b"letter"), {}).error.reason
    assert "(FileNotFoundError)" in asked(contact.payload(b"letter"), here).error.reason
    assert "(ValueError)" in asked(RecordDict(), here).error.reason


# ---- real processes


@pytest.mark.slow
def test_a_run_over_stock_supernodes_equals_the_simulation(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")  # flower-supernode starts flower-superexec by its name
    folder = tmp_path_factory.mktemp("s") / "t"  # a socket's path must be short
    init(folder, planned(experiment(None, set=SETTINGS)), SILENT)
    with started(folder):
        result = api.server(folder)
    wire = api.run(None, out=tmp_path / "wire", set=[*SETTINGS, "run.engine=wire", "run.evaluate=federated"])
    assert result.digest == wire.digest
    assert result.curve == wire.curve
    names = list(read_server(folder).terms.names)
    assert [path.name for path in sorted((folder / "sites").iterdir())] == names
    assert not list(folder.rglob(stock.SOCKET)), "a site that was stopped leaves no socket"


@contextmanager
def started(folder: Path) -> Iterator[None]:
    """A SuperLink, and for each site its own process and a SuperNode; all of them are gone afterwards."""
    settings, logs = read_server(folder), folder / "logs"
    logs.mkdir()
    host, _, port = settings.superlink.rpartition(":")
    superlink = commands(Deploy(sites=list(settings.terms.names), superlink=settings.superlink), folder / "server")
    sessions: list[int] = []
    try:
        with Processes(logs) as processes:
            processes.start("superlink", superlink)
            sessions.append(processes.pid("superlink"))
            processes.until_there("superlink", host, int(port))
            for name in settings.terms.names:
                path = folder / "sites" / name / SITE
                processes.start(name, [sys.executable, "-m", "fedkeel", "site", str(path), "--stock"])
                own = f"FLWR_HOME={folder / 'sites' / name / 'flwr'}"  # where a SuperNode unpacks apps
                command = stock.supernode_command(read_site(path), free_port())
                processes.start(f"supernode-{name}", ["env", own, *command])
                sessions += [processes.pid(name), processes.pid(f"supernode-{name}")]
            with processes.watched():
                yield
    finally:
        end_sessions(sessions)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def end_sessions(sessions: list[int]) -> None:
    """What a SuperNode started ends by itself soon after it; whatever does not is ended here, by its id."""
    until = monotonic() + 10
    while (left := in_sessions(sessions)) and monotonic() < until:
        sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def in_sessions(sessions: list[int]) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found
