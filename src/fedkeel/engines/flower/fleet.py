"""The site's half of Flower: a process that lives long and is its own SuperNode. It never fetches or runs an app.

A message that a SuperLink has handed out is not handed out again: so a delivery is confirmed only after the caller has
put it where it lasts, and a reply to it is the same message however often, and by whichever process, it is sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import BadMessage, FedkeelError, printable, shortened
from fedkeel.engines.flower.contact import (
    RUN_ENDED,
    Address,
    Unreachable,
    client_for,
    code_of,
    content_of,
    must_be_installed,
    payload,
    telling,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from flwr.app import Error, RecordDict
    from flwr.proto.message_pb2 import Message as Proto
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.proto.node_pb2 import Node

LEASE = 30.0
"""What a SuperLink is told about heartbeats; it takes a site for dead after twice as long without one."""
HEARTBEAT = 10.0
NOT_ACTIVATED = 2004
DIGEST = 32
LONGEST_HEAD = 2**16


@dataclass(frozen=True)
class Delivery:
    """A message to this site, with all that is needed to reply to it."""

    message_id: str
    run_id: int
    group: str
    server: int
    node: int
    task: int
    """the server's; 0 if there is none"""
    created: float
    seconds: float
    """for which it is good"""
    kind: str
    content: bytes

    def to_bytes(self) -> bytes:
        """For an inbox on disk."""
        head = json.dumps({name: value for name, value in asdict(self).items() if name != "content"}).encode()
        rest = len(head).to_bytes(4, "big") + head + self.content
        return blake2b(rest, digest_size=DIGEST).digest() + rest

    @classmethod
    def from_bytes(cls, data: bytes) -> Delivery:
        """What ``to_bytes`` wrote; BadMessage if it is anything else, or damaged."""
        digest, rest = data[:DIGEST], data[DIGEST:]
        if blake2b(rest, digest_size=DIGEST).digest() != digest:
            raise BadMessage("a kept delivery is damaged: its bytes are not those that were written")
        length = int.from_bytes(rest[:4], "big")
        if length > min(LONGEST_HEAD, len(rest) - 4):
            raise BadMessage("a kept delivery has a head that is longer than itself")
        try:
            head = json.loads(rest[4 : 4 + length])
        except (ValueError, RecursionError):
            raise BadMessage("a kept delivery has a head that is no JSON") from None
        kinds = {one.name: {"str": str, "int": int, "float": float}.get(str(one.type)) for one in fields(cls)}
        expected = {name: kind for name, kind in kinds.items() if kind is not None}
        if not isinstance(head, dict) or {name: type(value) for name, value in head.items()} != expected:
            raise BadMessage("a kept delivery has another head than expected")
        return cls(**head, content=rest[4 + length :])


class Unregistered(Unreachable):
    """The key is not known at the SuperLink; a server that starts makes those of its contract known."""


class Fleet:
    """A site's connection to a SuperLink, under its key; one per key at a time, which the caller has to see to."""

    node_id: int

    def __init__(self, address: Address, key: EllipticCurvePrivateKey, node_file: Path) -> None:
        """``node_file`` keeps the node id: one that was killed holds its lease, and the next goes on under it."""
        must_be_installed()
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        self._address, self._file = address, node_file
        self._key = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        signed = NodeAuthHttpInterceptor(key, key.public_key())
        self._client = client_for(FleetHttpClient, address, "SuperNode", [signed])
        self._coming: list[tuple[Proto, ObjectTree]] = []
        """announced, and not there as a whole yet: of a server that was killed meanwhile it never will be"""
        self._sending: dict[str, tuple[str, list[str]]] = {}
        """of the last reply, what has not been sent: a SuperLink does not ask for it again once the server was told"""
        self._lost, self._ended = False, threading.Event()
        try:
            with telling(address, first=True):
                self._activate()
        except BaseException:
            self._client.close()
            raise
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lease back, so that the next process of this site need not wait for its end."""
        import httpx
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        with suppress(httpx.HTTPError, RuntimeError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))
        self._client.close()

    # ---- being there

    @property
    def _node(self) -> Node:
        from flwr.proto.node_pb2 import Node

        return Node(node_id=self.node_id)

    def _activate(self) -> None:
        import httpx
        from flwr.proto.fleet_pb2 import ActivateNodeRequest

        try:
            got = self._client.ActivateNode(ActivateNodeRequest(public_key=self._key, heartbeat_interval=LEASE))
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 401:
                raise FedkeelError(
                    f"the SuperLink at {self._address.host_port} does not take this site's signature: the clocks of "
                    "the two machines must agree"
                ) from None
            if code_of(error) != NOT_ACTIVATED:
                raise
            self.node_id = self._remembered()
        else:
            self.node_id = got.node_id
            write_atomically(self._file, str(self.node_id).encode())
        self._lost = False

    def _remembered(self) -> int:
        """The id under which the process before this one was there, if it is still that of this key."""
        import httpx

        unknown = f"the SuperLink at {self._address.host_port} does not know this site's key: have it registered there"
        try:
            self.node_id = int(self._file.read_bytes())
        except FileNotFoundError:
            raise Unregistered(
                f"{unknown}; or a process that was killed still holds its lease: then wait {2 * LEASE:.0f} s"
            ) from None
        except ValueError:
            raise FedkeelError(f"{self._file} does not hold a node id: delete it, and start the site again") from None
        try:
            alive = self._heartbeat()
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 401:
                raise
            raise Unregistered(unknown) from None
        if not alive:
            raise Unregistered(unknown)
        return self.node_id

    def _heartbeat(self) -> bool:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LEASE)
        return self._client.SendNodeHeartbeat(request).success

    def _beat(self) -> None:
        """Whatever goes wrong here, the next call sees to it."""
        import httpx

        while not self._ended.wait(HEARTBEAT):
            try:
                self._lost = not self._heartbeat() or self._lost
            except (httpx.HTTPError, RuntimeError):
                self._lost = True

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Be there for a call, also when the SuperLink was away before; it may have been started again."""
        import httpx

        with telling(self._address):
            if self._lost:
                self._activate()
            try:
                yield
            except httpx.HTTPStatusError as error:
                self._lost = True
                if error.response.status_code != 401:
                    raise
                raise Unreachable(
                    f"the SuperLink at {self._address.host_port} no longer knows node {self.node_id}: joining anew"
                ) from None
            except httpx.TransportError:
                self._lost = True
                raise

    # ---- messages

    def receive(self) -> Delivery | None:
        """The next message, if one is there; it is for the caller to put it where it lasts, and then to confirm it."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        with self._there():
            got = self._client.PullMessages(PullMessagesRequest(node=self._node))
            self._coming += zip(got.messages_list, got.message_object_trees, strict=True)
            for one in list(self._coming):
                if (found := self._whole(*one)) is not None:
                    self._coming.remove(one)
                    return found
        return None

    def _whole(self, proto: Proto, tree: ObjectTree) -> Delivery | None:
        """A message that was announced, once all of it is there; one whose run has ended is forgotten."""
        import httpx

        from fedkeel.engines.flower.objects import Unready, inflated, pulled

        delivery = self._delivery(proto)
        try:
            contents = pulled(self._client.PullObject, self._node, delivery.run_id, tree)
            return replace(delivery, content=content_of(inflated(delivery.message_id, contents)))
        except Unready:
            return None
        except httpx.HTTPStatusError as error:
            if code_of(error) != RUN_ENDED:
                raise
            self._coming.remove((proto, tree))
            return None
        except BadMessage as bad:
            self._coming.remove((proto, tree))
            self.fail(delivery, str(bad))
            raise

    def _delivery(self, proto: Proto) -> Delivery:
        known = proto.metadata
        return Delivery(
            message_id=known.message_id,
            run_id=known.run_id,
            group=known.group_id,
            server=known.src_node_id,
            node=known.dst_node_id,
            task=known.src_task_id,
            created=known.created_at,
            seconds=known.ttl,
            kind=known.message_type,
            content=b"",
        )

    def confirm(self, delivery: Delivery) -> None:
        """Let the SuperLink forget a message that is safe here."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        with self._there(), _unless_ended():
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self._node, run_id=delivery.run_id, message_object_id=delivery.message_id
                )
            )

    def reply(self, delivery: Delivery, content: bytes) -> None:
        """Afterwards the SuperLink has the reply, or its run has ended and nobody waits for it any more.

        The same reply may be sent again, a different one to the same message counts for nothing.
        """
        self._send(delivery, payload(content))

    def fail(self, delivery: Delivery, reason: str) -> None:
        """Reply that there will be no reply, and why."""
        from flwr.app import Error
        from flwr.common.constant import ErrorCode

        self._send(delivery, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, shortened(printable(reason))))

    def _send(self, delivery: Delivery, what: RecordDict | Error) -> None:
        from flwr.app import Error, Metadata
        from flwr.app.message import make_message, remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        known = Metadata(
            run_id=delivery.run_id,
            message_id="",
            src_node_id=delivery.node,
            dst_node_id=delivery.server,
            reply_to_message_id=delivery.message_id,
            group_id=delivery.group,
            created_at=delivery.created,  # not now: a reply that is sent again must be the same message
            ttl=delivery.seconds,
            message_type=delivery.kind,
            dst_task_id=delivery.task or None,
        )
        error = isinstance(what, Error)
        message = make_message(known, None if error else what, what if error else None)  # type: ignore[arg-type]
        message.metadata.delivered_at = ""
        objects, tree = get_all_nested_objects(message), get_object_tree(message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        bare = message_to_proto(remove_content_from_message(message))
        with self._there(), _unless_ended():
            wanted = self._client.PushMessages(
                PushMessagesRequest(node=self._node, messages_list=[bare], message_object_trees=[tree])
            )
            if wanted.objects_to_push or delivery.message_id not in self._sending:
                self._sending = {delivery.message_id: (wanted.session_id, list(wanted.objects_to_push))}
            session, missing = self._sending[delivery.message_id]
            while missing:
                id = missing[0]
                part = PushObjectRequest(
                    node=self._node,
                    run_id=delivery.run_id,
                    object_id=id,
                    object_content=objects[id].deflate(),
                    session_id=session,
                )
                if not self._client.PushObject(part).stored:
                    self._sending.clear()
                    raise Unreachable(f"the SuperLink at {self._address.host_port} lost the reply that was being sent")
                del missing[0]


@contextmanager
def _unless_ended() -> Iterator[None]:
    """A call for a run that has ended is for nobody, and no error."""
    import httpx

    try:
        yield
    except httpx.HTTPStatusError as error:
        if code_of(error) != RUN_ENDED:
            raise
