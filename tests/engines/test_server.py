"""The server's half works on a roster alone: nobody has a row here, and updates are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from backbones import reading_images
from federations import CLASSES, TASK, clients, private_of
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import NEVER, Down, Up, decode, encode
from fedkeel.core.method import Phase, State, Task, Trained, Update, added, exchange_number
from fedkeel.core.rng import generator
from fedkeel.core.roster import Enrolment, Roster
from fedkeel.core.tree import Tree, digest, put
from fedkeel.core.watch import SILENT, Watch
from fedkeel.engines import server as server_module
from fedkeel.engines.base import Exchange, choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.server import FEW, Server
from fedkeel.engines.simulated import Simulated
from fedkeel.engines.store import Store
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.scaffold import Scaffold
from fedkeel.methods.networks.fedrep import FedRep
from fedkeel.runs import loop as loop_module
from fedkeel.runs.checkpoint import JOURNAL, Checkpoints
from fedkeel.runs.events import Log
from fedkeel.runs.loop import Exchanges, Loop, federated_mean
from fedkeel.runs.observers.federated import FederatedEvaluation

WIDE = 500
"""Numbers in what a client of these tests keeps for itself."""


class MadeUp(Trained):
    """Like SCAFFOLD: a head, and control variates that are sent and kept."""

    name = "made-up"

    def start(self, task: Task) -> State:
        told = {"per_client.place": torch.arange(task.clients).float()[:, None]}
        return State({"head.w": torch.zeros(4)}, {"c.w": torch.zeros(4), "first.seed": torch.ones(2)}, told)

    @property
    def first_visit(self) -> tuple[str, ...]:
        return ("first.",)

    def private(self, down: Tree) -> Tree:
        return {"c_i.w": down["first.seed"].repeat(WIDE // 2)}

    def plan(self, round: int) -> list[Phase]:
        sends = ("head.", "c.")
        return [
            Phase("train", trains=("head.",), sends=sends, gets=sends, uniform=("c.",), each=("c.",)),
            Phase("look", sends=(), cohort="same", epochs=0),
        ]

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        heard = {"c.w": update.each["c.w"].mean(0)}
        return replace(state, shared=added(state.shared, update.mean), server=added(state.server, heard))


def sent_by(name: str, round: int) -> Tree:
    """What a client sends in a round, made up."""
    draw = generator(0, "made up", name, round)
    return {key: torch.from_numpy(draw.normal(size=4)).float() for key in ("head.w", "c.w")}


def nothing_done(client: str, reply: bytes) -> bytes:
    return reply


@dataclass
class Remote:
    """An engine whose clients hold no rows: whatever they are asked, they answer with what is made up."""

    roster: Roster
    store: Store = field(default_factory=Store)
    transport: Callable[[str, bytes], bytes] = nothing_done
    asked: list[tuple[str, Down]] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accepted = np.full(len(self.roster.names), NEVER, dtype=np.int64)

    def exchange(self, method: Any, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
        server = Server(self.roster, self.accepted, method, state, phase, round)
        for client in cohort:
            name, data = self.roster.names[client], encode(server.request(client))
            server.bytes_down += len(data)
            down = decode(data)
            assert isinstance(down, Down)
            self.asked.append((name, down))
            mine = self.store.read(name, down.accepted)
            mine = method.private(down.arrays) if mine is None else mine
            moved = 1 if phase.sends else 0
            self.store.write(
                name, exchange_number(method, round, phase), {key: value + moved for key, value in mine.items()}
            )
            if not phase.sends:
                server.nothing_to_send([client])
                continue
            up = Up(down.run, round, phase.name, name, float(self.roster.rows[client]), sent_by(name, round))
            server.receive(client, self.transport(name, encode(up)))
        return server.outcome(cohort)

    def settle(self) -> None:
        self.done.append("settle")
        numbers = {name: client for client, name in enumerate(self.roster.names)}
        self.store.commit(lambda name: int(self.accepted[numbers[name]]))

    def resume(self, accepted: np.ndarray, last: int) -> None:
        self.done.append(("resume", accepted.tolist(), last))
        self.accepted[:] = accepted
        self.store.forget_after(last)


def roster(count: int = 6, empty: int = 2) -> Roster:
    """So many clients with 10, 20, 30, ... rows, and one in between that has none."""
    rows = 10 * (1 + np.arange(count))
    rows[empty] = 0
    return Roster("run", [f"site-{k}" for k in range(count)], rows, 0, ("a", "b"))


def task(of: Roster) -> Task:
    return Task(4, of.classes, len(of.names), of.seed, int(of.rows.sum()))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "events.jsonl") as log:
        yield log


def events(folder: Path, kind: str = "exchange") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


# ---- cohorts


def test_cohorts_need_no_more_than_a_roster() -> None:
    who, method = roster(20, empty=7), MadeUp(participation=0.25)
    phase = method.plan(1)[0]
    drawn = [choose(who, method, phase, round, []) for round in range(1, 40)]
    assert all(len(cohort) == len(set(cohort)) == 5 for cohort in drawn), "a quarter of 19"
    assert {client for cohort in drawn for client in cohort} == set(range(20)) - {7}
    assert drawn == [choose(who, method, phase, round, []) for round in range(1, 40)]
    assert drawn[0] != choose(replace(who, seed=1), method, phase, 1, [])
    renamed = replace(who, names=[f"other-{k}" for k in range(20)], run="another")
    assert drawn[0] == choose(renamed, method, phase, 1, [])


def test_once_visits_everybody_once() -> None:
    who, method = roster(20, empty=7), MadeUp(participation=0.25)
    phase = replace(method.plan(1)[0], cohort="once")
    drawn = [choose(who, method, phase, round, []) for round in range(1, 7)]
    heard = [client for cohort in drawn for client in cohort]
    assert sorted(heard) == [client for client in range(20) if client != 7]
    assert drawn[4:] == [[], []]


def test_enrolments_of_several_sites_are_one_roster() -> None:
    """Two sites of two and three clients; only sums over classes are told, beside each client's number of rows."""
    one = Enrolment.of_counts(["a", "b"], np.array([[3, 0, 0], [0, 0, 0]]), 1, np.array([1, 0, 0]))
    other = Enrolment.of_counts(["c", "d", "e"], np.array([[1, 2, 0], [0, 4, 0], [1, 1, 1]]), 2, np.array([0, 2, 5]))
    both = one.joined(other)
    assert both.names == ("a", "b", "c", "d", "e")
    assert both.rows.tolist() == [3, 0, 3, 4, 3]
    assert both.kinds.tolist() == [1, 0, 2, 1, 2]
    assert both.class_rows.tolist() == [5, 7, 1]
    assert (both.validation_rows, both.test_rows.tolist()) == (3, [1, 2, 5])
    who = both.roster("run", 5, ["x", "y", "z"])
    assert (who.classes, who.able, who.longest) == (3, [0, 2, 3, 4], None)


# ---- one exchange


def test_a_client_is_told_its_own_row_and_the_start_once() -> None:
    who, method = roster(), MadeUp()
    engine, state, phase = Remote(who), method.start(task(who)), method.plan(1)[0]
    engine.exchange(method, state, phase, 1, [1, 4])
    engine.exchange(method, state, phase, 2, [4, 5])
    assert [(name, list(down.arrays), down.accepted) for name, down in engine.asked] == [
        ("site-1", ["first.seed", "head.w", "c.w", "per_client.place"], NEVER),
        ("site-4", ["first.seed", "head.w", "c.w", "per_client.place"], NEVER),
        ("site-4", ["head.w", "c.w", "per_client.place"], 1000),
        ("site-5", ["first.seed", "head.w", "c.w", "per_client.place"], NEVER),
    ]
    assert [float(down.arrays["per_client.place"]) for _, down in engine.asked] == [1, 4, 4, 5]
    assert engine.accepted.tolist() == [NEVER, 1000, NEVER, NEVER, 2000, 2000]


def test_the_mean_is_that_of_numpy() -> None:
    """By rows, or alike where the phase says so; what comes client by client is in the order of the roster."""
    who, method = roster(9), replace_each(MadeUp(), ())
    cohort = [8, 0, 3, 5, 1, 7, 4]
    found = Remote(who).exchange(method, method.start(task(who)), method.plan(1)[0], 1, cohort).update
    assert found is not None
    sent = [sent_by(who.names[client], 1) for client in cohort]
    head, c = (np.stack([one[name].double().numpy() for one in sent]) for name in ("head.w", "c.w"))
    np.testing.assert_allclose(found.mean["head.w"], np.average(head, axis=0, weights=who.rows[cohort]), rtol=1e-6)
    np.testing.assert_allclose(found.mean["c.w"], c.mean(0), rtol=1e-5, atol=1e-7)
    method = MadeUp()
    found = Remote(who).exchange(method, method.start(task(who)), method.plan(1)[0], 1, cohort).update
    assert found is not None
    assert found.clients.tolist() == sorted(cohort)
    assert found.rows.tolist() == who.rows[sorted(cohort)].tolist()
    for at, client in enumerate(sorted(cohort)):
        assert torch.equal(found.each["c.w"][at], sent_by(who.names[client], 1)["c.w"])
    assert found.mean.keys() == {"head.w"}


def replace_each(method: MadeUp, each: tuple[str, ...]) -> MadeUp:
    class Other(MadeUp):
        def plan(self, round: int) -> list[Phase]:
            return [replace(phase, each=each) for phase in super().plan(round)]

    return Other(**method.model_dump())


def test_memory_does_not_grow_with_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the room that there is, and but for the first few, updates are added as they come."""
    monkeypatch.setattr(server_module, "ROOM", 0)
    who = Roster("run", [f"site-{k}" for k in range(200)], np.full(200, 10), 0, ("a", "b"))
    method = replace_each(MadeUp(), ())
    server = Server(who, np.full(200, NEVER), method, method.start(task(who)), method.plan(1)[0], 1)
    waited = []
    for client, name in enumerate(who.names):
        server.receive(client, encode(Up("run", 1, "train", name, 10.0, sent_by(name, 1))))
        waited.append(len(server._waiting))
    assert max(waited) < FEW
    assert waited[FEW - 1 :] == [0] * (200 - FEW + 1)
    assert server.outcome(range(200)).accepted == 200


def test_who_is_refused_starts_from_what_it_had() -> None:
    """Its second update never arrived: the third request speaks of the version of the first."""
    who, method = roster(), MadeUp()

    def lose(name: str, reply: bytes) -> bytes:
        return b"" if name == "site-1" and decode(reply).round == 2 else reply

    engine = Remote(who, transport=lose)
    state, phase = method.start(task(who)), method.plan(1)[0]
    for round in (1, 2, 3):
        exchange = engine.exchange(method, state, phase, round, [0, 1])
        assert [one.client for one in exchange.refused] == (["site-1"] if round == 2 else [])
    assert [down.accepted for name, down in engine.asked if name == "site-1"] == [NEVER, 1000, 1000]
    start = method.private(state.down)["c_i.w"]
    for name, visits in (("site-0", 3), ("site-1", 2)):
        kept = engine.store.read(name, 10**9)
        assert kept is not None
        assert torch.equal(kept["c_i.w"], start + visits)


# ---- rounds


def test_the_loop_runs_on_a_roster_alone(tmp_path: Path, log: Log) -> None:
    who, method = roster(), MadeUp(rounds=4, participation=0.6)
    engine = Remote(who, transport=lambda name, reply: b"" if name == "site-4" else reply)
    with Checkpoints(tmp_path, "experiment", every=0) as checkpoints:
        state = Loop(method, engine, log, checkpoints).rounds(method.start(task(who)))
    expected = np.zeros(4)
    for round in range(1, 5):
        cohort = [client for client in choose(who, method, method.plan(1)[0], round, []) if client != 4]
        heads = [sent_by(who.names[client], round)["head.w"].double().numpy() for client in cohort]
        expected += np.average(heads, axis=0, weights=who.rows[cohort])
    np.testing.assert_allclose(state.shared["head.w"], expected, rtol=1e-5)
    found = events(tmp_path)
    assert [(event["round"], event["index"], event["phase"]) for event in found] == [
        (round, index, name) for round in range(1, 5) for index, name in enumerate(("train", "look"))
    ]
    assert all(event["clients"] == 3 for event in found), "three of the five that have rows"
    reasons = {one["client"] for event in found for one in event["refused"]}
    assert reasons == {"site-4"}
    assert sum(event["bytes_down"] for event in found) == sum(len(encode(down)) for _, down in engine.asked)


def test_what_clients_keep_lasts_before_a_checkpoint_speaks_of_it(tmp_path: Path, log: Log) -> None:
    who, method = roster(), MadeUp(rounds=2)
    engine = Remote(who)
    with Checkpoints(tmp_path, "experiment", every=0) as checkpoints:
        save = checkpoints.save
        checkpoints.save = lambda point: (engine.done.append((point.round, point.index)), save(point))  # type: ignore
        Loop(method, engine, log, checkpoints).rounds(method.start(task(who)))
    nobody = ("resume", [NEVER] * 6, 0)
    assert engine.done == [nobody, *(step for at in ((1, 0), (1, 1), (2, 0), (2, 1)) for step in ("settle", at))]


def test_a_loop_goes_on_where_its_checkpoint_was_written(tmp_path: Path, log: Log) -> None:
    who, method = roster(), MadeUp(rounds=3)

    def run(folder: Path, rounds: int) -> tuple[State, Remote]:
        with Checkpoints(folder, "experiment", every=0) as checkpoints:
            engine = Remote(who, Store(checkpoints.private, "run"))
            state = Loop(MadeUp(rounds=rounds), engine, log, checkpoints).rounds(method.start(task(who)))
            kept = {name: engine.store.read(name, 10**9)["c_i.w"] for name in engine.store.clients()}  # type: ignore
            engine.store.close()
        return State({**state.down, **kept}), engine

    whole, _ = run(tmp_path / "whole", 3)
    run(tmp_path / "run", 2)
    state, engine = run(tmp_path / "run", 3)
    assert digest(state.shared) == digest(whole.shared)
    assert engine.done[0] == ("resume", [2001, 2001, NEVER, 2001, 2001, 2001], 2001)
    assert {down.round for _, down in engine.asked} == {3}


def test_checkpoints_are_written_now_and_then(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many seconds of work and in the end, and the last two are kept."""
    now, who, method = [0.0], roster(), MadeUp(rounds=9)
    monkeypatch.setattr("fedkeel.runs.checkpoint.monotonic", lambda: now[0])
    written: list[tuple[int, int]] = []

    class Slow(Remote):
        def exchange(self, *given: Any) -> Exchange:
            now[0] += 0.5
            return super().exchange(*given)

    with Checkpoints(tmp_path, "experiment", every=2.0) as checkpoints:
        save = checkpoints.save
        checkpoints.save = lambda point: (written.append((point.round, point.index)), save(point))  # type: ignore
        Loop(method, Slow(who), log, checkpoints).rounds(method.start(task(who)))
    assert written == [(2, 1), (4, 1), (6, 1), (8, 1), (9, 1)], "of two exchanges a round, each half a second; the last"
    assert sorted(path.name for path in (tmp_path / JOURNAL).glob("0*")) == [
        "000008-01.safetensors",
        "000009-01.safetensors",
    ]


# ---- rounds that are lost


def losing(rounds: Sequence[int], times: int) -> tuple[Remote, MadeUp]:
    """Every reply to some rounds gets lost, so many times each."""
    engine = Remote(roster(), transport=lambda name, reply: lost_or(reply))
    asked: list[tuple[int, str]] = []

    def lost_or(reply: bytes) -> bytes:
        message = decode(reply)
        assert isinstance(message, Up)
        asked.append((message.round, message.client))
        sample = 3  # of five
        tries = (sum(round == message.round for round, _ in asked) + sample - 1) // sample
        return b"" if message.round in rounds and tries <= times else reply

    return engine, MadeUp(rounds=3, participation=0.6)


def test_a_round_without_an_accepted_update_is_no_round(tmp_path: Path, log: Log) -> None:
    """It is told, changes nothing and is tried again with another sample, until somebody's update is accepted."""
    engine, method = losing([2], times=2)
    told: list[str] = []
    with Checkpoints(tmp_path, "experiment", every=0) as checkpoints:
        watch = Watch(notice=told.append)
        state = Loop(method, engine, log, checkpoints, lost=3, watch=watch).rounds(method.start(task(engine.roster)))
    train = method.plan(1)[0]
    cohorts = [choose(engine.roster, method, train, 2, [], attempt) for attempt in range(3)]
    assert len({tuple(cohort) for cohort in cohorts}) > 1, "another sample"
    expected = np.zeros(4)
    for round, attempt in ((1, 0), (2, 2), (3, 0)):
        cohort = choose(engine.roster, method, train, round, [], attempt)
        heads = [sent_by(engine.roster.names[client], round)["head.w"].double().numpy() for client in cohort]
        expected += np.average(heads, axis=0, weights=engine.roster.rows[cohort])
    np.testing.assert_allclose(state.shared["head.w"], expected, rtol=1e-5)
    names = [engine.roster.names[client] for client in cohorts[2]]
    assert [name for name, down in engine.asked if (down.round, down.phase) == (2, "look")] == names
    assert [(event["round"], event["index"], event["attempt"]) for event in events(tmp_path, "lost")] == [
        (2, 0, 0),
        (2, 0, 1),
    ]
    assert [(event["round"], event["refused"]) for event in events(tmp_path)] == [(r, []) for r in (1, 1, 2, 2, 3, 3)]
    assert len(told) == 2
    assert "round 2, phase 'train', is lost (1 of 3): none of 3 updates was accepted (client site-" in told[0]


def test_a_run_whose_rounds_are_lost_stops_and_goes_on_when_replies_come_again(tmp_path: Path, log: Log) -> None:
    def run(folder: Path, times: int, lost: int = 3) -> State:
        engine, method = losing([2], times)
        with Checkpoints(folder, "experiment", every=10.0**6) as checkpoints:
            engine.store = Store(checkpoints.private, "run")
            try:
                return Loop(method, engine, log, checkpoints, lost=lost).rounds(method.start(task(engine.roster)))
            finally:
                engine.store.close()

    whole = run(tmp_path / "whole", times=0)
    with pytest.raises(FedkeelError, match=r"round 2.*lost 2 times in a row.*none of 3 updates.*--resume tries"):
        run(tmp_path / "run", times=9, lost=2)
    with Checkpoints(tmp_path / "run", "experiment") as checkpoints:
        reached = checkpoints.newest()
    assert reached is not None
    assert (reached.round, reached.index) == (1, 1), "the last exchange that counts"
    assert digest(run(tmp_path / "run", times=0).shared) == digest(whole.shared)


def test_the_sample_of_another_attempt_is_asked_again_after_a_restart(tmp_path: Path, log: Log) -> None:
    """The phase after it goes to the same clients."""
    engine, method = losing([1], times=1)
    first, second = (choose(engine.roster, method, method.plan(1)[0], 1, [], attempt) for attempt in (0, 1))
    assert first != second
    with Checkpoints(tmp_path, "experiment", every=0) as checkpoints:
        exchange = engine.exchange

        def stops(method: Any, state: State, phase: Phase, round: int, cohort: Sequence[int]) -> Exchange:
            if phase.name == "look":
                raise KeyboardInterrupt
            return exchange(method, state, phase, round, cohort)

        engine.exchange = stops  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            Loop(method, engine, log, checkpoints).rounds(method.start(task(engine.roster)))
        again = Remote(engine.roster)
        Loop(method, again, log, checkpoints).rounds(method.start(task(engine.roster)))
    looked = [name for name, down in again.asked if (down.round, down.phase) == (1, "look")]
    assert looked == [engine.roster.names[client] for client in second]


def test_no_mean_feature_is_made_of_nothing(log: Log) -> None:
    engine = Remote(roster(), transport=lambda name, reply: b"")
    with pytest.raises(FedkeelError, match="round 0, phase 'mean', was lost 2 times"):
        federated_mean(Exchanges(engine, log, 2, SILENT), 4)


def test_no_accuracy_is_made_of_nothing(log: Log) -> None:
    engine = Remote(roster(), transport=lambda name, reply: b"")
    observer = FederatedEvaluation(SimpleNamespace(method=FedAvg(), engine=engine, log=log, known=None, again=None))  # type: ignore
    with pytest.raises(FedkeelError, match="round 4 cannot be tested: none of 5 updates was accepted"):
        observer.tallied(4, State({"head.w": torch.zeros(4)}))


def test_a_phase_that_has_nobody_to_ask_is_not_lost(tmp_path: Path, log: Log) -> None:
    class Once(MadeUp):
        def plan(self, round: int) -> list[Phase]:
            return [replace(phase, cohort="once") for phase in super().plan(round)[:1]]

    engine, method = Remote(roster()), Once(rounds=3)
    with Checkpoints(tmp_path, "experiment") as checkpoints:
        Loop(method, engine, log, checkpoints, lost=1).rounds(method.start(task(engine.roster)))
    assert [event["clients"] for event in events(tmp_path)] == [5, 0, 0]


# ---- how large a checkpoint is


def checkpoint_sizes(folder: Path, log: Log, count: int, participation: float, rounds: int) -> list[int]:
    """After each round; and what clients keep is in their own file."""
    who = Roster("run", [f"site-{k}" for k in range(count)], np.full(count, 10), 0, ("a", "b"))
    folder.mkdir()
    sizes = []
    with Checkpoints(folder, "experiment", every=0) as checkpoints:
        engine, save = Remote(who, Store(checkpoints.private, "run")), checkpoints.save

        def measured(point: Any) -> None:
            save(point)
            newest = max((folder / JOURNAL).glob("[0-9]*.safetensors"))
            if point.index == 1:
                sizes.append(newest.stat().st_size)

        checkpoints.save = measured  # type: ignore[method-assign, assignment]
        method = MadeUp(rounds=rounds, participation=participation)
        Loop(method, engine, log, checkpoints).rounds(replace(method.start(task(who)), per_client={}))
        visited = int((engine.accepted != NEVER).sum())
        assert len(engine.store.clients()) == visited
        engine.store.close()
        assert checkpoints.private.stat().st_size > 4 * WIDE * visited
    assert visited == max(1, round(participation * count)) or rounds > 1
    return sizes


def test_a_checkpoint_does_not_hold_what_clients_keep(tmp_path: Path, log: Log) -> None:
    """It names the clients that were visited and those of the last phase, three whole numbers each at most; their trees
    have two thousand bytes and more."""
    few, many = (checkpoint_sizes(tmp_path / str(p), log, 50, p, 1)[0] for p in (0.04, 1.0))
    assert 0 <= many - few <= 24 * 48 + 64
    assert many < 24 * 50 + 2000 < 50 * 4 * WIDE


def test_a_checkpoint_does_not_grow_with_the_rounds(tmp_path: Path, log: Log) -> None:
    sizes = checkpoint_sizes(tmp_path / "run", log, 30, 1.0, 5)
    assert len(sizes) == 5
    assert max(sizes) - min(sizes) <= 8


# ---- wherever a run stops


METHODS = {
    "scaffold": lambda: (Scaffold(rounds=4, participation=0.5, batch=8, lr=0.05), clients(), TASK),
    "fedrep": lambda: (
        FedRep(rounds=4, participation=0.5, batch=8, head_epochs=1),
        *reading_images(clients((6, 9, 5, 7)), CLASSES),
    ),
}


def stop_in_exchange(patch: pytest.MonkeyPatch, stop: Callable[[int], None]) -> None:
    """Clients have worked, the server has not decided."""
    outcome = Server.outcome

    def stopping(self: Server, cohort: Sequence[int]) -> Exchange:
        stop(self._round)
        return outcome(self, cohort)

    patch.setattr(Server, "outcome", stopping)


def stop_on_record(patch: pytest.MonkeyPatch, stop: Callable[[int], None]) -> None:
    """The server has decided, but the exchange is not on record."""
    record = loop_module.record

    def stopping(log: Log, event: Any, exchange: Exchange, phase: Phase, round: int, index: int) -> None:
        stop(round)
        record(log, event, exchange, phase, round, index)

    patch.setattr(loop_module, "record", stopping)


def stop_in_merge(patch: pytest.MonkeyPatch, stop: Callable[[int], None]) -> None:
    """It is on record, but the state is the one before."""
    for method in (Scaffold, FedRep):
        merge = method.merge

        def stopping(self: Any, state: State, update: Update, phase: Phase, merge: Any = merge) -> State:
            stop(update.round)
            return merge(self, state, update, phase)  # type: ignore[no-any-return]

        patch.setattr(method, "merge", stopping)


def stop_in_checkpoint(patch: pytest.MonkeyPatch, stop: Callable[[int], None]) -> None:
    """What clients keep is on disk, the checkpoint is not."""
    save = Checkpoints.save

    def stopping(self: Checkpoints, point: Any, name: str | None = None) -> None:
        stop(point.round)
        save(self, point, name)

    patch.setattr(Checkpoints, "save", stopping)


MOMENTS = [stop_in_exchange, stop_on_record, stop_in_merge, stop_in_checkpoint]


def run_in(folder: Path, method: str, every: float) -> str:
    """The digest of all that is there in the end, shared and private."""
    folder.mkdir(exist_ok=True)
    made, who, at = METHODS[method]()
    with Checkpoints(folder, "experiment", every=every) as checkpoints, Log(folder / "events.jsonl") as log:
        engine: Simulated = LocalEngine(replace(who, store=Store(checkpoints.private, "run")))
        try:
            state = Loop(made, engine, log, checkpoints).rounds(made.start(at))
            kept = [put(f"{client}/", tree) for client, tree in private_of(engine).items()]
        finally:
            engine.sites.store.close()
        return digest({name: value for tree in (state.down, *kept) for name, value in tree.items()})


@pytest.mark.parametrize("every", [0.0, 10.0**6], ids=["each exchange", "only when it stops"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_stops_anywhere_goes_on_to_the_same_end(
    method: str, moment: Any, error: type[BaseException], every: float, tmp_path: Path
) -> None:
    """What is on disk belongs together: state, versions that were accepted, what clients keep."""
    whole = run_in(tmp_path / "whole", method, every=10**6)
    for at in (1, 2, 3, 4):
        folder, stopped = tmp_path / f"stopped in {at}", [False]

        def stop(round: int, at: int = at, stopped: list[bool] = stopped) -> None:
            if round == at and not stopped[0]:
                stopped[0] = True
                raise error

        with pytest.MonkeyPatch.context() as patch:
            moment(patch, stop)
            with suppress(error):
                run_in(folder, method, every)
        once = moment is stop_in_checkpoint and every > 0
        assert stopped[0] or (once and at < 4), "a checkpoint is written in the end at the latest"
        assert run_in(folder, method, every) == whole, f"stopped in round {at}"
