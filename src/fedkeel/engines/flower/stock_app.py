"""The app of a site whose letters Flower's own SuperNode brings: it hands them to the site's process, and no more.

Every run carries this file as ``stock.py``, and a SuperNode runs it once for each letter, in a process of its own: so
it needs nothing but flwr's public interface and the standard library. A letter is opened by the site's process alone.
"""

from __future__ import annotations

import socket
from time import monotonic, sleep

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

SOCKET = "fedkeel-socket"
RECORD, STYPE = "fedkeel", "fedkeel.bytes"
LENGTH, LONGEST, PIECE = 8, 2**31, 2**20
OK = b"\x00"
FAILED = 2
"""Flower's number for an app that did not come to a reply."""
PATIENCE = 20.0
"""Seconds for which the site's process may be away, because it is started again: a letter is not brought twice."""

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    try:
        reply = handed_over(str(context.node_config[SOCKET]), letter_of(message))
    except KeyError:
        return Message(
            Error(FAILED, f"the SuperNode was started without {SOCKET} in its --node-config"), reply_to=message
        )
    except (OSError, ValueError) as error:
        return Message(Error(FAILED, f"the site's process gave no reply ({type(error).__name__})"), reply_to=message)
    status, said = reply[:1], reply[1:]
    if status != OK:
        return Message(Error(FAILED, said.decode(errors="replace")), reply_to=message)
    array = Array("uint8", (len(said),), STYPE, said)
    return Message(RecordDict({RECORD: ArrayRecord({RECORD: array})}), reply_to=message)


def letter_of(message: Message) -> bytes:
    """The bytes that were sent, few as a setting and more as an array; the site's process judges what they are."""
    content = message.content
    if RECORD in content.config_records and isinstance(letter := content.config_records[RECORD].get(RECORD), bytes):
        return letter
    if RECORD not in content.array_records or RECORD not in content.array_records[RECORD]:
        raise ValueError("no letter")
    return content.array_records[RECORD][RECORD].data


def handed_over(path: str, letter: bytes) -> bytes:
    """Status and reply of the site's process, which may work for as long as it likes: Flower has the deadline."""
    with connected(path) as line:
        line.sendall(len(letter).to_bytes(LENGTH, "big"))
        line.sendall(letter)
        length = int.from_bytes(exactly(line, LENGTH), "big")
        if not 1 < length <= LONGEST:
            raise ValueError("no reply has this length")
        return exactly(line, length)


def connected(path: str) -> socket.socket:
    until = monotonic() + PATIENCE
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(path)
            return line
        except (FileNotFoundError, ConnectionRefusedError):
            line.close()
            if monotonic() > until:
                raise
            sleep(0.2)
        except BaseException:
            line.close()
            raise


def exactly(line: socket.socket, length: int) -> bytes:
    got = bytearray()
    while len(got) < length:
        piece = line.recv(min(PIECE, length - len(got)))
        if not piece:
            raise ConnectionError("the other side hung up")
        got += piece
    return bytes(got)
