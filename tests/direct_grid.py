"""A Flower grid without processes: messages go through Flower's own serialisation, and sites answer in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedkeel.core.errors import BadMessage
from fedkeel.core.method import AnyMethod
from fedkeel.core.roster import Roster
from fedkeel.data.ownership import Ownership
from fedkeel.deploy.worker import Worker, harmless
from fedkeel.engines.flower.contact import content_of, payload
from fedkeel.engines.flower.engine import FlowerEngine
from fedkeel.engines.flower.keys import new_key, private_text, public_pem, public_text, write_secret
from fedkeel.engines.flower.objects import inflated
from fedkeel.engines.flower.post import Post
from fedkeel.engines.sites import Sites

Answer = Callable[[bytes], bytes]
RUN, CONTRACT = "simulation", "c" * 64


def through_bytes(message: Message) -> Message:
    """What comes out at the other end of Flower's serialisation."""
    objects = {id: part.deflate() for id, part in get_all_nested_objects(message).items()}
    return inflated(message.object_id, objects)


@dataclass
class DirectGrid:
    """``answers`` are sites by node id; one that raises a BadMessage is answered for by an error."""

    keys: dict[int, bytes]
    answers: dict[int, Answer]
    away: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    _replies: dict[str, Message] = field(default_factory=dict)
    sent: int = 0

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=key, status="offline" if node in self.away else "online")
            for node, key in self.keys.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.metadata.message_id)
            if message.metadata.dst_node_id not in self.silent:
                self._replies[ids[-1]] = self._answered(through_bytes(message))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(id) for id in message_ids if id in self._replies]

    def _answered(self, message: Message) -> Message:
        try:
            reply = self.answers[message.metadata.dst_node_id](content_of(message))
        except BadMessage as bad:
            return Message(Error(1, harmless(bad)), reply_to=message)
        return through_bytes(Message(payload(reply), reply_to=message))


def alone(sites: Sites, client: int) -> Sites:
    """One client of a simulation, as if there were no other."""

    def own(part: Ownership) -> Ownership:
        return Ownership.of_lists([part.of(client)])

    return replace(
        sites,
        names=(sites.names[client],),
        owned=own(sites.owned),
        validation=None if sites.validation is None else own(sites.validation),
        test=None if sites.test is None else sites.test._replace(owned=own(sites.test.owned)),
    )


def worker_of(sites: Sites, client: int, method: AnyMethod, folder: Path, server: str) -> Worker:
    """A site of a simulation at work as a real one is."""
    name, mine, key = sites.names[client], alone(sites, client), new_key()
    home = folder / f"site {client}"
    home.mkdir(parents=True)
    write_secret(home / "site.key", private_text(key))
    terms = SimpleNamespace(
        sha256=CONTRACT, run=RUN, server=server, trains=method, seed=sites.seed, threads=1,
        classes=tuple(map(str, range(sites.classes))), sites={name: public_text(key.public_key())},
    )  # fmt: skip
    site: Any = SimpleNamespace(
        name=name, terms=terms, kept=home, key="site.key", path=lambda text: home / text,
        experiment=SimpleNamespace(data=SimpleNamespace(features="raw")),
    )  # fmt: skip
    federation: Any = SimpleNamespace(
        sites=lambda seed, store: replace(mine, store=store), manifest=SimpleNamespace(train=mine.owned)
    )
    return Worker(site, federation)


@dataclass
class InProcess:
    """A Flower engine with the sites of a simulation behind it."""

    engine: FlowerEngine
    grid: DirectGrid
    workers: list[Worker]

    @classmethod
    def of(cls, sites: Sites, method: AnyMethod, folder: Path, **settings: Any) -> InProcess:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        signs = new_key()
        server = public_text(signs.public_key())
        workers = [worker_of(sites, client, method, folder, server) for client in range(len(sites.names))]

        def answer(worker: Worker) -> Answer:
            def one(content: bytes) -> bytes:
                letter = worker.opened(content)
                worker.remember(letter)
                return worker.answer(letter)

            return one

        public = [worker.key.public_key() for worker in workers]
        grid = DirectGrid(
            {100 + client: public_pem(key) for client, key in enumerate(public)},
            {100 + client: answer(worker) for client, worker in enumerate(workers)},
        )
        texts = [public_text(key) for key in public]
        post = Post(grid, CONTRACT, list(sites.names), texts, signs, 1, settings.pop("deadline", 5.0))  # type: ignore[arg-type]
        known = sites.enrol()
        nobody = 0 * known.rows
        roster = Roster(RUN, known.names, nobody, sites.seed, tuple(map(str, range(sites.classes))))
        engine = FlowerEngine(post, roster, **settings)
        engine.enrol()
        return cls(engine, grid, workers)
