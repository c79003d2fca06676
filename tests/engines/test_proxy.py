"""The proxy filter of examples/deploy in front of a real SuperLink: a site works through it, and nobody else does."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedkeel[flower]'")

from test_link import HOST, SuperLink, end, free_port, only_line, received, replies, send, superlink, wait_for

from fedkeel.core.errors import FedkeelError
from fedkeel.engines.flower import keys, link
from fedkeel.engines.flower.contact import Address, Unreachable
from fedkeel.engines.flower.fleet import Fleet

CONFIG = Path(__file__).parents[2] / "examples" / "deploy" / "nginx.conf"
MISSING = "the proxy test needs nginx: no nginx on PATH or in /usr/sbin; apt-get install -y nginx-light"


def find_nginx() -> str:
    """nginx's path; without one the test fails where it must run (CI) and is skipped, with the reason, elsewhere."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        warnings.warn(MISSING, stacklevel=1)
        pytest.skip(MISSING)
    return program


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} must be in {CONFIG.name} exactly once"
        text = text.replace(old, new)
    return text


@contextmanager
def nginx(folder: Path, certificates: Path, behind: int) -> Iterator[int]:
    """The port of a proxy with the example's configuration, but for ports and paths."""
    program, port = find_nginx(), free_port()
    folder.mkdir()
    temporary = "".join(
        f"    {kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    changes = {
        "server 127.0.0.1:8000;": f"server {HOST}:{behind};",
        "listen 8443 ssl;": f"listen {HOST}:{port} ssl;",
        "/etc/fedkeel/tls.crt": str(certificates / "tls.crt"),
        "/etc/fedkeel/tls.key": str(certificates / "tls.key"),
        "/etc/fedkeel/ca.crt": str(certificates / "ca.crt"),
        "worker_processes auto;": "worker_processes 1;",
        "http {\n": f"http {{\n{temporary}",
    }
    config, log = folder / "nginx.conf", folder / "log"
    config.write_text(replaced(CONFIG.read_text(), changes))
    also = f"daemon off; pid {folder / 'pid'}; error_log {log} warn;" + (" user root;" if os.geteuid() == 0 else "")
    command = [program, "-p", str(folder), "-c", str(config), "-e", str(log), "-g", also]
    log.touch()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process, log)
        yield port
    finally:
        end(process)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    find_nginx()
    with superlink(tmp_path_factory.mktemp("superlink"), [HOST, "localhost"]) as one:
        yield one


@pytest.fixture(scope="module")
def proxy(there: SuperLink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with nginx(tmp_path_factory.mktemp("proxy") / "nginx", there.folder, there.port) as port:
        yield there.at(f"{HOST}:{port}")


@pytest.mark.parametrize("size", [1000, 12_000_000])
def test_a_site_works_through_the_proxy(size: int, there: SuperLink, proxy: Address, tmp_path: Path) -> None:
    key, down, up = keys.new_key(), os.urandom(size), os.urandom(size)
    link.register(there.address, {"clinic": keys.public_text(key.public_key())})
    with Fleet(proxy, key, tmp_path / "node") as site, link.grid(there.address, there.secret) as grid:
        ids = send(grid, down, site)
        delivery = received(site)
        assert delivery.content == down
        site.confirm(delivery)
        site.reply(delivery, up)
        assert replies(grid, ids) == [up]
        assert site._heartbeat()
    with Fleet(proxy, key, tmp_path / "elsewhere") as again:  # the lease was given back through the proxy too
        assert again.node_id == site.node_id


def test_nobody_registers_a_key_or_starts_a_run_through_the_proxy(there: SuperLink, proxy: Address) -> None:
    refused = (
        rf"^a proxy before the SuperLink at {proxy.host_port} does not let /v1/control/%s through: the server must"
    )
    with pytest.raises(FedkeelError, match=refused % "register-node") as told:
        link.register(proxy, {"clinic": keys.public_text(keys.new_key().public_key())})
    only_line(told)
    with pytest.raises(FedkeelError, match=refused % "start-run") as told, link.grid(proxy, there.secret):
        raise AssertionError("it was let in")
    only_line(told)


PATHS = [
    "/", "/health", "/docs", "/openapi.json", "/v1/control/start-run", "/v1/runtime/acquire-task",
    "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/get-fab", "/v1/fleet/", "/v1/fleet",
    "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/..%2fcontrol/start-run",
    "//v1//control//start-run", "/v1/control/start-run?/v1/fleet/pull-messages", "/V1/CONTROL/start-run",
    "/v1/fleet/pull-messages/../../control/start-run", "/v1/control/start-run%23/v1/fleet/pull-messages",
]  # fmt: skip


def status(address: Address, path: str, method: str = "POST") -> int:
    """What is answered to a path as it stands here: no client tidies it up before."""
    assert address.ca is not None
    context = ssl.create_default_context(cadata=address.ca.decode())
    host, port = address.host_port.split(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as line,
    ):
        line.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        return int(line.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("path", PATHS)
def test_no_way_of_writing_a_path_leads_past_the_filter(path: str, proxy: Address) -> None:
    assert status(proxy, path) == 403


def test_the_superlink_itself_would_have_answered(there: SuperLink, proxy: Address) -> None:
    """The filter is what refuses: without it the control interface answers whoever has the CA."""
    assert status(there.address, "/health", "GET") == 200
    assert status(there.address, "/v1/control/start-run") != 403
    assert status(proxy, "/v1/fleet/pull-messages") != 403
    assert status(proxy, "/v1/fleet/pull-messages", "GET") == 403


def test_a_superlink_that_is_not_behind_its_proxy_is_unreachable(there: SuperLink, tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx", there.folder, free_port()) as port:
        with pytest.raises(Unreachable, match="is not there: a proxy answers for it with 502") as told:
            Fleet(there.at(f"{HOST}:{port}"), keys.new_key(), tmp_path / "node")
        only_line(told)


def test_somebody_else_on_the_port_of_the_superlink_gets_nothing(there: SuperLink, tmp_path: Path) -> None:
    """The certificates that the proxy is given are not those of the SuperLink behind it."""
    keys.write_certificates(tmp_path, [HOST, "localhost"])
    ca = (tmp_path / "ca.crt").read_bytes()
    with (
        nginx(tmp_path / "nginx", tmp_path, there.port) as port,
        pytest.raises(Unreachable, match="a proxy answers for it with 502"),
    ):
        Fleet(Address(f"{HOST}:{port}", ca), keys.new_key(), tmp_path / "node")


@pytest.mark.filterwarnings("ignore:the proxy test needs nginx")
@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_nginx_fails_in_ci_and_is_told_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *arguments, **options: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="apt-get install -y nginx-light"):
        find_nginx()
