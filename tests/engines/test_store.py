"""What clients keep for themselves: the right version after refusals, kills and fallbacks, on disk and in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedkeel.core.errors import FedkeelError
from fedkeel.core.tree import Tree
from fedkeel.engines import store as module
from fedkeel.engines.store import KEPT, Store

NOTHING = -1


def tree(value: float, numbers: int = 3) -> Tree:
    return {"c_i.weight": torch.full((numbers,), float(value)), "c_i.bias": torch.tensor(float(value))}


def value_of(found: Tree | None) -> float | None:
    if found is None:
        return None
    assert list(found) == ["c_i.bias", "c_i.weight"] or list(found) == ["c_i.weight", "c_i.bias"]
    assert (found["c_i.weight"] == found["c_i.bias"]).all()
    return float(found["c_i.bias"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private.sqlite"


@pytest.fixture(params=["memory", "disk", "disk, opened again"])
def stores(request: pytest.FixtureRequest, path: Path) -> Iterator[list[Store]]:
    """A store with versions 1000, 2000 and 3000 of client a and 2000 of client b; the number is the value as well."""
    store = Store(None if request.param == "memory" else path, "run")
    for client, exchange in (("a", 1000), ("a", 2000), ("b", 2000), ("a", 3000)):
        store.write(client, exchange, tree(exchange))
        if request.param != "memory":
            store.commit()
    if request.param == "disk, opened again":
        store.close()
        store = Store(path, "run")
    made = [store]
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("accepted", "a", "b"),
    [(NOTHING, None, None), (999, None, None), (1000, 1000, None), (2500, 2000, 2000), (3000, 3000, 2000)],
)
def test_the_newest_version_up_to_the_accepted_exchange_is_read(
    accepted: int, a: float | None, b: float | None, stores: list[Store]
) -> None:
    (store,) = stores
    assert (value_of(store.read("a", accepted)), value_of(store.read("b", accepted))) == (a, b)
    assert (value_of(store.read("a", accepted)), value_of(store.read("b", accepted))) == (a, b), "and again"
    assert store.read("c", accepted) is None


def test_a_version_that_was_not_accepted_is_dropped_for_good() -> None:
    """The server asks again with the version before it: what was made after that is not real."""
    store = Store()
    store.write("a", 1000, tree(1))
    store.write("a", 2000, tree(2))
    assert value_of(store.read("a", 1000)) == 1
    assert value_of(store.read("a", 9000)) == 1


def test_of_versions_on_disk_any_is_read_in_any_order(path: Path) -> None:
    store = Store(path, "run")
    for exchange in (1000, 2000, 3000):
        store.write("a", exchange, tree(exchange))
        store.commit()
    found = {at: value_of(store.read("a", at)) for at in (3000, 1000, 2000, 3000, 2999)}
    assert found == {3000: 3000, 1000: 1000, 2000: 2000, 2999: 2000}
    store.close()


def test_what_was_written_is_no_view_of_what_was_given() -> None:
    store, stacked = Store(), torch.zeros(2, 3)
    store.write("a", 1, {"x": stacked[0]})
    stacked += 1
    found = store.read("a", 1)
    assert found is not None
    assert found["x"].tolist() == [0, 0, 0]
    assert found["x"].untyped_storage().nbytes() == 3 * 4, "nor does it hold a stack of clients in memory"


# ---- after a fallback


def test_forgetting_drops_what_came_later(stores: list[Store]) -> None:
    (store,) = stores
    store.commit()
    store.forget_after(2000)
    if store._path is None:  # without a file nothing lasts
        assert store.read("a", 9000) is None
        return
    assert value_of(store.read("a", 9000)) == 2000
    assert value_of(store.read("b", 9000)) == 2000
    store.forget_after(NOTHING)
    assert store.read("a", 9000) is None
    assert store.clients() == []


def test_forgetting_drops_what_waits(path: Path) -> None:
    """It was never committed, so no checkpoint speaks of it."""
    store = Store(path, "run")
    store.write("a", 1000, tree(1))
    store.commit()
    store.write("a", 2000, tree(2))
    store.forget_after(2000)
    assert value_of(store.read("a", 9000)) == 1
    store.close()


# ---- what lasts


def versions(path: Path, client: str = "a") -> list[int]:
    with sqlite3.connect(path) as file:
        found = file.execute("SELECT exchange FROM private WHERE client = ? ORDER BY exchange", (client,)).fetchall()
    return [exchange for (exchange,) in found]


def test_a_commit_keeps_the_newest_accepted_version_only(path: Path) -> None:
    """Of three that wait: 3000 was refused, 1000 is older than 2000."""
    store = Store(path, "run")
    for client in ("a", "refused"):
        for exchange in (1000, 2000, 3000):
            store.write(client, exchange, tree(exchange))
    store.commit({"a": 2500, "refused": NOTHING}.__getitem__)
    assert versions(path) == [2000]
    assert versions(path, "refused") == []
    assert value_of(store.read("a", 9000)) == 2000
    assert store.read("refused", 9000) is None
    store.close()


def test_a_commit_without_a_judge_keeps_all_that_waits(path: Path) -> None:
    """A real site does not know yet what the server will say."""
    store = Store(path, "run")
    store.write("a", 1000, tree(1))
    store.write("a", 2000, tree(2))
    store.commit()
    assert versions(path) == [1000, 2000]
    store.close()


def test_what_waits_is_not_on_disk(path: Path) -> None:
    store = Store(path, "run")
    store.write("a", 1000, tree(1))
    store.commit()
    store.write("a", 2000, tree(2))
    store.close()  # killed
    after = Store(path, "run")
    assert value_of(after.read("a", 9000)) == 1
    after.close()


def test_few_versions_are_on_disk(path: Path) -> None:
    """The last ones: the server may have to fall back on the checkpoint before its last one."""
    store = Store(path, "run")
    store.write("b", 500, tree(0))
    for exchange in range(1000, 11_000, 1000):
        store.write("a", exchange, tree(exchange))
        store.commit(lambda client: 10**6)
        assert len(versions(path)) <= KEPT == 3
    assert versions(path) == [8000, 9000, 10_000]
    assert versions(path, "b") == [500], "of each client"
    store.close()


def test_a_version_that_is_made_again_replaces_the_old_one(path: Path) -> None:
    store = Store(path, "run")
    for value in (1, 2):
        store.write("a", 1000, tree(value))
        store.commit()
    assert versions(path) == [1000]
    assert value_of(store.read("a", 1000)) == 2
    store.close()
    after = Store(path, "run")
    assert value_of(after.read("a", 1000)) == 2
    after.close()


def test_trees_come_back_bit_by_bit(path: Path) -> None:
    numbers = {
        "float": torch.tensor([1e-45, -0.0, float("inf"), 3.3]),
        "double": torch.tensor([[1 / 3]], dtype=torch.float64),
        "whole": torch.tensor([2**62]),
        "none": torch.zeros(0, 4),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    store = Store(path, "run")
    store.write("ä client, 'quoted'", 1000, numbers)
    store.commit()
    store.close()
    after = Store(path, "run")
    found = after.read("ä client, 'quoted'", 1000)
    assert found is not None
    for name, value in numbers.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert found[name].numpy().tobytes() == value.contiguous().numpy().tobytes()
    after.close()


def test_no_file_is_made_where_nobody_keeps_anything(path: Path) -> None:
    store = Store(path, "run")
    assert store.read("a", 5) is None
    store.commit(lambda client: 5)
    store.forget_after(0)
    assert store.clients() == []
    assert not path.exists()


def test_who_holds_something_is_told_in_order(path: Path) -> None:
    store = Store(path, "run")
    for client in ("c", "a"):
        store.write(client, 1000, tree(1))
    store.commit()
    store.write("b", 2000, tree(1))
    assert store.clients() == ["a", "b", "c"]
    store.drop("b")
    assert store.clients() == ["a", "c"]
    store.close()


def test_who_holds_nothing_any_more_is_not_told() -> None:
    """The only version of its tree was refused."""
    store = Store()
    store.write("a", 1000, tree(1))
    assert store.read("a", NOTHING) is None
    assert store.clients() == []


# ---- one file, several runs


def test_two_runs_in_one_file_do_not_mix(path: Path) -> None:
    one, other = Store(path, "one"), Store(path, "other")
    one.write("a", 1000, tree(1))
    one.commit()
    other.write("a", 1000, tree(2))
    other.write("b", 2000, tree(3))
    other.commit()
    assert (value_of(one.read("a", 9000)), value_of(other.read("a", 9000))) == (1, 2)
    assert one.read("b", 9000) is None
    assert (one.clients(), other.clients()) == (["a"], ["a", "b"])
    other.forget_after(NOTHING)
    assert value_of(one.read("a", 9000)) == 1
    one.close()
    after = Store(path, "one")
    assert value_of(after.read("a", 9000)) == 1
    for store in (after, other):
        store.close()


# ---- damage


def committed(path: Path, clients: int = 1, numbers: int = 3) -> None:
    store = Store(path, "run")
    for client in range(clients):
        store.write(f"site-{client}", 1000, tree(client, numbers))
    store.commit()
    store.close()


def refused(path: Path) -> None:
    """Whatever is done with the store, one line says which file and what to do; or it works, if it need not read."""
    uses = {
        "read": lambda store: store.read("site-0", 9000),
        "forget": lambda store: store.forget_after(500),
        "clients": lambda store: store.clients(),
        "commit": lambda store: (store.write("site-0", 2000, tree(1)), store.commit()),
    }
    for name, use in uses.items():
        store = Store(path, "run")
        with pytest.raises(FedkeelError) as damaged:
            use(store)
        line = str(damaged.value)
        assert str(path) in line, name
        assert "is damaged" in line, name
        assert "\n" not in line, name
        store.close()


def test_a_damaged_tree_is_named(path: Path) -> None:
    """A byte of its numbers: the file itself is whole."""
    committed(path, clients=2)
    with sqlite3.connect(path) as file:
        (data,) = file.execute("SELECT tree FROM private WHERE client = 'site-1'").fetchone()
        file.execute("UPDATE private SET tree = ? WHERE client = 'site-1'", (data[:-1] + b"\x07",))
    store = Store(path, "run")
    with pytest.raises(FedkeelError, match=rf"{path}, .* is damaged \(the tree of client site-1 is not") as damaged:
        store.read("site-1", 9000)
    assert "\n" not in str(damaged.value)
    store.close()


def test_a_tree_that_is_no_tree_is_named(path: Path) -> None:
    """With the digest of what stands there."""
    committed(path)
    with sqlite3.connect(path) as file:
        digest = module._digest("run", "site-0", 1000, b"garbage")
        file.execute("UPDATE private SET tree = ?, digest = ?", (b"garbage", digest))
        whole = module._digest("run", NOTHING, digest)
        file.execute("UPDATE seals SET digest = ?", (whole,))
    store = Store(path, "run")
    with pytest.raises(FedkeelError, match=rf"{path}, .* is damaged \(.*header") as damaged:
        store.read("site-0", 9000)
    assert "\n" not in str(damaged.value)
    store.close()


@pytest.mark.parametrize(
    "loss",
    [
        "DELETE FROM private WHERE client = 'site-1'",
        "UPDATE private SET exchange = 1001 WHERE client = 'site-1'",
        "UPDATE private SET client = 'site-x' WHERE client = 'site-1'",
        "UPDATE private SET run = 'rum' WHERE client = 'site-1'",
        "UPDATE seals SET settled = 2000",
        "DELETE FROM seals",
    ],
)
def test_a_version_that_is_lost_is_noticed(loss: str, path: Path) -> None:
    """A client without its tree would begin anew, and with an older one go another way."""
    committed(path, clients=3)
    with sqlite3.connect(path) as file:
        assert file.execute(loss).rowcount == 1
    refused(path)


def test_a_file_that_lost_its_last_commits_is_noticed(path: Path) -> None:
    """As with a write-ahead log that was cut: what is there is whole, but it ends too early."""
    store = Store(path, "run")
    store.write("a", 1000, tree(1))
    store.commit(lambda client: 1000, 1000)
    store.close()
    before = path.read_bytes()
    store = Store(path, "run")
    store.forget_after(1000, 1000)
    store.write("a", 2000, tree(2))
    store.commit(lambda client: 2000, 2000)
    store.close()
    path.write_bytes(before)
    store = Store(path, "run")
    with pytest.raises(FedkeelError, match=r"is damaged .it ends at exchange 1000 of 2000.: run again"):
        store.forget_after(2000, 2000)
    store.close()


def test_a_file_that_is_none_of_ours_is_named(path: Path) -> None:
    path.write_bytes(b"this is no database, however long it may be " * 100)
    refused(path)


def test_a_file_with_damaged_pages_is_named(path: Path) -> None:
    """The first page is whole, so that it opens."""
    committed(path, clients=40, numbers=2000)
    data = bytearray(path.read_bytes())
    assert len(data) > 20 * 4096
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(bytes(data))
    refused(path)


def test_a_file_that_was_cut_is_named(path: Path) -> None:
    committed(path, clients=40, numbers=2000)
    data = path.read_bytes()
    path.write_bytes(data[: 4096 * 3])
    refused(path)


# ---- memory


def test_what_is_read_often_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(path)
    store, asked = Store(path, "run"), []
    from_file = store._from_file
    monkeypatch.setattr(store, "_from_file", lambda *given: asked.append(given) or from_file(*given))
    for _ in range(3):
        assert value_of(store.read("site-0", 1000)) == 0
    assert len(asked) == 1
    store.close()


@pytest.mark.parametrize("room", [0, 2500, 10**9])
def test_memory_is_bounded_and_what_was_put_out_is_read_again(
    room: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 trees of 404 bytes six fit into 2,500 bytes."""
    monkeypatch.setattr(module, "MEMORY", room)
    committed(path, clients=20, numbers=100)
    store = Store(path, "run")
    for _ in range(2):
        for client in range(20):
            assert value_of(store.read(f"site-{client}", 1000)) == client
            held = [one for _, one in store._read.values()]
            assert sum(value.nbytes for one in held for value in one.values()) == store._bytes <= room
    assert len(store._read) == {0: 0, 2500: 6, 10**9: 20}[room]
    store.forget_after(1000)
    assert (len(store._read), store._bytes) == (0, 0)
    assert value_of(store.read("site-7", 1000)) == 7
    store.close()


def test_commits_are_bounded_as_well(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A federation whose trees do not fit into memory: they are held until they are on disk, and no longer."""
    monkeypatch.setattr(module, "MEMORY", 2500)
    store = Store(path, "run")
    for round in (1, 2, 3):
        for client in range(20):
            store.write(f"site-{client}", 1000 * round, tree(client + round, 100))
        store.commit(lambda client: 10**6)
        assert not store._waiting
        assert store._bytes <= 2500
    assert [value_of(store.read(f"site-{client}", 10**6)) for client in range(20)] == [k + 3 for k in range(20)]
    store.close()
