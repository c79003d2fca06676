"""A message of Flower as the objects that it travels in: a message, its records, and an array in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedkeel.core.errors import BadMessage, printable

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
    from flwr.proto.node_pb2 import Node

OBJECTS = 100_000
"""More than any message of ours is made of."""


class Unready(Exception):
    """An object that was announced and is still being sent."""


def pulled(
    pull: Callable[[PullObjectRequest], PullObjectResponse], node: Node, run: int, tree: ObjectTree
) -> dict[str, bytes]:
    """The objects of a message, one after the other: the first one that has not come ends it, and nothing waits."""
    from flwr.proto.message_pb2 import PullObjectRequest
    from flwr.supercore.inflatable.inflatable_object import get_object_id, iterate_object_tree

    found: dict[str, bytes] = {}
    for part in iterate_object_tree(tree):
        id = part.object_id
        if id in found:
            continue
        if len(found) >= OBJECTS:
            raise BadMessage(f"a message of more than {OBJECTS} objects")
        got = pull(PullObjectRequest(node=node, run_id=run, object_id=id))
        if not got.object_found:
            raise BadMessage(f"an object of the message is gone: {printable(id)}")
        if not got.object_available:
            raise Unready
        if get_object_id(got.object_content) != id:
            raise BadMessage(f"an object of the message is another one than announced: {printable(id)}")
        found[id] = got.object_content
    return found


def inflated(id: str, contents: dict[str, bytes]) -> Message:
    """The message that some objects make up; BadMessage if they make up anything else."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    try:
        message = inflate_object_from_contents(id, contents, keep_object_contents=True)
    except (Exception, RecursionError) as error:  # others made the objects, and flwr's readers trust them
        raise BadMessage(f"the objects of a message cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(message, Message):
        raise BadMessage(f"the objects make up a {type(message).__name__}, expected a message")
    message.metadata.__dict__["_message_id"] = id
    return message
