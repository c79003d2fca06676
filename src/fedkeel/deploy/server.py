"""``fedkeel server``: the rounds of a contract, with sites behind a SuperLink. It never sees a row.

What it needs to go on after a kill is in the run's folder: a checkpoint after every exchange, what the sites enrolled
with, the mean of their features, and a number that grows with every start, so that no request has one that was used.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedkeel import __version__
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import NEVER, Down, encode
from fedkeel.core.method import AnyMethod, State, Task
from fedkeel.core.roster import Enrolment, Roster
from fedkeel.core.sealed import Unsound, read_number, read_tensors, write_number, write_tensors
from fedkeel.core.tree import Tensor
from fedkeel.core.watch import Watch
from fedkeel.data.manifest import Manifest
from fedkeel.data.ownership import Ownership
from fedkeel.deploy.contract import Contract
from fedkeel.deploy.finished import sent
from fedkeel.deploy.reader import reader_of
from fedkeel.deploy.settings import ServerSettings
from fedkeel.engines.flower import link
from fedkeel.engines.flower.contact import Address, Unreachable
from fedkeel.engines.flower.engine import FlowerEngine
from fedkeel.engines.flower.keys import public_text, read_private
from fedkeel.engines.flower.post import Post
from fedkeel.methods.heads.centre import MEAN, Centre
from fedkeel.runs.checkpoint import JOURNAL, Checkpoints
from fedkeel.runs.ending import end, sum_up
from fedkeel.runs.events import EVENTS, Log, read
from fedkeel.runs.federation import admit
from fedkeel.runs.folder import begin, check, finished
from fedkeel.runs.loop import Exchanges, Loop
from fedkeel.runs.model import Model
from fedkeel.runs.observers.base import Running, observers_of
from fedkeel.runs.opening import preparation
from fedkeel.runs.summary import SUMMARY

if TYPE_CHECKING:
    from flwr.serverapp import Grid

STARTS, ENROLLED, MEANS = "starts", "enrolled.safetensors", "mean.safetensors"
EACH_START = 10**9
"""Requests that a server can make before it has to be started again."""
LOOK = 0.5
"""Seconds between two looks for sites."""


def serve(settings: ServerSettings, insecure: bool, watch: Watch) -> Path:
    """Run the contract, or go on with it; gives the folder of the run."""
    terms, folder = settings.terms, settings.path(settings.run)
    exp = terms.experiment(settings.lost)
    key = read_private(settings.path(settings.key))
    if public_text(key.public_key()) != " ".join(terms.server.split()[:2]):
        raise FedkeelError(f"{settings.path(settings.key)} is not the key that signs under this contract: use that one")
    link.must_be_installed()
    address, secret = settings.address(insecure), _secret(settings)
    check(folder, exp, resume=True)
    manifest = nobodys_rows(terms)
    begin(folder, exp, manifest)
    over = finished(folder)
    if over and not takes_late(terms.trains):
        return folder
    torch.set_num_threads(terms.threads or os.cpu_count() or 1)
    with ExitStack() as stack, Checkpoints(folder, exp.digest(), every=0) as checkpoints:
        grid = _line(stack, settings, address, secret, watch)
        post = Post(
            grid, terms.sha256, terms.names, list(terms.sites.values()), key, EACH_START * starts(folder),
            settings.deadline,
        )  # fmt: skip
        with Log(folder / EVENTS) as log:
            server = Server(settings, insecure, post, log, checkpoints, watch, manifest.hash)
            if over and not server.late():
                watch.notice(f"{folder} is finished, and no site that it has not heard of is there")
                return folder
            if not over:
                server.gather()
            (folder / SUMMARY).unlink(missing_ok=True)
            model = server.run()
        sum_up(folder, log)
        server.tell(model)
    return folder


def _line(stack: ExitStack, settings: ServerSettings, address: Address, secret: bytes, watch: Watch) -> Grid:
    """The grid, once the SuperLink is there: the two may be started in any order, also after both were killed."""
    until, told = monotonic() + settings.wait, ""
    while True:
        try:
            link.register(address, settings.terms.sites)
            return stack.enter_context(link.grid(address, secret))
        except Unreachable as error:
            if monotonic() > until:
                raise
            if str(error) != told:
                watch.notice(f"{error}; waiting")
            told = str(error)
            sleep(LOOK)


@dataclass
class Server:
    settings: ServerSettings
    insecure: bool
    post: Post
    log: Log
    checkpoints: Checkpoints
    watch: Watch
    manifest: str

    # ---- who takes part

    @cached_property
    def terms(self) -> Contract:
        return self.settings.terms

    @cached_property
    def method(self) -> AnyMethod:
        return self.terms.trains

    @cached_property
    def again(self) -> str:
        return f"fedkeel server {self.settings.folder}{' --insecure' if self.insecure else ''}"

    @property
    def journal(self) -> Path:
        return self.log.folder / JOURNAL

    @cached_property
    def engine(self) -> FlowerEngine:
        nobody = np.zeros(len(self.terms.names), dtype=np.int64)
        longest = None if self.how == "raw" else 1.0
        roster = Roster(self.terms.run, self.terms.names, nobody, self.terms.seed, self.terms.classes, longest)
        engine = FlowerEngine(self.post, roster, self.settings.quorum, self._known(), refused=self._not_enrolled)
        engine.joined = self._joined
        return engine

    @cached_property
    def how(self) -> Any:
        return preparation(self.method, self.terms.experiment().data)

    def _joined(self, enrolment: Enrolment) -> None:
        """On disk before the site takes part, so that a server that comes back counts it as it did before."""
        everybody = self.engine.enrolled
        arrays = {
            "clients": torch.tensor(list(everybody)),
            "class_rows": torch.from_numpy(np.stack([one.class_rows for one in everybody.values()])),
            "test_rows": torch.from_numpy(np.stack([one.test_rows for one in everybody.values()])),
            "validation_rows": torch.tensor([one.validation_rows for one in everybody.values()]),
        }
        write_tensors(self.journal / ENROLLED, arrays, {"run": self.terms.run})
        self.watch.notice(f"site {enrolment.names[0]} takes part, with {int(enrolment.rows[0]):,} training rows")

    def _not_enrolled(self, name: str, reason: str) -> None:
        self.watch.notice(f"site {name} does not take part: {reason}")

    def _known(self) -> list[Enrolment]:
        """What sites enrolled with before this server was started again."""
        found = self._kept(ENROLLED)
        if found is None:
            return []
        rows = (found[name].numpy() for name in ("clients", "class_rows", "validation_rows", "test_rows"))
        return [
            Enrolment.of_counts([self.terms.names[client]], counts[None], int(validation), tests)
            for client, counts, validation, tests in zip(*rows, strict=True)
        ]

    def _kept(self, name: str) -> dict[str, Tensor] | None:
        path = self.journal / name
        try:
            found, about = read_tensors(path)
        except FileNotFoundError:
            return None
        except Unsound:
            raise FedkeelError(f"{path} is damaged: delete {self.log.folder}, and {self.again} runs anew") from None
        if about["run"] != self.terms.run:
            raise FedkeelError(f"{path} is of another contract: choose another folder as server.run")
        return found

    def late(self) -> bool:
        """Whether a site is there from which nothing was ever accepted."""
        done = self.checkpoints.newest()
        if done is not None:
            self.engine.accepted[:] = done.accepted
        return self._newcomers(self.settings.wait)

    def _newcomers(self, wait: float) -> bool:
        until = monotonic() + wait
        self.engine.forgive()
        while True:
            self.engine.enrol()
            heard = self.engine.accepted != NEVER
            if any(not heard[client] for client in self.engine.roster.able):
                return True
            if monotonic() > until:
                return False
            sleep(LOOK)

    def gather(self) -> None:
        """Wait for sites that are not there; after a restart too: whoever was killed with the server comes back."""
        names = self.terms.names
        least = max(1, int(np.ceil(self.settings.quorum * len(names))))
        until, told = monotonic() + self.settings.wait, -1
        while True:
            self.engine.enrol()
            there = [client for client in self.engine.enrolled if client in self.post.there]
            if len(there) == len(names):
                return
            if len(there) != told:
                self.watch.notice(f"waiting for sites: {len(there)} of {len(names)} are there")
                told = len(there)
            if monotonic() > until:
                break
            sleep(LOOK)
            self.engine.forgive()
        if len(self.engine.enrolled) < least:
            raise FedkeelError(
                f"{len(there)} of {len(names)} sites came within {self.settings.wait:g} s (server.wait), expected at "
                f"least {least} (server.quorum): start them, then {self.again} goes on"
            )
        away = [name for client, name in enumerate(names) if client not in there]
        self.watch.notice(f"beginning without {', '.join(away[:5])}: whoever comes later joins before the next round")

    # ---- the run

    def run(self) -> Model:
        done = self.checkpoints.newest()
        if done is not None:
            self.log.must_hold(done.head)
        running = Running(
            self.terms.experiment(self.settings.lost), self.method, self.engine, self.log, self.checkpoints,
            self.watch, read(self.log.folder) if self.log.begun else None, again=self.again,
        )  # fmt: skip
        self._begin(running)
        mean = self.engine.mean = self._mean() if self.how == "centred" else None
        observers = observers_of(running)
        start = self._start()
        for observer in observers:
            observer.started(start)
        loop = Loop(
            self.method, self.engine, self.log, self.checkpoints, observers, self.settings.lost, self.watch, self.again
        )
        state = self._rounds(loop, start)
        data = {**running.experiment.data.model_dump(), **self.terms.about_encoder(self.settings.encoder_here)}
        return end(
            running, state, lambda last: Model(self.method, last.shared, mean, data, self.terms.classes), observers
        )

    def _rounds(self, loop: Loop, start: State) -> State:
        """All rounds; and more of them while sites come late whose sums can still be added."""
        done = self.checkpoints.newest()
        last = max(self.method.rounds, 0 if done is None else done.round)
        state = loop.rounds(start, last)
        while takes_late(self.method) and self._newcomers(0.0):
            last += 1
            state = loop.rounds(start, last)
        return state

    def _start(self) -> State:
        roster = self.engine.roster
        sizes = self.terms.encoder.dim, roster.classes, len(roster.names)
        reader = reader_of(self.settings, self.watch)
        return self.method.start(Task(*sizes, roster.seed, int(roster.rows.sum()), reader, len(roster.able)))

    def _begin(self, running: Running) -> None:
        enrolment, terms = self.engine.enrolment(), self.terms
        admit(self.method, enrolment, terms.classes, enrolment.test_rows)
        if not enrolment.test_rows.sum():
            raise FedkeelError("no site has test rows: give the contract a share of them, partition.test = 0.2")
        if running.known is not None:
            self.log.write("resume")
            return
        exp = running.experiment
        data = {
            "source": terms.name,
            "encoder": terms.encoder.name,
            "classes": list(terms.classes),
            "train_rows": int(enrolment.rows.sum()),
            "test_rows": int(enrolment.test_rows.sum()),
            "dim": terms.encoder.dim,
            "mean_energy": None,
            "class_rows": enrolment.class_rows.tolist(),
            "manifest": self.manifest,
        }
        rows = self.engine.roster.rows
        clients = {
            "count": len(rows), "empty": int((rows == 0).sum()), "names": list(terms.names), "rows": rows.tolist(),
            "label_counts": [],
        }  # fmt: skip
        self.log.write(
            "start", version=__version__, provenance={}, experiment=exp.digest(), config=exp.model_dump(mode="json"),
            data=data, clients=clients, contract=terms.sha256, insecure=self.insecure,
        )  # fmt: skip

    def _mean(self) -> Tensor:
        """Of all training rows of the sites that began; every request brings it, so that no site has to keep it."""
        known = self._kept(MEANS)
        if known is not None:
            return known[MEAN]
        centre, accepted = Centre(), self.engine.accepted.copy()
        asking = Exchanges(self.engine, self.log, self.settings.lost, self.watch, self.again)
        start = centre.start(Task(self.terms.encoder.dim, 0, len(self.terms.names), self.terms.seed))
        state, _ = asking.one(centre, start, centre.plan(0)[0], 0, 0, [])
        self.engine.accepted[:] = accepted
        write_tensors(self.journal / MEANS, {MEAN: state.shared[MEAN]}, {"run": self.terms.run})
        return state.shared[MEAN]

    def tell(self, model: Model) -> None:
        """Give the finished model to all sites that took part."""
        arrays = sent(model)

        def body(client: int) -> bytes:
            accepted = int(self.engine.accepted[client])
            return encode(Down(self.terms.run, 0, "finish", arrays, accepted))

        for reply in self.engine.finish(body):
            if reply.problem:
                name = self.terms.names[reply.client]
                self.watch.notice(f"site {name} has not got the finished model: {reply.problem}")


def takes_late(method: AnyMethod) -> bool:
    """Whether a site that comes after the last round can still add its part: sums are the same in any order."""
    return all(phase.cohort in ("once", "same") for phase in method.plan(1)) and bool(method.plan(1))


def nobodys_rows(terms: Contract) -> Manifest:
    """The split of a run whose rows are elsewhere."""
    nobody = Ownership.of_lists([np.empty(0, dtype=np.int64)] * len(terms.names))
    return Manifest(terms.names, nobody, nobody, nobody, "test", {"kind": "sites", "seed": terms.seed}, terms.sha256)


def _secret(settings: ServerSettings) -> bytes:
    path = settings.path(settings.secret)
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedkeelError(
            f"cannot read the secret {path}: {(error.strerror or str(error)).lower()}; it is the file that the "
            "SuperLink was started with"
        ) from None


def starts(folder: Path) -> int:
    """How often a server was started for this run, this time included."""
    path = folder / JOURNAL / STARTS
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        before = read_number(path) or 0
    except Unsound as why:
        raise FedkeelError(
            f"{path} is damaged ({why}), so nobody knows which requests were sent before: put it back from a copy, or "
            f"delete {folder} and run a new contract"
        ) from None
    write_number(path, before + 1)
    return before + 1
