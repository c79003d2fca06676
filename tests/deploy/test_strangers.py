"""Whoever is not a member, or not the one that it says: real processes, and one line for each."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr", reason="pip install 'fedkeel[flower]'")

from flwr.app import Message

import real
from fedkeel.commands.deploy import SPLIT, TRIAL
from fedkeel.commands.experiment import experiment
from fedkeel.core.message import Down, encode
from fedkeel.core.watch import SILENT
from fedkeel.deploy.init import init
from fedkeel.deploy.settings import SITE, read_server
from fedkeel.deploy.trial import planned
from fedkeel.engines.flower import keys, link
from fedkeel.engines.flower.envelope import Head, wrap
from real import Real

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A SuperLink and the sites of a contract, whose server has not come yet."""
    exp = real.of("method.name=ridge", "method.rounds=1", "data.limit=300")
    with Real(tmp_path_factory.mktemp("strangers") / "c", exp) as processes:
        processes.start("superlink", processes.names[0])
        yield processes


def changed(home: Path, to: Path, **settings: object) -> Path:
    """A copy of a site's folder in which its file says something else."""
    shutil.copytree(home, to, ignore=shutil.ignore_patterns("private"))
    contract = home.parents[1] / "contract.toml"
    said = tomllib.loads((home / SITE).read_text())
    said["site"] |= {"contract": str(contract), **settings}
    (to / SITE).write_text(tomli_w.dumps(said))
    return to / SITE


def refused(*words: str) -> str:
    """The one line of a command that ends with 2."""
    done = subprocess.run(
        [sys.executable, "-m", "fedkeel", *words], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 2, done
    (*_, last) = done.stderr.strip().splitlines()
    assert last.startswith("fedkeel: ")
    assert "Traceback" not in done.stderr
    return last


def test_a_key_that_nobody_registered_waits_outside(there: Real) -> None:
    site = there.names[0]
    there.until(lambda: "does not know this site's key" in there.log(site), "the refusal")
    assert there.alive(site), "it waits for a server that makes it known"


def test_the_key_of_another_site_is_refused(there: Real, tmp_path: Path) -> None:
    _, mine, other = (there.folder / "sites" / name for name in there.names)
    path = changed(mine, tmp_path / "s", key=str(other / "site.key"))
    assert f"is not the key that the contract has for {mine.name}" in refused("site", str(path))


def test_another_ca_is_refused(there: Real, tmp_path: Path) -> None:
    keys.write_certificates(tmp_path, ["127.0.0.1"])
    path = changed(there.folder / "sites" / there.names[1], tmp_path / "s", ca=str(tmp_path / "ca.crt"))
    assert "certificate" in refused("site", str(path))


def test_plain_text_has_to_be_asked_for(there: Real, tmp_path: Path) -> None:
    home = there.folder / "sites" / there.names[1]
    path = changed(home, tmp_path / "without", ca="")
    assert "--insecure" in refused("site", str(path))
    assert "TLS" in refused("site", str(changed(home, tmp_path / "with")), "--insecure")


def test_whoever_has_the_ca_alone_gets_no_site_to_do_anything(there: Real) -> None:
    """It may register keys, even those of the contract. To send it lacks the secret; with that, the server's key."""
    settings, site = there.settings, there.names[0]
    address = settings.address(False)
    link.register(address, settings.terms.sites)
    there.until(lambda: "joined" in there.log(site), "the site")
    with pytest.raises(Exception, match="does not take the secret"), link.grid(address, b"guessed" * 8):
        pass
    secret = settings.path(settings.secret).read_bytes()
    down = encode(Down(settings.terms.run, 0, "enrol", {}))
    head = Head(settings.terms.sha256, site, 10**6, "enrol")
    with link.grid(address, secret) as grid:
        (node,) = [node.node_id for node in grid.get_nodes() if node.status == "online"]
        for letter in (wrap(head, down, keys.new_key()), down, b"do it"):
            ids = list(grid.push_messages([Message(link.payload(letter), node, "train", ttl=60.0, group_id="1")]))
            replies: list[Message] = []
            there.until(lambda ids=ids, replies=replies: replies.extend(grid.pull_messages(ids)) or replies, "a reply")  # type: ignore[func-returns-value]
            assert "the site refuses the request" in replies[0].error.reason
    assert there.alive(site)
    assert there.log(site).count("refused a request") == 3


def test_a_second_server_is_refused(there: Real) -> None:
    there.start("server")
    there.until(lambda: "waiting for sites" in there.log("server"), "the server")
    assert "is in use by another" in refused("server", str(there.folder / "server"))
    there.end("server")


# ---- the trial


def test_a_trial_that_is_stopped_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fedkeel", "deploy", "trial", str(tmp_path / "t"), "--clients", "2", "--set"]
    words += ["data.limit=300", "method.name=fedavg", "method.rounds=4", "run.threads=1"]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert first.stdout is not None
    seen = []
    for line in first.stdout:
        seen.append(line)
        if "round 1 of" in line:
            first.send_signal(signal.SIGINT)
            break
    said = "".join(seen) + first.stdout.read()
    assert first.wait() == 2, said
    assert "stopped: the same fedkeel deploy trial" in said
    assert "Traceback" not in said
    assert mentioning(str(tmp_path)) == []
    again = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert again.returncode == 0, again
    assert "round 1 of" not in again.stdout + again.stderr, "it goes on"
    assert (tmp_path / "t" / "server" / "run" / "report.html").exists()
    assert mentioning(str(tmp_path)) == []


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    words = ["deploy", "trial", str(folder), "--clients", "2", "--set", "data.limit=300", "method.name=ridge"]
    init(folder, planned(experiment(set=[*SPLIT, *TRIAL, "partition.clients=2", *words[6:]])), SILENT)
    port = int(read_server(folder).superlink.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        line = refused(*words)
    assert f"cannot have 127.0.0.1:{port} (address already in use)" in line
    assert mentioning(str(tmp_path)) == []


def mentioning(text: str) -> list[str]:
    """Commands of processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and int(path.parent.name) != os.getpid():
            found.append(command)
    return found
