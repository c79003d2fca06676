"""Faults with the figures that they must show. The long ones are ``make faults``, which keeps their table in docs/."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from flwr.app import Message

import real
from contract.methods import start_of
from direct_grid import DirectGrid, InProcess
from federations import clients
from fedkeel.core.errors import BadMessage
from fedkeel.core.message import Down, Up, encode
from fedkeel.core.method import METHODS
from fedkeel.core.tree import Tree, digest, from_bytes, select
from fedkeel.core.watch import Watch
from fedkeel.engines.flower import post
from fedkeel.engines.flower.envelope import Head, wrap
from fedkeel.engines.server import Server
from fedkeel.engines.wire import WireEngine
from fedkeel.runs.checkpoint import Checkpoints
from fedkeel.runs.events import EVENTS, Log
from fedkeel.runs.loop import Loop
from fuzz.mutations import changed, one_of, safetensors_bytes
from killed_site import POINTS
from real import Real

LONG = pytest.mark.long
TABLE = Path(__file__).parents[2] / "docs" / "faults.md"


# ---- short, without processes


def played(ours: Any, method: Any, folder: Path, lost: int = 3, told: list[str] | None = None) -> str:
    """The digest of a whole run, with its record and checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    watch = Watch(notice=(told if told is not None else []).append)
    with Checkpoints(folder, "experiment", every=0) as checkpoints, Log(folder / EVENTS) as log:
        state = Loop(method, ours, log, checkpoints, lost=lost, watch=watch).rounds(start_of(method))
    return digest(state.shared)


def test_three_in_ten_drop_out_for_a_hundred_rounds(tmp_path: Path) -> None:
    """Some are away, some are asked and never reply: whoever replied is counted, and the run goes on."""
    method = METHODS["fedavg"](rounds=100, batch=8)
    ours = InProcess.of(clients(), method, tmp_path / "sites", deadline=0.05, quorum=0.25)
    drawn, exchange, dropped = random.Random(0), ours.engine.exchange, list[set[str]]()

    def with_drop_outs(method: Any, state: Any, phase: Any, round: int, cohort: Any) -> Any:
        gone = {client for client in cohort if drawn.random() < 0.3}
        ours.grid.away = {100 + client for client in gone if drawn.random() < 0.5}
        ours.grid.silent = {100 + client for client in gone} - ours.grid.away
        found = exchange(method, state, phase, round, cohort)
        assert {refusal.client for refusal in found.refused} >= {ours.engine.roster.names[client] for client in gone}
        dropped.append({ours.engine.roster.names[client] for client in gone})
        return found

    ours.engine.exchange = with_drop_outs  # type: ignore[method-assign]
    played(ours.engine, method, tmp_path / "run", lost=9)
    assert len(dropped) >= 100
    assert sum(map(len, dropped)) > 100


def test_below_quorum_a_round_is_skipped_and_named_and_goes_on_later(tmp_path: Path) -> None:
    method = METHODS["fedavg"](rounds=3, batch=8)
    expected = played(WireEngine(clients()), method, tmp_path / "wire")
    ours = InProcess.of(clients(), method, tmp_path / "sites", deadline=0.2, quorum=0.75)
    able, told = ours.engine.roster.able, list[str]()
    exchange, tries = ours.engine.exchange, [0]

    def not_at_first(method: Any, state: Any, phase: Any, round: int, cohort: Any) -> Any:
        tries[0] += 1
        ours.grid.silent = {100 + client for client in able[: len(able) // 2]} if 2 <= tries[0] <= 3 else set()
        return exchange(method, state, phase, round, cohort)

    ours.engine.exchange = not_at_first  # type: ignore[method-assign]
    assert played(ours.engine, method, tmp_path / "run", told=told) == expected
    assert len(told) == 2
    assert all("round 2" in line and "below the quorum of" in line for line in told), told


@dataclass
class Unruly(DirectGrid):
    """It brings replies in any order, twice, late, and those of other requests again."""

    drawn: random.Random = field(default_factory=random.Random)
    seen: list[Message] = field(default_factory=list)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        held = {id for id in message_ids if self.drawn.random() < 0.3}
        fresh = list(super().pull_messages([id for id in message_ids if id not in held]))
        again = self.drawn.choices(self.seen, k=self.drawn.randrange(4)) if self.seen else []
        self.seen = [*self.seen[-50:], *fresh]
        brought = [*fresh, *again, *self.drawn.sample(fresh, k=len(fresh) // 2)]
        self.drawn.shuffle(brought)
        return brought


def test_a_thousand_unruly_sequences_count_every_reply_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "POLL", 0.0)
    ours = InProcess.of(clients(), METHODS["fedavg"](rounds=1, batch=8), tmp_path)
    calm = ours.grid
    counted = dict.fromkeys((100, 101, 102), 0)

    def counting(node: int) -> Any:
        worker = ours.workers[node - 100]

        def one(content: bytes) -> bytes:
            counted[node] += 1
            return worker.answer(worker.reopened(content))

        return one

    unruly = Unruly(calm.keys, {node: counting(node) for node in counted}, drawn=random.Random(0))
    ours.engine.post.grid = unruly  # type: ignore[assignment]
    down = encode(Down("simulation", 0, "enrol", {}))
    everybody = dict.fromkeys(range(3), down)
    first = [reply.body[-72:] for reply in ours.engine.post.ask("enrol", everybody)]
    for sequence in range(1, 1001):
        replies = ours.engine.post.ask("enrol", everybody)
        assert [reply.client for reply in replies] == list(everybody)
        assert [reply.problem for reply in replies] == [""] * len(everybody)
        assert [reply.body[-72:] for reply in replies] == first, "the counts"
        assert set(counted.values()) == {sequence + 1}


def test_an_unruly_network_does_not_show_in_the_model(tmp_path: Path) -> None:
    method = METHODS["scaffold"](rounds=4, batch=8)
    expected = played(WireEngine(clients()), method, tmp_path / "wire")
    ours = InProcess.of(clients(), method, tmp_path / "sites")
    ours.engine.post.grid = Unruly(ours.grid.keys, ours.grid.answers, drawn=random.Random(1))  # type: ignore[assignment]
    assert played(ours.engine, method, tmp_path / "run") == expected


@dataclass
class Straggling(DirectGrid):
    """What ``slow`` sites reply comes with the replies of the exchange after."""

    slow: set[int] = field(default_factory=set)
    late: list[Message] = field(default_factory=list)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        came, self.late = self.late, []
        asked = list(message_ids)
        held = {id for id in asked if id in self._replies and self._replies[id].metadata.src_node_id in self.slow}
        return [*came, *super().pull_messages([id for id in asked if id not in held])]

    def deliver(self) -> None:
        self.late, self._replies = list(self._replies.values()), {}


def test_what_comes_after_its_deadline_never_counts(tmp_path: Path) -> None:
    """A tenth of the sites, others in each exchange, reply when the next one is on: as if they had been away."""
    method, sites = METHODS["scaffold"](rounds=4, batch=8), clients((20,) * 10)
    drawn = random.Random(0).choices(range(10), k=20)
    digests, stale = [], 0
    for name in ("away", "slow"):
        ours = InProcess.of(sites, method, tmp_path / name, deadline=0.2)
        calm, exchange, tries = ours.grid, ours.engine.exchange, iter(drawn)
        grid = Straggling(calm.keys, calm.answers)
        ours.engine.post.grid = grid  # type: ignore[assignment]

        def one(*given: Any, grid: Any = grid, name: str = name, exchange: Any = exchange, tries: Any = tries) -> Any:
            nonlocal stale
            grid.deliver()
            stale += len(grid.late)
            straggler = next(tries)
            setattr(grid, name, {100 + straggler})
            found = exchange(*given)
            assert [refusal.client for refusal in found.refused] == [f"site-{straggler}"]
            assert found.accepted == 9
            return found

        ours.engine.exchange = one  # type: ignore[method-assign]
        digests.append(played(ours.engine, method, tmp_path / f"run {name}"))
    assert stale >= 3, "of each exchange but the last"
    assert digests[0] == digests[1]


# ---- long, real processes and real kill -9


Keep = Callable[[str, str, str], None]


@pytest.fixture
def keep() -> Keep:
    """What was done, how often, and seen: printed, and a row of the page, in the place of the one that was there."""

    def kept(what: str, often: str, seen: str) -> None:
        row = f"| {what} | {often} | {seen} |"
        print(f"\n{row}")
        before, begin, rest = TABLE.read_text().partition("|---|---|---|\n")
        rows, end, after = rest.partition("\n\n")
        others = [line for line in rows.splitlines() if not line.startswith(f"| {what} |")]
        TABLE.write_text(before + begin + "\n".join(sorted([*others, row])) + end + after)

    return kept


RUNS = {
    "fedavg": ("method.name=fedavg", "method.rounds=10", "method.epochs=1"),
    "scaffold": ("method.name=scaffold", "method.rounds=10", "method.epochs=1"),
    "fedpurel": ("method.name=fedpurel", "method.peft=prompt", "method.rounds=5", "data.limit=120"),
}


@LONG
@pytest.mark.parametrize("name", RUNS)
def test_kills_at_random_moments_leave_no_trace(name: str, tmp_path: Path, keep: Keep) -> None:
    """Twenty of the server, of the SuperLink and of a site; as many runs as that takes."""
    exp, drawn = real.of(*RUNS[name]), random.Random(name)
    expected = real.simulated(exp, tmp_path / "wire")
    victims = drawn.sample(kills := ["server", "superlink", "site"] * 20, k=len(kills))
    runs = again = 0
    while victims:
        runs += 1
        with Real(tmp_path / f"run {runs}", exp, deadline=120).everything() as processes:
            started = 1
            while victims and processes.alive("server"):
                sleep(drawn.uniform(0.2, 6.0))
                victim = victims.pop()
                victim = drawn.choice(processes.names) if victim == "site" else victim
                processes.kill(victim)
                processes.start(victim)
                started += victim == "server"
            summary = processes.finished(600)
            assert summary["digest"] == expected.digest
            assert summary["accuracy_curve"] == expected.summary["accuracy_curve"]
            done = [(event["round"], event["index"]) for event in processes.events("exchange")]
            again += (redone := len(done) - len(set(done)))
            assert redone <= started, "at most one phase is done again for each start"
            same_private(tmp_path / "wire", processes)
    seen = f"same bits, also of what sites keep; runs that this took: {runs}, phases done again: {again}"
    keep(f"server, SuperLink and sites killed at random moments, {name}", "20 each", seen)


def same_private(wire: Path, processes: Real) -> None:
    """What each site keeps for itself is what it keeps in the simulation."""
    if not (wire / "journal" / "private.sqlite").exists():
        return
    for name in processes.names:
        expected = newest(wire / "journal" / "private.sqlite", name)
        found = newest(processes.folder / "sites" / name / "private" / "private.sqlite", name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], value) for key, value in expected.items())


def newest(path: Path, client: str) -> Tree:
    query = "SELECT tree FROM private WHERE client = ? ORDER BY exchange DESC"
    with sqlite3.connect(path) as file:
        return from_bytes(file.execute(query, (client,)).fetchone()[0])


@LONG
@pytest.mark.parametrize("point", POINTS)
def test_a_site_killed_at_a_point_goes_on(point: str, tmp_path: Path, keep: Keep) -> None:
    """SCAFFOLD, whose model goes wrong if what a site keeps does."""
    exp = real.of("method.name=scaffold", "method.rounds=24", "method.epochs=1")
    expected = real.simulated(exp, tmp_path / "wire")
    with Real(tmp_path / "real", exp) as processes:
        victim = processes.names[0]
        plain = processes.command(victim)
        wrapper = [sys.executable, str(Path(real.__file__).parent / "killed_site.py"), point, plain[-1]]
        said = processes.command
        processes.command = lambda name: wrapper if name == victim else said(name)  # type: ignore[method-assign]
        processes.everything()
        for _ in range(20):
            processes.until(lambda: not processes.alive(victim), f"a death {point}")
            assert processes.running[victim].returncode == -signal.SIGKILL, processes.told()
            processes.start(victim)
        processes.command = said  # type: ignore[method-assign]
        processes.kill(victim)
        processes.start(victim)
        assert processes.finished(600)["digest"] == expected.digest
        same_private(tmp_path / "wire", processes)
    keep(f"a site killed {point}, scaffold", "20", "same bits, also of what it keeps")


@LONG
def test_a_hundred_thousand_damaged_messages_do_no_harm(tmp_path: Path, keep: Keep) -> None:
    """Half of them to a server, half to a site; then both go on as if nothing had been."""
    method = METHODS["fedavg"](rounds=2, batch=8)
    expected = played(WireEngine(clients()), method, tmp_path / "wire")
    ours = InProcess.of(clients(), method, tmp_path / "sites")
    engine, worker, (phase,), state = ours.engine, ours.workers[0], method.plan(1), start_of(method)
    name, rows = engine.roster.names[0], float(engine.roster.rows[0])
    up = encode(Up(engine.roster.run, 1, phase.name, name, rows, select(state.shared, phase.sends)))
    down = encode(Down(engine.roster.run, 1, phase.name, state.down))
    letter = wrap(Head(worker.terms.sha256, worker.site.name, 10**9, "train", 1, 0), down, engine.post.key)
    to_server, to_site = one_of(changed(up), safetensors_bytes(up)), changed(letter)
    drawn, refused, before, each = random.Random(0), 0, 0, 50_000
    for number in range(each):
        server = Server(engine.roster, engine.accepted.copy(), method, state, phase, 1)
        server.receive(0, to_server(drawn))
        refused += server.outcome([0]).accepted == 0
        try:
            worker.opened(to_site(drawn))
        except BadMessage:
            refused += 1
        if number == each // 10:  # all is imported by now, and every kind of change was drawn
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    assert refused > 0.9 * 2 * each, "most changes make a message unsound; some are within a number"
    assert grown <= 100
    assert played(engine, method, tmp_path / "run") == expected
    keep(
        "damaged messages to a server and to a site",
        f"{2 * each:,}",
        f"{refused:,} refused, {grown:.0f} MB more memory",
    )


@LONG
def test_a_straggler_is_not_waited_for(tmp_path: Path, keep: Keep) -> None:
    deadline = 30.0
    exp = real.of("method.name=fedavg", "method.rounds=12", "method.epochs=1")
    with Real(tmp_path / "real", exp, deadline=deadline).everything() as processes:
        victim = processes.names[0]
        processes.until(lambda: len(processes.events("exchange")) > 2, "an exchange")
        os.kill(processes.running[victim].pid, signal.SIGSTOP)
        processes.until(lambda: len(late(processes, victim)) > 1, "an exchange without it")
        os.kill(processes.running[victim].pid, signal.SIGCONT)
        before = len(processes.events("exchange"))
        processes.finished(600)
        after = processes.events("exchange")[before:]
        without = late(processes, victim)
        assert after, "it was over before the site was back"
        assert any(victim not in {refusal["client"] for refusal in event["refused"]} for event in after), "it is back"
        longest = max(event["seconds"] for event in processes.events("round"))
        assert longest <= 1.1 * deadline
    seen = f"{len(without)} exchanges without it, the longest round took {longest / deadline:.2f} deadlines; it is back"
    keep("a site stopped for several deadlines, then going on", "1", seen)


@LONG
def test_a_full_disk_at_one_site_stops_nobody(tmp_path: Path, keep: Keep) -> None:
    """A real one: the folder in which the site keeps its letters is a small file system."""
    exp = real.of("method.name=fedavg", "method.rounds=12", "method.epochs=1")
    with Real(tmp_path / "real", exp) as processes:
        victim = processes.names[0]
        kept = processes.folder / "sites" / victim / "private"
        kept.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(kept)], check=True)
        try:
            processes.everything()
            processes.until(lambda: len(processes.events("exchange")) > 1, "an exchange")
            full = kept / "full"
            with suppress(OSError), full.open("wb") as file:
                while True:
                    file.write(bytes(2**12))
                    file.flush()
            processes.until(lambda: len(late(processes, victim)) > 1, "an exchange without it")
            assert processes.alive(victim)
            full.unlink()
            before = len(late(processes, victim))
            processes.finished(300)
            reasons = {one["reason"] for event in late(processes, victim) for one in event["refused"]}
            assert reasons == {"the site's disk is full"}
            assert "no space left on device" in processes.log(victim)
            assert len(late(processes, victim)) <= before + 1, "it takes part again"
            assert len(processes.events("exchange")) == 1 + 12
        finally:
            processes.end(victim)
            subprocess.run(["umount", str(kept)], check=True)
    keep("a full disk at one site, then room again", "1", f"the others went on for {before} rounds; it is back")


def late(processes: Real, victim: str) -> list[dict[str, Any]]:
    asked = processes.events("exchange")
    return [event for event in asked if victim in {refusal["client"] for refusal in event["refused"]}]
