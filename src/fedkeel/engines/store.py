"""What clients keep for themselves: every version of a private tree with the exchange it belongs to.

A version becomes real when the server has accepted the update that was made with it; the versions before it stay until
then. So a client whose update was refused, or whose server went back to an earlier checkpoint, goes on with the right
one. One store serves a whole simulated federation or one site; it never leaves the site half.

Versions are written to SQLite: a file for all clients, read as far as they are needed. In a simulation they wait in
memory until the server writes its checkpoint. Each version has a digest, and the file one of all of them and of how far
it goes, so that a version that was changed or lost is noticed when the file is opened.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from safetensors import SafetensorError

from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import NEVER
from fedkeel.core.tree import Tree, from_bytes, to_bytes

KEPT = 3
"""Versions kept of each client: the server may have to fall back on the checkpoint before its last one."""
MEMORY = 256 * 2**20
"""Bytes of trees that are held in memory so that they need not be read again."""
TABLE = """
CREATE TABLE IF NOT EXISTS private (
    run TEXT, client TEXT, exchange INTEGER, digest BLOB NOT NULL, tree BLOB NOT NULL,
    PRIMARY KEY (run, client, exchange)
) WITHOUT ROWID
"""
SEALS = "CREATE TABLE IF NOT EXISTS seals (run TEXT PRIMARY KEY, settled INTEGER, digest BLOB NOT NULL) WITHOUT ROWID"
"""Of each run: the last exchange that was accepted by then, and the digest of all versions and of that."""


class Store:
    """The private trees of one run, by client and exchange; without a path in memory alone."""

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self._path, self._run = path, run
        self._file: sqlite3.Connection | None = None
        self._waiting: dict[str, dict[int, Tree]] = {}
        self._read: OrderedDict[str, tuple[int, Tree]] = OrderedDict()
        self._bytes = 0
        self._there = path is not None and path.exists()
        self._settled = NEVER

    def read(self, client: str, accepted: int) -> Tree | None:
        """The client's tree as of the last update that was accepted from it; None if it never had one."""
        if not self._waiting and not self._read and not self._there:
            return None
        versions = self._waiting.get(client, {})
        for later in [exchange for exchange in versions if exchange > accepted]:
            del versions[later]
        if versions:
            return versions[max(versions)]
        found = self._read.get(client)
        if found is None or found[0] > accepted:
            found = self._from_file(client, accepted)
        return None if found is None else found[1]

    def write(self, client: str, exchange: int, tree: Tree) -> None:
        """A new version, which belongs to an exchange that the server has not answered yet."""
        own = {name: value.detach().clone() for name, value in tree.items()}  # no view of a stack of clients
        versions = self._waiting.setdefault(client, {})
        versions[exchange] = own
        if len(versions) > KEPT:
            del versions[min(versions)]

    def commit(self, accepted: Callable[[str], int] | None = None, settled: int = NEVER) -> None:
        """Make versions last on disk: of each client the newest one accepted, or all where nobody can say yet.

        ``settled`` is the last exchange of all that was accepted from anybody.
        """
        if self._path is None:
            return
        with self._guarded():
            for client, versions in self._waiting.items():
                if accepted is not None:
                    known = [exchange for exchange in versions if exchange <= accepted(client)]
                    versions = {max(known): versions[max(known)]} if known else {}
                for exchange, tree in versions.items():
                    self._keep(client, exchange, tree)
            if self._there:
                self._seal(settled)
        self._waiting = {}

    def drop(self, client: str) -> None:
        """Forget what waits of a client."""
        self._waiting.pop(client, None)

    def forget_after(self, exchange: int, settled: int = NEVER) -> None:
        """Drop every version that belongs to a later exchange; what is there must go as far as ``settled``."""
        self._waiting = {}
        self._read.clear()
        self._bytes = 0
        if self._there:
            with self._guarded():
                file = self._open()
                if self._settled < settled:
                    raise self._damaged(f"it ends at exchange {self._settled} of {settled}")
                file.execute("DELETE FROM private WHERE run = ? AND exchange > ?", (self._run, exchange))
                self._seal(settled)

    def clients(self) -> list[str]:
        """Who holds something, in the order of the names."""
        there = {client for client, versions in self._waiting.items() if versions}
        if self._there:
            query = "SELECT DISTINCT client FROM private WHERE run = ?"
            with self._guarded():
                there |= {name for (name,) in self._open().execute(query, (self._run,))}
        return sorted(there)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> sqlite3.Connection:
        if self._file is None:
            assert self._path is not None
            with self._guarded():
                self._file = sqlite3.connect(self._path)
                self._file.execute("PRAGMA journal_mode = WAL")
                self._file.execute("PRAGMA synchronous = FULL")
                self._file.execute(TABLE)
                self._file.execute(SEALS)
                self._verify(self._file)
                self._there = True
        assert self._file is not None
        return self._file

    def _verify(self, file: sqlite3.Connection) -> None:
        """Make sure that every version is there and is the one that was written."""
        of_run = "FROM private WHERE run = ? ORDER BY client, exchange"
        for client, exchange, digest, data in file.execute(
            f"SELECT client, exchange, digest, tree {of_run}", (self._run,)
        ):
            if _digest(self._run, client, exchange, data) != digest:
                raise self._damaged(f"the tree of client {client} is not the one that was written")
        found = file.execute("SELECT settled, digest FROM seals WHERE run = ?", (self._run,)).fetchone()
        if found is not None and found[1] == self._digest_of_all(file, found[0]):
            self._settled = found[0]
        elif found is not None or file.execute(f"SELECT client {of_run}", (self._run,)).fetchone() is not None:
            raise self._damaged("versions are missing, or it is of an older fedkeel")

    def _seal(self, settled: int) -> None:
        """Write down what there is, and make it last."""
        file = self._open()
        self._settled = settled
        digest = self._digest_of_all(file, settled)
        file.execute("INSERT OR REPLACE INTO seals VALUES (?, ?, ?)", (self._run, settled, digest))
        file.commit()

    def _digest_of_all(self, file: sqlite3.Connection, settled: int) -> bytes:
        query = "SELECT digest FROM private WHERE run = ? ORDER BY client, exchange"
        return _digest(self._run, settled, *(digest for (digest,) in file.execute(query, (self._run,))))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What SQLite has to say, in one line."""
        try:
            yield
        except (SafetensorError, UnicodeDecodeError) as error:
            raise self._damaged(error) from None
        except sqlite3.Error as error:
            if self._file is not None:
                self._file.rollback()
            if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":  # not all errors have a name
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from None
            raise self._damaged(error) from None

    def _keep(self, client: str, exchange: int, tree: Tree) -> None:
        data = to_bytes({name: value.contiguous() for name, value in tree.items()})
        file = self._open()
        row = (self._run, client, exchange, _digest(self._run, client, exchange, data), data)
        file.execute("INSERT OR REPLACE INTO private VALUES (?, ?, ?, ?, ?)", row)
        older = "SELECT exchange FROM private WHERE run = ?1 AND client = ?2 ORDER BY exchange DESC LIMIT 1 OFFSET ?3"
        delete = f"DELETE FROM private WHERE run = ?1 AND client = ?2 AND exchange < ({older})"
        file.execute(delete, (self._run, client, KEPT - 1))
        self._remember(client, exchange, tree)

    def _from_file(self, client: str, accepted: int) -> tuple[int, Tree] | None:
        """The newest version that is not later than what was accepted; remembered if there is no newer one at all."""
        if not self._there:
            return None
        query = "SELECT exchange, digest, tree FROM private WHERE run = ? AND client = ? ORDER BY exchange DESC"
        with self._guarded():
            for number, (exchange, digest, data) in enumerate(self._open().execute(query, (self._run, client))):
                if exchange > accepted:
                    continue
                if _digest(self._run, client, exchange, data) != digest:
                    raise self._damaged(f"the tree of client {client} is not the one that was written")
                # Copied, because arithmetic may round differently where memory is not aligned.
                tree = {name: value.clone() for name, value in from_bytes(data).items()}
                if number == 0:
                    self._remember(client, exchange, tree)
                return exchange, tree
        return None

    def _remember(self, client: str, exchange: int, tree: Tree) -> None:
        self._bytes += _size(tree) - _size(self._read.pop(client, (0, {}))[1])
        self._read[client] = exchange, tree
        while self._bytes > MEMORY:
            _, (_, oldest) = self._read.popitem(last=False)
            self._bytes -= _size(oldest)

    def _damaged(self, error: object) -> FedkeelError:
        return FedkeelError(
            f"{self._path}, where clients keep what is their own, is damaged ({error}): run again with another --out"
        )


def _digest(*parts: str | int | bytes) -> bytes:
    """Of texts, numbers and bytes, also if one of them should have been another kind."""
    whole = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.digest()


def _size(tree: Tree) -> int:
    return sum(value.nbytes for value in tree.values())
