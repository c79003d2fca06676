"""Both halves of Flower against a real SuperLink: bytes both ways, and whatever is wrong is told in one line."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("flwr", reason="pip install 'fedkeel[flower]'")

from fedkeel.core.errors import BadMessage, FedkeelError
from fedkeel.engines.flower import contact, keys, link
from fedkeel.engines.flower.contact import Address, Unreachable
from fedkeel.engines.flower.fleet import Delivery, Fleet

if TYPE_CHECKING:
    from flwr.app import Message

HOST = "127.0.0.1"
START = 60.0
"""Seconds for which a SuperLink may start on a machine that is busy."""
TTL = 60.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the port answers; if the process ends instead, what it said."""
    until = monotonic() + START
    while monotonic() < until and process.poll() is None:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            sleep(0.05)
    raise AssertionError(f"it does not answer: {log.read_text(errors='replace')[-3000:]}")


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=10)


@dataclass
class SuperLink:
    """A real one, in a process of its own."""

    folder: Path
    port: int
    tls: bool = True
    database: bool = False
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return self.at(f"{HOST}:{self.port}")

    def at(self, host_port: str) -> Address:
        return Address(host_port, (self.folder / "ca.crt").read_bytes()) if self.tls else Address(host_port, None, True)

    @property
    def secret(self) -> bytes:
        return (self.folder / "secret").read_bytes()

    def start(self) -> None:
        certificates = [self.folder / name for name in ("ca.crt", "tls.crt", "tls.key")] if self.tls else [None] * 3
        database = self.folder / "state.db" if self.database else None
        program, *rest = link.superlink_command(HOST, self.port, self.folder / "secret", *certificates, database)
        quiet = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(self.folder / "home"),
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).parent / program), *rest],
                env={**os.environ, **quiet},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for(self.port, self.process, self.folder / "log")


@contextmanager
def superlink(folder: Path, hosts: list[str], tls: bool = True, database: bool = False) -> Iterator[SuperLink]:
    keys.write_certificates(folder, hosts)
    keys.write_new_secret(folder / "secret")
    made = SuperLink(folder, free_port(), tls, database)
    try:
        made.start()
        yield made
    finally:
        if made.process is not None:
            end(made.process)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    with superlink(tmp_path_factory.mktemp("superlink"), [HOST]) as one:
        yield one


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    """Without TLS, and with a database."""
    with superlink(tmp_path_factory.mktemp("plain"), [HOST], tls=False, database=True) as one:
        yield one


Joins = Callable[..., Fleet]


@pytest.fixture
def joins(there: SuperLink, tmp_path: Path) -> Iterator[Joins]:
    """A new site that is there until the end of the test."""
    with ExitStack() as stack:

        def join(where: SuperLink = there) -> Fleet:
            key = keys.new_key()
            link.register(where.address, {"site": keys.public_text(key.public_key())})
            return stack.enter_context(Fleet(where.address, key, tmp_path / f"node-{id(key)}"))

        yield join


def message(content: bytes, site: Fleet) -> Message:
    from flwr.app import Message

    return Message(link.payload(content), site.node_id, "train", ttl=TTL, group_id="train 1.0")


def send(grid: Any, content: bytes, site: Fleet) -> list[str]:
    return list(grid.push_messages([message(content, site)]))


def received(site: Fleet) -> Delivery:
    found = site.receive()
    assert found is not None
    return found


def replies(grid: Any, ids: list[str]) -> list[bytes]:
    return [link.content_of(one) for one in grid.pull_messages(ids)]


def only_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert text.isprintable()
    assert len(text) < 400
    return text


# ---- bytes both ways


@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
def test_bytes_go_both_ways_as_they_are(size: int, there: SuperLink, joins: Joins) -> None:
    site, down, up = joins(), os.urandom(size), os.urandom(size)
    with link.grid(there.address, there.secret) as grid:
        assert site.receive() is None
        ids = send(grid, down, site)
        delivery = received(site)
        assert delivery.content == down
        assert (delivery.kind, delivery.group, delivery.seconds) == ("train", "train 1.0", TTL)
        assert delivery.node == site.node_id
        assert site.receive() is None
        assert replies(grid, ids) == []
        site.confirm(delivery)
        site.reply(delivery, up)
        assert replies(grid, ids) == [up]


def test_the_server_sees_who_is_there_by_its_key(there: SuperLink, joins: Joins, tmp_path: Path) -> None:
    key = keys.new_key()
    pem = keys.public_pem(key.public_key())
    for _ in range(2):  # a key that is known already stays as it is
        link.register(there.address, {"clinic": keys.public_text(key.public_key()) + " a comment"})
    with link.grid(there.address, there.secret) as grid:

        def seen() -> list[tuple[int, str, str]]:
            nodes = [node for node in grid.get_nodes() if bytes(node.public_key) == pem]
            return [(node.node_id, node.name, node.status) for node in nodes if node.status == "online"]

        assert seen() == []
        with Fleet(there.address, key, tmp_path / "node") as site:
            assert seen() == [(site.node_id, "clinic", "online")]
        assert seen() == []
        with Fleet(there.address, key, tmp_path / "node") as again:
            assert again.node_id == site.node_id


def test_messages_of_several_sites_are_not_mixed_up(there: SuperLink, joins: Joins) -> None:
    sites = [joins() for _ in range(3)]
    with link.grid(there.address, there.secret) as grid:
        ids = list(grid.push_messages([message(b"%d" % k, site) for k, site in enumerate(sites)]))
        for site in reversed(sites):
            delivery = received(site)
            site.reply(delivery, b"reply to " + delivery.content)
        got = {one.metadata.reply_to_message_id: link.content_of(one) for one in grid.pull_messages(ids)}
    assert [got[id] for id in ids] == [b"reply to 0", b"reply to 1", b"reply to 2"]


def test_a_reply_that_is_sent_twice_counts_once_and_another_one_for_nothing(there: SuperLink, joins: Joins) -> None:
    site = joins()
    with link.grid(there.address, there.secret) as grid:
        ids = send(grid, b"request", site)
        delivery = received(site)
        for content in (b"reply", b"reply", b"another"):
            site.reply(delivery, content)
        assert replies(grid, ids) == [b"reply"]
        for content in (b"reply", b"another"):
            site.reply(delivery, content)
        assert all(one.has_error() for one in grid.pull_messages(ids))


def test_a_reply_that_breaks_off_comes_once_it_is_sent_again(
    there: SuperLink, joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    site, up = joins(), os.urandom(10_000)
    with link.grid(there.address, there.secret) as grid:
        ids = send(grid, b"request", site)
        delivery = received(site)
        real, calls = site._client.PushObject, []

        def breaks(part: Any) -> Any:
            calls.append(part)
            if len(calls) > 1:
                raise httpx.ConnectError("the cable is out")
            return real(part)

        with monkeypatch.context() as patch:
            patch.setattr(site._client, "PushObject", breaks)
            with pytest.raises(Unreachable, match=r"is not there \(ConnectError: the cable is out\)") as told:
                site.reply(delivery, up)
        only_line(told)
        assert replies(grid, ids) == []
        assert replies(grid, ids) == []
        site.reply(delivery, up)
        assert replies(grid, ids) == [up]


def test_a_request_that_breaks_off_is_sent_again(
    there: SuperLink, joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a SuperLink is killed and started while a server sends: it does not know the sending any more."""
    site, down = joins(), os.urandom(3_000_000)
    with link.grid(there.address, there.secret) as grid:
        real, calls = grid.runtime.PushObject, []

        def breaks(part: Any) -> Any:
            calls.append(part)
            return real(part) if len(calls) != 2 else SimpleNamespace(stored=False)

        monkeypatch.setattr(grid.runtime, "PushObject", breaks)
        ids = send(grid, down, site)
        delivery = received(site)
        assert delivery.content == down
        assert site.receive() is None, "it is one request"
        site.reply(delivery, b"reply")
        assert replies(grid, ids) == [b"reply"]


def test_a_request_that_never_comes_whole_holds_nothing_up(
    there: SuperLink, joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server is killed while it sends: its run is open for another minute, and the next server has begun."""
    site = joins()

    def killed(part: Any) -> Any:
        raise SystemExit

    with link.grid(there.address, there.secret) as grid:
        with monkeypatch.context() as patch:
            patch.setattr(grid.runtime, "PushObject", killed)
            with pytest.raises(SystemExit):
                send(grid, b"half", site)
        assert site.receive() is None
        with link.grid(there.address, there.secret) as again:
            ids = send(again, b"whole", site)
            delivery = received(site)
            assert delivery.content == b"whole"
            site.reply(delivery, b"reply")
            assert replies(again, ids) == [b"reply"]


def test_why_there_is_no_reply_is_told(there: SuperLink, joins: Joins) -> None:
    site = joins()
    with link.grid(there.address, there.secret) as grid:
        ids = send(grid, b"request", site)
        site.fail(received(site), "the disk\nis \x1b[1mfull " + "x" * 1000)
        (reply,) = grid.pull_messages(ids)
        assert reply.has_error()
        assert reply.error.reason.startswith(r"the disk is \x1b[1mfull xxx")
        assert len(reply.error.reason) < 400


def test_a_message_that_is_not_of_fedkeel_is_refused_on_both_sides(there: SuperLink, joins: Joins) -> None:
    from flwr.app import ConfigRecord, Message, RecordDict

    site = joins()
    with link.grid(there.address, there.secret) as grid:
        foreign = Message(RecordDict({"config": ConfigRecord({"run": "this"})}), site.node_id, "train", ttl=TTL)
        ids = list(grid.push_messages([foreign]))
        with pytest.raises(BadMessage, match="the message has the records") as told:
            site.receive()
        assert "config" in only_line(told)
        (reply,) = grid.pull_messages(ids)
        assert reply.has_error()
        assert "the message has the records" in reply.error.reason
        with pytest.raises(BadMessage, match="the message has no content"):
            link.content_of(reply)
        assert site.receive() is None
        assert replies(grid, send(grid, b"the next", site)) == []
        assert received(site).content == b"the next"


def test_only_one_array_of_bytes_is_a_message() -> None:
    from types import SimpleNamespace

    from flwr.app import Array, ArrayRecord, RecordDict

    def holding(*arrays: Array, record: str = contact.RECORD) -> Any:
        named = {contact.RECORD if k == 0 else str(k): array for k, array in enumerate(arrays)}
        return SimpleNamespace(has_content=lambda: True, content=RecordDict({record: ArrayRecord(named)}))

    good = Array("uint8", (3,), contact.STYPE, b"abc")
    assert link.content_of(holding(good)) == b"abc"
    wrong = [
        holding(good, record="other"), holding(good, good), holding(Array("uint8", (3,), "numpy.ndarray", b"abc")),
        holding(Array("int8", (3,), contact.STYPE, b"abc")), holding(Array("uint8", (4,), contact.STYPE, b"abc")),
        holding(Array("uint8", (1, 3), contact.STYPE, b"abc")), holding(Array("uint8", (0,), contact.STYPE, b"")),
    ]  # fmt: skip
    for one in wrong:
        with pytest.raises(BadMessage, match=r"^the message") as told:
            link.content_of(one)
        only_line(told)
    with pytest.raises(BadMessage, match="without a single byte"):
        link.payload(b"")


# ---- ends


def test_a_site_that_was_killed_goes_on_under_its_node_id(there: SuperLink, tmp_path: Path) -> None:
    key = keys.new_key()
    link.register(there.address, {"clinic": keys.public_text(key.public_key())})
    with link.grid(there.address, there.secret) as grid:
        killed = Fleet(there.address, key, tmp_path / "node")
        ids = send(grid, b"the first", killed)
        inbox = received(killed).to_bytes()
        with pytest.raises(FedkeelError, match="a process that was killed still holds its lease: then wait 60 s"):
            Fleet(there.address, key, tmp_path / "elsewhere")
        with Fleet(there.address, key, tmp_path / "node") as site:
            assert site.node_id == killed.node_id
            assert site.receive() is None  # it is not handed out again: hence the inbox
            site.confirm(Delivery.from_bytes(inbox))
            site.reply(Delivery.from_bytes(inbox), b"a reply")
            assert replies(grid, ids) == [b"a reply"]
            ids = send(grid, b"the second", site)
            site.reply(received(site), b"another reply")
            assert replies(grid, ids) == [b"another reply"]
        killed.close()


def test_what_comes_too_late_for_its_run_is_no_error(there: SuperLink, joins: Joins) -> None:
    site = joins()
    with link.grid(there.address, there.secret) as grid:
        send(grid, b"the first", site)
        send(grid, b"the second", site)
        delivery = received(site)
    site.confirm(delivery)
    site.reply(delivery, b"too late")
    site.fail(delivery, "too late")
    assert site.receive() is None
    with link.grid(there.address, there.secret) as grid:
        ids = send(grid, b"the third", site)
        delivery = received(site)
        assert delivery.content == b"the third"
        site.reply(delivery, b"in time")
        assert replies(grid, ids) == [b"in time"]


def test_a_server_whose_run_was_stopped_is_told_to_start_again(there: SuperLink, joins: Joins) -> None:
    from flwr.proto.control_pb2 import StopRunRequest
    from flwr.supercore.control import ControlHttpClient

    with link.grid(there.address, there.secret) as grid:
        with contact.client_for(ControlHttpClient, there.address, "flwr CLI") as client:
            client.StopRun(StopRunRequest(run_id=grid.run.run_id))
        with pytest.raises(FedkeelError, match=r"has ended this server's run.*start the server again") as told:
            list(grid.get_nodes())
    only_line(told)


def test_a_site_may_be_closed_twice(joins: Joins) -> None:
    site = joins()
    site.close()
    site.close()


# ---- refused


def test_a_key_that_nobody_registered_is_refused(there: SuperLink, joins: Joins, tmp_path: Path) -> None:
    with pytest.raises(FedkeelError, match=r"does not know this site's key: have it registered there") as told:
        Fleet(there.address, keys.new_key(), tmp_path / "none")
    only_line(told)
    assert not (tmp_path / "none").exists()
    (tmp_path / "node").write_text(str(joins().node_id))
    with pytest.raises(FedkeelError, match=r"does not know this site's key: have it registered there$") as told:
        Fleet(there.address, keys.new_key(), tmp_path / "node")
    (tmp_path / "node").write_text("nonsense")
    with pytest.raises(FedkeelError, match="node does not hold a node id: delete it") as told:
        Fleet(there.address, keys.new_key(), tmp_path / "node")
    assert not isinstance(told.value, Unreachable)


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_site_whose_clock_is_wrong_is_told(
    minutes: int, there: SuperLink, joins: Joins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower signs the time, so that nobody can send a signature again later."""
    from flwr.supercore.date import now
    from flwr.supernode import node_auth_http_interceptor as signing

    key = keys.new_key()
    link.register(there.address, {"clinic": keys.public_text(key.public_key())})
    with monkeypatch.context() as wrong:
        wrong.setattr(signing, "now", lambda: now() + timedelta(minutes=minutes))
        with pytest.raises(FedkeelError, match=r"the clocks of the two machines must agree$") as told:
            Fleet(there.address, key, tmp_path / "node")
    only_line(told)
    Fleet(there.address, key, tmp_path / "node").close()


@pytest.mark.parametrize("text", ["nonsense", "ssh-dss AAAAB3NzaC1kc3M=", "ssh-ed25519 AAAA", "ed25519"])
def test_what_is_no_key_is_not_registered(text: str, there: SuperLink) -> None:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    if text == "ed25519":
        text = keys.public_text(ed25519.Ed25519PrivateKey.generate().public_key())  # type: ignore[arg-type]
    with pytest.raises(FedkeelError, match=r"^the key of clinic is ") as told:
        link.register(there.address, {"clinic": text})
    only_line(told)


def test_a_wrong_secret_is_refused_and_does_no_harm_to_the_next_server(there: SuperLink, joins: Joins) -> None:
    with (
        pytest.raises(
            FedkeelError, match="does not take the secret given here: expected the bytes of the file"
        ) as told,
        link.grid(there.address, b"wrong"),
    ):
        raise AssertionError("it was let in")
    only_line(told)
    site = joins()
    with link.grid(there.address, there.secret) as grid:  # the task of the run before was never taken
        ids = send(grid, b"request", site)
        site.reply(received(site), b"reply")
        assert replies(grid, ids) == [b"reply"]


def every_way(address: Address, folder: Path, kind: type[FedkeelError] = FedkeelError) -> set[str]:
    """What a site, a registration and a server are told: one line each."""
    said = set()
    for way in (
        lambda: Fleet(address, keys.new_key(), folder / "node"),
        lambda: link.register(address, {"clinic": keys.public_text(keys.new_key().public_key())}),
        lambda: link.grid(address, b"secret").__enter__(),
    ):
        with pytest.raises(kind) as told:
            way()
        assert type(told.value) is kind
        said.add(only_line(told))
    return said


def test_a_wrong_ca_is_refused(there: SuperLink, tmp_path: Path) -> None:
    keys.write_certificates(tmp_path, [HOST])
    (line,) = every_way(Address(there.address.host_port, (tmp_path / "ca.crt").read_bytes()), tmp_path)
    assert "is not vouched for by the CA given here (" in line
    assert line.endswith(": is it the right CA?")


def test_another_host_name_is_refused(there: SuperLink, tmp_path: Path) -> None:
    (line,) = every_way(there.at(f"localhost:{there.port}"), tmp_path)
    assert "is for another host: use a name or address that it was made for" in line


@pytest.fixture
def expired(tmp_path: Path) -> Iterator[SuperLink]:
    """What would be a SuperLink: no more than TLS is asked of it."""
    keys.write_certificates(tmp_path, [HOST], days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with socket.create_server((HOST, 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(caller, server_side=True).close()
                except OSError:
                    caller.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield SuperLink(tmp_path, listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_an_expired_certificate_is_refused(expired: SuperLink, tmp_path: Path) -> None:
    (line,) = every_way(expired.address, tmp_path)
    assert line.endswith("has expired: renew it, and start the SuperLink again")


def test_what_is_no_ca_is_refused(there: SuperLink, tmp_path: Path) -> None:
    for ca in (b"nonsense", b"", b"\xff\xfe"):
        (line,) = every_way(Address(there.address.host_port, ca), tmp_path)
        assert "cannot be used" in line
        assert line.endswith("expected the text of a PEM file")


def test_either_a_ca_or_insecure_is_asked_for() -> None:
    with pytest.raises(FedkeelError, match=r"^no CA certificate for the SuperLink at a:1: give one, or ask for insec"):
        Address("a:1", None)
    with pytest.raises(FedkeelError, match=r"^a CA certificate and insecure for the SuperLink at a:1: give one of the"):
        Address("a:1", b"ca", True)


def test_a_plain_call_to_a_superlink_with_tls_is_refused(there: SuperLink, tmp_path: Path) -> None:
    (line,) = every_way(Address(there.address.host_port, None, insecure=True), tmp_path)
    assert line.endswith("hung up on a plain call: it probably speaks TLS, so give its CA, not insecure")


def test_a_superlink_that_is_not_there_is_unreachable(
    there: SuperLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in (there.at(f"{HOST}:{free_port()}"), Address(f"{HOST}:{free_port()}", None, insecure=True)):
        (line,) = every_way(address, tmp_path, Unreachable)
        assert "is not there, the connection is refused: is it running, and is the port right?" in line

    def unknown(*arguments: Any, **options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    (line,) = every_way(there.at("nowhere.example:8443"), tmp_path, Unreachable)
    assert line == "the SuperLink at nowhere.example:8443 has a name that is not known here: is the address right?"


# ---- without TLS, and away in the middle


def test_a_call_with_tls_to_a_plain_superlink_is_refused(there: SuperLink, plain: SuperLink, tmp_path: Path) -> None:
    (line,) = every_way(there.at(plain.address.host_port), tmp_path)
    assert "does not speak TLS: is the port right, and was it started with its certificates?" in line


def test_a_superlink_that_is_started_again_goes_on(plain: SuperLink, joins: Joins) -> None:
    site = joins(plain)
    assert plain.process is not None
    with link.grid(plain.address, plain.secret) as grid:
        ids = send(grid, b"request", site)
        plain.process.send_signal(signal.SIGKILL)
        plain.process.wait(timeout=10)
        with pytest.raises(Unreachable, match="is not there, the connection is refused") as told:
            site.receive()
        only_line(told)
        starting = threading.Thread(target=plain.start)
        starting.start()  # and nothing here waits for it: the grid is patient
        assert replies(grid, ids) == []
        starting.join()
        delivery = received(site)
        assert delivery.content == b"request"
        site.reply(delivery, b"reply")
        assert replies(grid, ids) == [b"reply"]


# ---- flwr itself


def test_another_flwr_or_none_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = Address(f"{HOST}:1", None, insecure=True)
    monkeypatch.setattr(contact.metadata, "version", lambda name: "1.42.0")
    (line,) = every_way(address, tmp_path)
    assert line == "flwr is 1.42.0, expected 1.41.0: pip install 'fedkeel[flower]'"

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(contact.metadata, "version", missing)
    (line,) = every_way(address, tmp_path)
    assert line == "flwr is not installed: pip install 'fedkeel[flower]'"


def test_the_version_that_is_known_is_the_one_that_is_locked() -> None:
    root = Path(__file__).parents[2]
    assert f'flower = ["flwr=={contact.VERSION}"]' in (root / "pyproject.toml").read_text()
    assert f"flwr=={contact.VERSION}" in (root / "requirements.lock").read_text()
