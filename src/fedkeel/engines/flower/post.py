"""The server's post: requests out to sites over a Flower grid, signed, and their replies back, verified.

A site is found by its key, whatever node id it has. Replies are told apart by the request that they answer, because an
error that a SuperLink makes itself does not say whose it is. Nothing is waited for beyond the deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from fedkeel.core.errors import BadMessage, printable, shortened
from fedkeel.engines.flower.envelope import Ask, Head, unwrap, wrap
from fedkeel.engines.flower.keys import public_pem, read_public

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from flwr.serverapp import Grid

POLL = 0.05
AWAY = "it is not online"
SILENT = "no reply before the deadline"
EXPIRED = 0.9
STILL = "no reply to an earlier request of this round"
AGAIN = (1 / 8, 1 / 2)
"""Shares of the deadline after which a request goes out again. A SuperLink hands it out once: it is lost if the site,
or the SuperLink, dies in that moment. A site that has it refuses the second one."""


@dataclass(frozen=True)
class Reply:
    """What came of a request: a body, or why there is none."""

    client: int
    body: bytes
    problem: str = ""
    seconds: float = 0.0


@dataclass
class Post:
    grid: Grid
    contract: str
    names: Sequence[str]
    keys: Sequence[str]
    """public keys in OpenSSH's format, in the order of the names"""
    key: EllipticCurvePrivateKey
    """with which requests are signed"""
    number: int
    """of the next request; it must be higher than that of any request ever sent under this contract"""
    deadline: float
    _of_key: dict[bytes, int] = field(init=False)

    _silent: dict[int, tuple[int, str, int]] = field(init=False, default_factory=dict)
    """the last request that a site did not reply to"""

    there: dict[int, int] = field(init=False, default_factory=dict)
    """the sites that were online when that was last looked at"""

    def __post_init__(self) -> None:
        self._public = [
            read_public(text, f"the key of {name}") for name, text in zip(self.names, self.keys, strict=True)
        ]
        self._of_key = {public_pem(key): client for client, key in enumerate(self._public)}

    def online(self) -> dict[int, int]:
        """The node id of every site that is there, by its place in the roster; other keys are nobody's."""
        found = {}
        for node in self.grid.get_nodes():
            client = self._of_key.get(bytes(node.public_key))
            if client is not None and node.status == "online":
                found[client] = int(node.node_id)
        self.there = found
        return found

    def ask(
        self, ask: Ask, bodies: Mapping[int, bytes], round: int = 0, index: int = 0, deadline: float | None = None
    ) -> list[Reply]:
        """The replies of some sites, in the order of the roster; there is one for each of them.

        Whoever let the deadline pass in an earlier phase of a round is not waited for in those that follow.
        """
        there, what, wait = self.online(), (round, ask, index), deadline or self.deadline
        still = {client for client, before in self._silent.items() if before[0] == round > 0 and before != what}
        sent: dict[int, Head] = {}
        letters: dict[int, bytes] = {}
        for client in sorted(bodies):
            if client not in there or client in still:
                continue
            sent[client] = Head(self.contract, self.names[client], self.number, ask, round, index)
            self.number += 1
            letters[client] = wrap(sent[client], bodies[client], self.key)
        got = dict(self._gathered(letters, f"{ask} {round}.{index}", wait))
        for client, (message, seconds) in list(got.items()):
            if message.has_error() and seconds > EXPIRED * wait:
                del got[client]  # the SuperLink's word that nobody came for the request in time
        replies = []
        for client in sorted(bodies):
            if client in got:
                message, seconds = got[client]
                replies.append(self._opened(client, sent[client], message, seconds))
            elif client in sent:
                self._silent[client] = what
                replies.append(Reply(client, b"", SILENT))
            else:
                replies.append(Reply(client, b"", STILL if client in still else AWAY))
        return replies

    def _pushed(self, letters: Mapping[int, bytes], group: str, ttl: float) -> dict[str, int]:
        """Whose request each message is."""
        from flwr.app import Message

        from fedkeel.engines.flower.link import payload

        messages = [
            Message(payload(letter), self.there[client], "train", ttl=ttl, group_id=group)
            for client, letter in letters.items()
        ]
        ids = self.grid.push_messages(messages) if messages else []
        return {id: client for id, client in zip(ids, letters, strict=True) if id}

    def _gathered(
        self, letters: Mapping[int, bytes], group: str, deadline: float
    ) -> Iterable[tuple[int, tuple[Any, float]]]:
        """The first reply of each client that came in time."""
        began = monotonic()
        first = self._pushed(letters, group, deadline)
        asked, left, again = dict(first), set(first.values()), list(AGAIN)
        while left:
            looked = monotonic()
            for message in self.grid.pull_messages([id for id, client in asked.items() if client in left]):
                id = message.metadata.reply_to_message_id
                client = asked.pop(id, None)
                if client in left and (id in first or not message.has_error()):
                    left.discard(client)
                    yield client, (message, monotonic() - began)
            past = monotonic() - began
            if not left or past > deadline:
                return
            if again and past > again[0] * deadline:
                again.pop(0)
                there = self.online()
                lost = {client: letters[client] for client in sorted(left) if client in there}
                asked |= self._pushed(lost, group, deadline - past)
            sleep(max(POLL, monotonic() - looked))  # a look that took long has others waiting

    def _opened(self, client: int, sent: Head, message: Any, seconds: float) -> Reply:
        from fedkeel.engines.flower.link import content_of

        if message.has_error():
            return Reply(client, b"", shortened(printable(str(message.error.reason or message.error.code))), seconds)
        try:
            head, body = unwrap(content_of(message), self._public[client], f"the key of {self.names[client]}")
        except BadMessage as bad:
            return Reply(client, b"", str(bad), seconds)
        if head != sent:
            return Reply(client, b"", f"the reply is to request {head.number} of {head.site}, not to this one", seconds)
        return Reply(client, body, seconds=seconds)
