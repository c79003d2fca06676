"""Clients side by side: the same results in the same order, never two at one place, no more at once than threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from signal import SIGINT, default_int_handler, raise_signal, signal
from threading import Event, Lock, Thread, current_thread, main_thread
from time import sleep

import pytest
import torch

import fedkeel as fk
from fedkeel.core.pulse import beat, heard
from fedkeel.engines.threads import Places, in_parallel


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def numbered() -> Places[int]:
    others = count(1)
    return Places(0, lambda: next(others))


def test_results_come_in_order_and_every_place_has_one_worker() -> None:
    guard, busy, most, used = Lock(), set[int](), [0], set[int]()

    def work(place: int, item: int) -> tuple[int, int]:
        with guard:
            assert place not in busy
            busy.add(place)
            used.add(place)
            most[0] = max(most[0], len(busy))
        sleep(0.02 if item % 3 == 0 else 0.002)
        threads = torch.get_num_threads()
        with guard:
            busy.remove(place)
        return item, threads

    assert list(in_parallel(work, range(12), numbered())) == [(item, 1) for item in range(12)]
    assert most[0] > 1
    assert used <= {0, 1, 2}
    assert torch.get_num_threads() == 3
    assert list(in_parallel(work, range(1), numbered())) == [(0, 3)], "one item has all threads"
    assert list(in_parallel(work, range(1), numbered(), among=2)) == [(0, 1)], (
        "the last of several comes out as they did"
    )


def test_a_failure_is_raised_where_its_result_would_come() -> None:
    def work(place: int, item: int) -> int:
        if item == 2:
            raise ValueError("two")
        return item

    results = in_parallel(work, range(6), numbered())
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


@pytest.mark.parametrize("items", [1, 6])
def test_the_main_thread_only_waits_and_hears_ctrl_c_at_once(items: int) -> None:
    """Work that would go on for ever ends at its next step; the one that is waited for is not waited for any more."""
    begun, ended = SimpleQueue[int](), SimpleQueue[int]()

    def work(place: int, item: int) -> int:
        assert current_thread() is not main_thread()
        begun.put(item)
        try:
            while True:
                beat()
                sleep(0.001)
        finally:
            ended.put(item)

    def press() -> None:
        for _ in range(min(items, 3)):
            begun.get()
        raise_signal(SIGINT)  # on this thread, so that it wakes nobody

    before = signal(SIGINT, default_int_handler)
    try:
        Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            next(in_parallel(work, range(items), numbered()))
    finally:
        signal(SIGINT, before)
    assert [ended.get(timeout=10) for _ in range(min(items, 3))]


def test_who_gives_up_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them does not beat: it is left alone after a moment."""
    monkeypatch.setattr("fedkeel.engines.threads.PATIENCE", 0.05)
    ended, free = SimpleQueue[int](), Event()

    def work(place: int, item: int) -> int:
        if item == 1:
            free.wait()
        while item == 2:
            try:
                beat()
            except BaseException:
                ended.put(item)
                raise
        return item

    results = in_parallel(work, range(9), numbered())
    assert next(results) == 0
    results.close()
    assert ended.get(timeout=10) == 2
    free.set()


def test_whoever_listens_hears_the_threads() -> None:
    heard_of: list[int] = []

    def work(place: int, item: int) -> int:
        beat(item)
        return item

    with heard(heard_of.append):
        assert list(in_parallel(work, range(5), numbered())) == list(range(5))
    assert sorted(heard_of) == list(range(5))
    beat(7)
    assert len(heard_of) == 5, "outside of the block nobody listens"


def test_a_network_trained_on_threads_is_the_one_trained_on_none(tmp_path: Path) -> None:
    """Every client has a network to itself, so the number of threads cannot change what comes of it."""
    settings = {
        "data": {"source": "digits", "encoder": "cnn", "limit": 200},
        "partition": {"kind": "dirichlet", "clients": 5, "alpha": 1.0, "test": 0.3},
        "method": {"name": "fedavg", "tune": "network", "rounds": 2, "epochs": 1, "batch": 16, "lr": 1e-3},
    }
    made = {}
    for threads in (1, 3):
        folder = tmp_path / str(threads)
        result = fk.run(out=folder, run={"threads": threads}, **settings)
        record = fk.personalize(folder, method="lp-ft:epochs=3:batch_norm=train", page=False)
        made[threads] = (result.digest, record.end["digest"], [event["on"] for event in record.personal])
    assert made[1] == made[3]
