"""What requests and replies travel in: who it is for or from, which request it is, and a signature over all of it.

    b"fedkeel1" | length of signature | signature | length of head | head (JSON) | body (a ``Down`` or an ``Up``)

A request has a number that grows with every request of a server, over its restarts too: one that is sent once more by
somebody who listened is not newer than the last, and is refused. A reply repeats the number that it answers.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

from fedkeel.core.errors import BadMessage
from fedkeel.core.message import MAX_ROUND
from fedkeel.engines.flower.keys import sign, signed_by

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

MAGIC = b"fedkeel1"
LENGTHS = struct.Struct("<I")
MAX_SIGNATURE, MAX_HEAD, MAX_NUMBER, MAX_NAME = 256, 4096, 2**62, 200
Ask = Literal["enrol", "train", "centre", "tally", "temperature", "reliability", "finish"]
"""What a site may be asked for. Which method it trains with is in its contract, never in a request."""
ASKS = get_args(Ask)


@dataclass(frozen=True)
class Head:
    contract: str
    """sha256 of the contract that both have"""
    site: str
    """the name of the site that the request is for, or the reply is from"""
    number: int
    ask: Ask
    round: int = 0
    index: int = 0
    """the phase, as a place in the plan of the round"""


NUMBERS = {"number": MAX_NUMBER, "round": MAX_ROUND, "index": 999}


def wrap(head: Head, body: bytes, key: EllipticCurvePrivateKey) -> bytes:
    said = json.dumps(asdict(head), ensure_ascii=False, separators=(",", ":")).encode()
    content = LENGTHS.pack(len(said)) + said + body
    signature = sign(key, content)
    return MAGIC + LENGTHS.pack(len(signature)) + signature + content


def unwrap(data: bytes, key: EllipticCurvePublicKey, whose: str) -> tuple[Head, bytes]:
    """Head and body of what the owner of the key signed; anything else is a BadMessage, told before it is read."""
    signature, content = _signature(data)
    if not signed_by(key, signature, content):
        raise BadMessage(f"it is not signed by {whose}")
    length = _length(content)
    if not 0 < length <= min(MAX_HEAD, len(content) - LENGTHS.size):
        raise BadMessage("its head is longer than it may be")
    start = LENGTHS.size + length
    return _head(content[LENGTHS.size : start]), content[start:]


def _signature(data: bytes) -> tuple[bytes, bytes]:
    if data[: len(MAGIC)] != MAGIC:
        raise BadMessage(f"it is no message of fedkeel: {len(data)} bytes that start with {data[:8]!r}")
    length = _length(data[len(MAGIC) :])
    start = len(MAGIC) + LENGTHS.size
    if not 0 < length <= MAX_SIGNATURE or len(data) < start + length + LENGTHS.size:
        raise BadMessage("it is cut off, or is not signed")
    return data[start : start + length], data[start + length :]


def _length(data: bytes) -> int:
    return int(LENGTHS.unpack_from(data)[0]) if len(data) >= LENGTHS.size else 0


def _head(data: bytes) -> Head:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise BadMessage("its head is no JSON") from None
    if not isinstance(said, dict) or said.keys() != {field.name for field in fields(Head)}:
        raise BadMessage("its head has other keys")
    for name, most in NUMBERS.items():
        if type(said[name]) is not int or not 0 <= said[name] <= most:
            raise BadMessage(f"its {name} is none")
    for name in ("contract", "site", "ask"):
        if not isinstance(said[name], str) or len(said[name]) > MAX_NAME:
            raise BadMessage(f"its {name} is none")
    if said["ask"] not in ASKS:
        raise BadMessage(f"it asks for {said['ask']!r}: a site gives {', '.join(ASKS)} only")
    return Head(**said)
