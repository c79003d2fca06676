"""The engine of real sites, without processes: with Flower's serialisation, signatures and all that a site does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
import torch
from flwr.app import Message

from contract.methods import VARIANTS, clients_of, play, played, start_of
from direct_grid import InProcess
from federations import PersonalBias, clients
from fedkeel.core.errors import BadMessage
from fedkeel.core.message import NEVER, Down, encode
from fedkeel.core.method import METHODS, Method
from fedkeel.engines.base import choose
from fedkeel.engines.flower.envelope import Head, wrap
from fedkeel.engines.flower.keys import new_key
from fedkeel.engines.wire import WireEngine


@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS.keys())
def test_it_is_wire_to_the_bit(method: Method, tmp_path: Path) -> None:
    """With signed requests, envelopes, Flower's objects and stores on disk in between."""
    reference = played(method, WireEngine)
    ours = InProcess.of(clients_of(method), method, tmp_path)
    state = play(method, ours.engine)  # type: ignore[arg-type]
    assert state.down.keys() == reference.state.down.keys()
    for name, value in reference.state.down.items():
        assert torch.equal(state.down[name], value), name
    for client, mine in reference.private.items():
        worker = ours.workers[client]
        kept = worker.store.read(worker.site.name, int(ours.engine.accepted[client]))
        assert kept is not None
        assert kept.keys() == mine.keys()
        assert all(torch.equal(kept[name], value) for name, value in mine.items())


# ---- who is there


METHOD = METHODS["fedavg"](rounds=3, batch=8)


def in_process(folder: Path, **settings: object) -> InProcess:
    return InProcess.of(clients(), METHOD, folder, **settings)


def exchanged(ours: InProcess, round: int = 1):  # type: ignore[no-untyped-def]
    (phase,) = METHOD.plan(round)
    cohort = choose(ours.engine.roster, METHOD, phase, round, [])
    return cohort, ours.engine.exchange(METHOD, start_of(METHOD), phase, round, cohort)


def test_a_site_that_is_away_is_not_waited_for(tmp_path: Path) -> None:
    ours = in_process(tmp_path)
    cohort, _ = exchanged(ours)
    ours.grid.away = {100 + cohort[0]}
    began = monotonic()
    _, exchange = exchanged(ours, 2)
    assert exchange.accepted == len(cohort) - 1
    assert [refusal.reason for refusal in exchange.refused] == ["it is not online"]
    assert monotonic() - began < 4


def test_nobody_is_waited_for_beyond_the_deadline(tmp_path: Path) -> None:
    ours = in_process(tmp_path, deadline=1.0)
    cohort, _ = exchanged(ours)
    ours.grid.silent = {100 + cohort[0]}
    _, exchange = exchanged(ours, 2)
    assert [refusal.reason for refusal in exchange.refused] == ["no reply before the deadline"]
    assert exchange.accepted == len(cohort) - 1
    assert ours.engine.accepted[cohort[:2]].tolist() == [1000, 2000]


def test_a_request_that_was_lost_on_its_way_goes_out_again(tmp_path: Path) -> None:
    """A SuperLink hands it out once; whoever dies in that moment has not got it."""
    ours = in_process(tmp_path, deadline=4.0)
    cohort, _ = exchanged(ours)
    lost, push = [100 + cohort[0]], ours.grid.push_messages

    def losing(messages: Iterable[Message]) -> Iterable[str]:
        ours.grid.silent = {lost.pop()} if lost else set()
        return push(messages)

    ours.grid.push_messages = losing  # type: ignore[method-assign]
    _, exchange = exchanged(ours, 2)
    assert exchange.accepted == len(cohort)
    assert not exchange.refused


def test_a_request_that_is_worked_on_for_long_is_not_worked_on_twice(tmp_path: Path) -> None:
    """The site refuses the second one, and the refusal is no reply."""
    ours = in_process(tmp_path, deadline=4.0)
    cohort, _ = exchanged(ours)
    busy, client = 100 + cohort[0], cohort[0]
    worker, pull, began = ours.workers[client], ours.grid.pull_messages, monotonic()
    letters: list[bytes] = []

    def once(content: bytes) -> bytes:
        letter = worker.opened(content)  # as a site does before it works
        worker.remember(letter)
        letters.append(content)
        return worker.answer(letter)

    def late(ids: Iterable[str]) -> Iterable[Message]:
        """What the busy site replied to first comes last."""
        waits = monotonic() - began < 1.5
        held = {id for id, reply in ours.grid._replies.items() if reply.metadata.src_node_id == busy and waits}
        return pull([id for id in ids if id not in held or ours.grid._replies[id].has_error()])

    ours.grid.answers[busy] = once
    ours.grid.pull_messages = late  # type: ignore[method-assign]
    sent = ours.grid.sent
    _, exchange = exchanged(ours, 2)
    assert ours.grid.sent > sent + len(cohort), "it went out again"
    assert len(letters) == 1
    assert exchange.accepted == len(cohort)
    assert not exchange.refused


def test_below_the_quorum_nothing_is_accepted(tmp_path: Path) -> None:
    ours = in_process(tmp_path, quorum=0.75, deadline=0.5)
    able = ours.engine.roster.able
    ours.grid.silent = {100 + client for client in able[: len(able) // 2]}
    _, exchange = exchanged(ours)
    assert exchange.accepted == 0
    assert exchange.update is None
    assert any("below the quorum of" in refusal.reason for refusal in exchange.refused)
    assert (ours.engine.accepted == NEVER).all()


def test_who_comes_late_joins_before_the_next_exchange(tmp_path: Path) -> None:
    who = clients()
    ours = InProcess.of(who, METHOD, tmp_path)
    late = ours.engine.roster.able[0]
    del ours.engine.enrolled[late]
    rows = ours.engine.roster.rows.copy()
    rows[late] = 0
    ours.engine.roster = replace(ours.engine.roster, rows=rows)
    joined: list[str] = []
    ours.engine.joined = lambda enrolment: joined.append(enrolment.names[0])
    first, _ = exchanged(ours)
    second, exchange = exchanged(ours, 2)
    assert late not in first
    assert late in second
    assert joined == [who.names[late]]
    assert not exchange.refused


def test_a_reply_counts_for_the_request_that_it_answers_only(tmp_path: Path) -> None:
    """Of another site, of an earlier request, or signed by somebody else."""
    ours = in_process(tmp_path)
    cohort, _ = exchanged(ours)
    one, other, third = (100 + client for client in cohort[:3])
    answers = dict(ours.grid.answers)
    before: list[bytes] = []

    def kept(content: bytes) -> bytes:
        before.append(answers[third](content))
        return before[0]  # the first one, ever after

    ours.grid.answers |= {one: lambda content: answers[other](content), third: kept}
    exchanged(ours, 2)
    _, exchange = exchanged(ours, 3)
    reasons = {refusal.client: refusal.reason for refusal in exchange.refused}
    names = ours.engine.roster.names
    assert "it is for" in reasons[names[cohort[0]]]
    assert "the reply is to request" in reasons[names[cohort[2]]]
    assert len(reasons) == 2


# ---- what a site obeys


def head_of(worker, **changes: object) -> Head:  # type: ignore[no-untyped-def]
    return Head(
        **{"contract": worker.terms.sha256, "site": worker.site.name, "number": 10**6, "ask": "enrol", **changes}
    )


def test_a_site_obeys_its_server_alone(tmp_path: Path) -> None:
    ours = in_process(tmp_path)
    worker, body = ours.workers[0], encode(Down("simulation", 0, "enrol", {}))
    fine = wrap(head_of(worker), body, ours.engine.post.key)
    worker.remember(worker.opened(fine))
    for letter, why in (
        (fine, "somebody sends it once more"),
        (wrap(head_of(worker, number=10**6 - 1), body, ours.engine.post.key), "somebody sends it once more"),
        (wrap(head_of(worker, number=10**6 + 1), body, new_key()), "not signed by"),
        (wrap(head_of(worker, number=10**6 + 1), body, worker.key), "not signed by"),
        (wrap(head_of(worker, number=10**6 + 1, site="site-9"), body, ours.engine.post.key), "it is for 'site-9'"),
        (wrap(head_of(worker, number=10**6 + 1, contract="d" * 64), body, ours.engine.post.key), "another contract"),
        (wrap(head_of(worker, number=10**6 + 1, round=2), body, ours.engine.post.key), "another request than it says"),
        (body, "no message of fedkeel"),
    ):
        with pytest.raises(BadMessage, match=why):
            worker.opened(letter)


def test_a_site_does_not_learn_its_method_from_a_request(tmp_path: Path) -> None:
    ours = in_process(tmp_path)
    worker = ours.workers[0]
    assert worker.method_for("train") is METHOD
    with pytest.raises(BadMessage):
        worker.method_for("run")


def test_what_a_site_keeps_is_on_disk_before_it_replies(tmp_path: Path) -> None:
    method = PersonalBias(rounds=2)
    ours = InProcess.of(clients(), method, tmp_path)
    play(method, ours.engine)  # type: ignore[arg-type]
    client = int(np.flatnonzero(ours.engine.accepted != NEVER)[0])
    worker = ours.workers[client]
    worker.close()
    again = type(worker)(worker.site, worker.federation)
    kept = again.store.read(worker.site.name, int(ours.engine.accepted[client]))
    assert kept is not None
