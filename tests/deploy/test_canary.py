"""Known bytes of rows, features, labels and private arrays are in nothing that is sent, over real sockets.

The SuperLink speaks plain text here (``--insecure``), and between each site and it stands a relay that keeps every byte
of both directions. That it would find something is shown by what must be there: the model.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import real
from fedkeel.core.tree import from_bytes
from fedkeel.core.watch import SILENT
from fedkeel.deploy.init import init, planned
from fedkeel.engines.flower.link import superlink_command
from fedkeel.runs.model import Model

DIM, ROWS = 16, 60
CONFIG = """
[data]
source = "npz:sample.npz"
features = "l2"
[partition]
test = 0.2
[method]
name = "scaffold"
rounds = 3
[run]
threads = 1
[deploy]
sites = ["north", "south"]
superlink = "127.0.0.1:PORT"
"""


@contextmanager
def relay(to: int) -> Iterator[tuple[int, bytearray]]:
    """A port that passes everything on, and what went through it."""
    seen, door = bytearray(), socket.create_server(("127.0.0.1", 0))

    def pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                seen.extend(data)
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                here, _ = door.accept()
                there = socket.create_connection(("127.0.0.1", to))
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield door.getsockname()[1], seen
    finally:
        door.close()


def site_rows(path: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed)
    y = drawn.integers(0, 2, ROWS)
    x = (drawn.normal(size=(ROWS, DIM)) + y[:, None]).astype(np.float32)
    np.savez(path, x=x, y=np.array(["well", "ill"])[y])
    return x, y


def canaries(x: np.ndarray, y: np.ndarray) -> dict[str, bytes]:
    """Bytes that could only come from the site's own rows, however they were kept."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = {f"row {k}": x[k, :4].tobytes() for k in range(ROWS)}
    found |= {f"feature {k}": unit[k, :4].astype(np.float32).tobytes() for k in range(ROWS)}
    found |= {f"half {k}": x[k, :8].astype(np.float16).tobytes() for k in range(ROWS)}
    for kind in (np.int64, np.int32, np.float32, np.uint8):
        found[f"labels as {kind.__name__}"] = y[:24].astype(kind).tobytes()
        found[f"other labels as {kind.__name__}"] = (1 - y[:24]).astype(kind).tobytes()
    return found


def test_nothing_of_a_site_is_ever_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site_rows(tmp_path / "sample.npz", 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "config.toml").write_text(CONFIG.replace("PORT", str(port)))
    folder = tmp_path / "c"
    init(folder, planned(tmp_path / "config.toml"), SILENT)

    class Plain(real.Real):
        def __init__(self) -> None:
            self.folder, self.logs, self.running = folder, folder / "logs", {}
            self.logs.mkdir()

        def command(self, name: str) -> list[str]:
            if name == "superlink":
                home = Path(real.sys.executable).parent
                said = superlink_command(
                    "127.0.0.1", port, folder / "server" / "secret", database=folder / "server" / "db"
                )
                return [str(home / said[0]), *said[1:]]
            return [*super().command(name), "--insecure"]

    with relay(port) as (door, seen), Plain() as processes:
        secret: dict[str, bytes] = {}
        for number, name in enumerate(processes.names, 1):
            home = folder / "sites" / name
            secret |= {f"{name}: {k}": v for k, v in canaries(*site_rows(home / "sample.npz", number)).items()}
            said = tomllib.loads((home / "site.toml").read_text())
            said["site"]["superlink"] = f"127.0.0.1:{door}"
            (home / "site.toml").write_text(tomli_w.dumps(said))
        processes.everything()
        processes.finished()
        model = Model.of(processes.run)
        for name in processes.names:
            secret |= {f"{name}: private {k}": v for k, v in private(folder / "sites" / name).items()}
        assert any("private" in name for name in secret), "nothing private was kept"
        assert "whoever listens" in processes.log(processes.names[0])
        for name, value in model.shared.items():
            assert value.numpy().tobytes()[:32] in seen, f"the relay did not see {name}: it would not see a leak either"
    everywhere = {"what was sent": bytes(seen)}
    for path in [*(folder / "server").rglob("*"), *(folder / "logs").iterdir()]:
        if path.is_file():
            everywhere[str(path.relative_to(folder))] = path.read_bytes()
    leaks = [(what, where) for where, data in everywhere.items() for what, canary in secret.items() if canary in data]
    assert leaks == []
    page = (processes.run / "report.html").read_text()
    assert "insecure" in page, "the report says that there was no TLS"
    assert "fedkeel compare" not in page, "real sites have no IID twin"


def private(home: Path) -> dict[str, bytes]:
    """What SCAFFOLD's client keeps: its c_i. That of the first round is sent as the first difference."""
    with sqlite3.connect(home / "private" / "private.sqlite") as file:
        (data,) = file.execute("SELECT tree FROM private ORDER BY exchange DESC").fetchone()
    return {name: value.numpy().tobytes()[:32] for name, value in from_bytes(data).items() if value.numel() >= 8}
