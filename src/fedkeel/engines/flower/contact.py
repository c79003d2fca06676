"""What both halves need to speak to a SuperLink: the version they know, its address, and what went wrong in one line.

flwr's own clients end the process, or send it a signal, where a SuperLink refuses them. Here everything is an error
that can be told and, where waiting may help, an ``Unreachable``.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from fedkeel.core.errors import BadMessage, FedkeelError, printable, shortened

if TYPE_CHECKING:
    import httpx
    from flwr.app import Message, RecordDict
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClient, ProtobufRequestContext
    from flwr.supercore.retry import RetryInvoker

    Client = TypeVar("Client", bound=ProtobufClient)

VERSION = "1.41.0"
"""Of flwr: what is called here is not its public interface, and another version may have another."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Settings of the environment without which Flower's programs report to their makers."""
RECORD, STYPE, FEW = "fedkeel", "fedkeel.bytes", 2**20
AWAY, BUSY = (502, 503, 504), 500
"""What a proxy answers for a SuperLink that is not there, and a SuperLink that has only just begun; and one whose
database is locked, because more sites call at once than it can serve."""
EXPIRED, TOO_EARLY, OTHER_NAME = 10, 9, (62, 64)
"""OpenSSL's numbers for what is wrong with a certificate."""
RUN_ENDED = 2007
"""Flower's number for a call that belongs to a run which does not run (any more)."""


class Unreachable(FedkeelError):
    """The SuperLink is not there at the moment: to wait and try again may help."""


def must_be_installed() -> None:
    """Refuse any flwr but the known one; the known one reports nothing to anybody and is silent."""
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise FedkeelError("flwr is not installed: pip install 'fedkeel[flower]'") from None
    if found != VERSION:
        raise FedkeelError(f"flwr is {found}, expected {VERSION}: pip install 'fedkeel[flower]'")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import flwr.supercore.logger  # noqa: F401  it sets its level when it is imported

    logging.getLogger("flwr").setLevel(logging.CRITICAL + 1)


def typed(command: Sequence[str]) -> str:
    """A command of Flower's as one types it."""
    return " ".join([*(f"{name}={value}" for name, value in QUIET.items()), shlex.join(command)])


@dataclass(frozen=True)
class Address:
    """Where a SuperLink is, and the certificate of whoever vouches for it."""

    host_port: str
    ca: bytes | None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.ca is None and not self.insecure:
            raise FedkeelError(
                f"no CA certificate for the SuperLink at {self.host_port}: give one, or ask for insecure"
            )
        if self.ca is not None and self.insecure:
            raise FedkeelError(
                f"a CA certificate and insecure for the SuperLink at {self.host_port}: give one of the two"
            )


# ---- bytes as Flower carries them


def payload(content: bytes) -> RecordDict:
    """Few bytes as a setting, more as an array.

    A SuperLink takes a call, and several statements of SQL, for every object that a message consists of: three for a
    setting, five for an array. An array is carried in pieces, which is faster for large ones.
    """
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if not content:
        raise BadMessage("a message without a single byte cannot be sent: Flower has no array of none")
    if len(content) <= FEW:
        return RecordDict({RECORD: ConfigRecord({RECORD: content})})
    return RecordDict({RECORD: ArrayRecord({RECORD: Array("uint8", (len(content),), STYPE, content)})})


def content_of(message: Message) -> bytes:
    """The bytes that ``payload`` was given; anything else is refused, and nothing is ever loaded by numpy."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    if not message.has_content():
        raise BadMessage("the message has no content, expected one record of bytes")
    records: dict[str, object] = {str(name): record for name, record in message.content.items()}
    record = records.get(RECORD)
    if len(records) != 1 or not isinstance(record, ArrayRecord | ConfigRecord):
        names = shortened(printable(str(sorted(records))))
        raise BadMessage(f"the message has the records {names}, expected the record {RECORD!r} alone")
    values: dict[str, object] = {str(name): value for name, value in record.items()}
    array = values.get(RECORD)
    if len(values) == 1 and isinstance(array, bytes) and array:
        return array
    if len(values) != 1 or not isinstance(array, Array):
        raise BadMessage(f"the message has {len(values)} values, expected the bytes {RECORD!r} alone")
    got = (array.dtype, tuple(array.shape), array.stype)
    if got != ("uint8", (len(array.data),), STYPE) or not array.data:
        raise BadMessage(
            f"the message's array is {printable(str(got))} with {len(array.data)} bytes, "
            f"expected {('uint8', (len(array.data),), STYPE)}"
        )
    return array.data


# ---- calls


class Version:
    """Says which flwr calls, in every request; what comes back is left alone (flwr's own would end the process)."""

    def __init__(self, component: str) -> None:
        from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

        self._headers = dict(RuntimeVersionMetadata.from_local_component(component).as_metadata())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self._headers)
        return call_next(context)


def client_for(
    kind: type[Client],
    address: Address,
    component: str,
    interceptors: Sequence[Any] = (),
    retry: RetryInvoker | None = None,
) -> Client:
    try:
        return kind.from_server_address(
            address.host_port, address.insecure, address.ca, [Version(component), *interceptors], retry_invoker=retry
        )
    except (ssl.SSLError, ValueError) as error:
        raise FedkeelError(
            f"the CA certificate for the SuperLink at {address.host_port} cannot be used "
            f"({printable(str(error))}): expected the text of a PEM file"
        ) from None


def patient(seconds: float) -> RetryInvoker:
    """Calls again for so long while a SuperLink is away, for instance because it is started again."""
    import httpx
    from flwr.supercore.retry import RetryInvoker
    from flwr.supercore.retry.retry_invoker import exponential

    return RetryInvoker(
        lambda: exponential(0.1, 1.5, 2),
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=seconds,
        should_giveup=lambda error: not _passing(error),
    )


@contextmanager
def telling(address: Address, first: bool = False) -> Iterator[None]:
    """What goes wrong with a call becomes one line; ``first`` if nobody has spoken to the SuperLink before."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise told(error, address, first) from None


def code_of(error: httpx.HTTPStatusError) -> int:
    """Flower's number for an error; 0 if it was not Flower that answered."""
    from flwr.supercore.error import FlowerError

    found = FlowerError.from_json(error.response.text)
    return 0 if found is None else found.code


def told(error: httpx.HTTPError, address: Address, first: bool = False) -> FedkeelError:
    import httpx

    where = f"the SuperLink at {address.host_port}"
    if isinstance(error, httpx.HTTPStatusError):
        return _answered(error, where)
    chain = list(_chain(error))
    bad = next((one for one in chain if isinstance(one, ssl.SSLCertVerificationError)), None)
    if bad is not None:
        return _uncertified(bad, where)
    if not _passing(error):
        return FedkeelError(f"{where} does not speak TLS: is the port right, and was it started with its certificates?")
    if first and address.insecure and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return FedkeelError(f"{where} hung up on a plain call: it probably speaks TLS, so give its CA, not insecure")
    if any(isinstance(one, socket.gaierror) for one in chain):
        return Unreachable(f"{where} has a name that is not known here: is the address right?")
    if any(isinstance(one, ConnectionRefusedError) for one in chain):
        return Unreachable(f"{where} is not there, the connection is refused: is it running, and is the port right?")
    what = shortened(printable(str(error))) or "no reason given"
    return Unreachable(f"{where} is not there ({type(error).__name__}: {what}): is it running?")


def _uncertified(error: ssl.SSLCertVerificationError, where: str) -> FedkeelError:
    if error.verify_code == EXPIRED:
        return FedkeelError(f"the certificate of {where} has expired: renew it, and start the SuperLink again")
    if error.verify_code == TOO_EARLY:
        return FedkeelError(f"the certificate of {where} is not valid yet: is the clock of this machine right?")
    if error.verify_code in OTHER_NAME:
        return FedkeelError(
            f"the certificate of {where} is for another host: use a name or address that it was made for"
        )
    why = printable(error.verify_message)
    return FedkeelError(
        f"the certificate of {where} is not vouched for by the CA given here ({why}): is it the right CA?"
    )


def _answered(error: httpx.HTTPStatusError, where: str) -> FedkeelError:
    from flwr.supercore.error import FlowerError

    status = error.response.status_code
    found = FlowerError.from_json(error.response.text)
    if status in AWAY:
        return Unreachable(f"{where} is not there: a proxy answers for it with {status}, or it has only just started")
    path = error.request.url.path
    if status == BUSY:
        return Unreachable(f"{where} failed at {path}: its log says why, it may have too much to do")
    if status == 413:
        return FedkeelError(
            f"{where} or a proxy before it refuses a request of this size: raise its client_max_body_size"
        )
    if found is None and status == 403:
        return FedkeelError(
            f"a proxy before {where} does not let {path} through: the server must call the SuperLink itself"
        )
    said = "" if found is None else f"{found.message} {found.public_details or ''}".strip()
    return FedkeelError(f"{where} refuses {path} with {status}: {shortened(printable(said)) or 'its log may say why'}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _passing(error: BaseException) -> bool:
    """Whether an error of a call is one that may pass by itself."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (*AWAY, BUSY)
    wrong = [one for one in _chain(error) if isinstance(one, ssl.SSLError)]
    return all(isinstance(one, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError) for one in wrong)
