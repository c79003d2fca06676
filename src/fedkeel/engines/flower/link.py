"""The server's half of Flower: calls into flwr beyond its public interface are here, in ``contact`` and ``fleet``.

The server is a Flower run whose task it takes itself, in the foreground. The app that such a run must have is
``stock_app``, for sites with a SuperNode of Flower's (``fedkeel site --stock``): no process of fedkeel ever loads it.
A SuperLink runs with process isolation and a secret, so nobody else takes the task.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from fedkeel.core.errors import FedkeelError, printable, shortened
from fedkeel.engines.flower.contact import (
    VERSION,
    Address,
    Unreachable,
    client_for,
    code_of,
    content_of,
    must_be_installed,
    patient,
    payload,
    telling,
)
from fedkeel.engines.flower.keys import public_pem, read_public

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.proto.message_pb2 import Message as Proto
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.serverapp import Grid
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.superlink.grid import HttpGrid

__all__ = [
    "VERSION",
    "Address",
    "Unreachable",
    "content_of",
    "grid",
    "must_be_installed",
    "payload",
    "register",
    "superlink_command",
]

PATIENCE = 60.0
"""Seconds for which a SuperLink may be away in the middle of a run."""
PARTING = 5.0
"""Seconds for which it may be away at the end of one."""
HEARTBEAT = 10.0
PAUSE = 0.5
"""Seconds between two attempts to send something."""
KNOWN_ALREADY = 23
"""Flower's number for a key that is registered."""
APP = b"""[project]
name = "fedkeel"
version = "1"
[tool.flwr.app]
publisher = "fedkeel"
[tool.flwr.app.components]
serverapp = "none:app"
clientapp = "stock:app"
"""


def superlink_command(
    host: str,
    port: int,
    secret: Path,
    ca: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    database: Path | None = None,
) -> list[str]:
    """How to start the SuperLink; without certificates it is one for a trial on one machine.

    Without a database it forgets registered keys and what is on its way when it is stopped.
    """
    command = ["flower-superlink", "--host", host, "--port", str(port), "--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(secret), "--disable-runtime-dependency-installation"]
    if ca is None or certificate is None or key is None:
        command += ["--insecure"]  # any site may register its own key: without TLS Flower refuses the flag below
    else:
        command += ["--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(ca), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    return command if database is None else [*command, "--database", str(database)]


def register(address: Address, keys: Mapping[str, str]) -> None:
    """Make the keys (OpenSSH's text, by name) known to the SuperLink; those it knows already stay as they are."""
    must_be_installed()
    import httpx
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.control import ControlHttpClient

    with client_for(ControlHttpClient, address, "flwr CLI") as client, telling(address, first=True):
        for name, text in keys.items():
            pem = public_pem(read_public(text, f"the key of {name}"))
            try:
                client.RegisterNode(RegisterNodeRequest(public_key=pem, name=name))
            except httpx.HTTPStatusError as error:
                if code_of(error) != KNOWN_ALREADY:
                    raise


# ---- a run


@contextmanager
def grid(address: Address, secret: bytes) -> Iterator[Grid]:
    """A Flower run of which this process is the ServerApp; at the end the run is reported as completed, or failed.

    A SuperLink that goes away in the middle is waited for.
    """
    must_be_installed()
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.task_identity import TaskIdentity

    run = _start(address)
    retry = patient(PATIENCE)
    line = _line()(address, _take(address, secret, run), retry)
    beating = threading.Event()
    status, details = "completed", ""
    try:
        with telling(address):
            task = line.runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run, task.context.node_id
        line.set_run(run_from_proto(task.run))
        threading.Thread(target=_beat, args=(line.runtime, beating), name="heartbeat", daemon=True).start()
        yield line
    except BaseException as error:
        status, details = "failed", shortened(printable(f"{type(error).__name__}: {error}"))
        raise
    finally:
        beating.set()
        retry.max_time = PARTING
        with suppress(FedkeelError), telling(address):
            line.runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        line.close()


def _start(address: Address) -> int:
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab

    stock = (files("fedkeel.engines.flower") / "stock_app.py").read_bytes()
    content, _ = build_fab_from_files({"pyproject.toml": APP, "none.py": b"app = None\n", "stock.py": stock})
    app = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
    with client_for(ControlHttpClient, address, "flwr CLI") as client, telling(address, first=True):
        return client.StartRun(StartRunRequest(fab=app)).run_id


def _take(address: Address, secret: bytes, run: int) -> str:
    """The token of the run's task; tasks of servers that died before they took theirs are passed over."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    methods = {"/flwr.proto.Runtime/AcquireTask"}
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)
    until = monotonic() + PATIENCE
    with client_for(RuntimeHttpClient, address, "SuperExec", [signed], patient(PATIENCE)) as client, telling(address):
        while monotonic() < until:
            try:
                got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 401:
                    raise
                raise FedkeelError(
                    f"the SuperLink at {address.host_port} does not take the secret given here: expected the bytes of "
                    "the file that it was started with, and clocks that agree"
                ) from None
            if got.token and got.task.run_id == run:
                return got.token
            if not got.token:
                sleep(0.05)
    raise FedkeelError(
        f"the SuperLink at {address.host_port} did not hand over the task of run {run}: does another server use it too?"
    )


def _beat(client: RuntimeHttpClient, ended: threading.Event) -> None:
    """Say that the server lives; one that SuperLink gave up hears of it in its next call."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    while not ended.is_set():
        with suppress(httpx.HTTPError, RuntimeError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        ended.wait(HEARTBEAT)


# ---- messages


@cache
def _line() -> Callable[[Address, str, Any], Any]:
    """The class of the grid: it has flwr's as a base, so it can only be made where flwr is."""
    from flwr.superlink.grid import HttpGrid

    class Line(HttpGrid):
        """Flower's grid, but that no site can hold it up or end it, and that it is in no hurry to give up."""

        def __init__(self, address: Address, token: str, retry: Any) -> None:
            super().__init__(address.host_port, address.insecure, address.ca, token=token)
            self._address, self._retry_invoker = address, retry
            self._coming: dict[str, tuple[Proto, ObjectTree]] = {}

        @property
        def runtime(self) -> RuntimeHttpClient:
            """The client under this grid."""
            from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
            from flwr.supercore.runtime import RuntimeHttpClient

            if self._client is None:
                token = RuntimeTokenHttpInterceptor(token=self._token)
                self._client = client_for(
                    RuntimeHttpClient, self._address, "flwr-serverapp", [token], self._retry_invoker
                )
            return self._client

        @property
        def _runtime_client(self) -> RuntimeHttpClient:
            return self.runtime

        def get_nodes(self) -> Iterable[Any]:
            with _running(self._address):
                return super().get_nodes()

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            """A SuperLink that dies meanwhile gets the same messages again: what it has of them it knows by its id."""
            from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

            every, until = list(messages), monotonic() + PATIENCE
            while True:
                try:
                    with _running(self._address):
                        ids = list(super().push_messages(every))
                    break
                except ObjectPushError as error:
                    if monotonic() > until:
                        raise Unreachable(f"{self._address.host_port} lost what was being sent: {error}") from None
                    sleep(PAUSE)
            if len(ids) != len(every):
                raise FedkeelError(f"{self._address.host_port} refuses a request of this size: raise its limit")
            return ids

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            """The replies that are there as a whole; one that is still being sent waits for the next call."""
            with _running(self._address):
                return _pulled(self, self._coming, list(message_ids))

    return Line


@contextmanager
def _running(address: Address) -> Iterator[None]:
    import httpx

    with telling(address):
        try:
            yield
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (401, 403):
                raise
            raise FedkeelError(
                f"the SuperLink at {address.host_port} has ended this server's run, because it was stopped or not "
                "heard of for a minute: start the server again, it goes on where it was"
            ) from None


def _pulled(line: HttpGrid, coming: dict[str, tuple[Proto, ObjectTree]], ids: list[str]) -> list[Message]:
    """A SuperLink hands out a reply once, whether its objects have come or not: so it is kept here until they have."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    client = line._runtime_client
    if new := [id for id in ids if id not in coming]:
        got = client.PullMessages(PullAppMessagesRequest(message_ids=new))
        for proto, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            coming[proto.metadata.reply_to_message_id] = (proto, tree)
    found = []
    for id in [id for id in ids if id in coming]:
        proto, tree = coming[id]
        message = _whole(line, proto, tree)
        if message is None:
            continue
        del coming[id]
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=line.node, run_id=line.run.run_id, message_object_id=proto.metadata.message_id
            )
        )
        found.append(message)
    return found


def _whole(line: HttpGrid, proto: Proto, tree: ObjectTree) -> Message | None:
    """A reply; an error in its place if it cannot be read or never comes; None if it has not come yet."""
    import httpx
    from flwr.app import Error
    from flwr.app.message import make_message
    from flwr.common.constant import ErrorCode
    from flwr.common.serde_utils import metadata_from_proto

    from fedkeel.engines.flower.objects import Unready, inflated, pulled

    try:
        contents = pulled(line._runtime_client.PullObject, line.node, line.run.run_id, tree)
        return inflated(proto.metadata.message_id, contents)
    except Unready:
        return None
    except httpx.HTTPError:
        raise
    except FedkeelError as error:
        reason = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, str(error))
        return make_message(metadata_from_proto(proto.metadata), error=reason)
