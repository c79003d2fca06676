"""The contract between a method and the engines that run it.

A method is a frozen model: its fields are hyper-parameters, all state lives in trees. It is written for one client;
an engine may run many clients at once by mapping these functions over a stack, so they must not branch on values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.optim import SGD, AdamW, Optim
from fedkeel.core.registry import Registry
from fedkeel.core.roster import Enrolment
from fedkeel.core.rows import Picks
from fedkeel.core.tree import Tensor, Tree, select


@dataclass(frozen=True)
class Phase:
    """One exchange: what moves on the clients, and what of it leaves them."""

    name: str
    trains: tuple[str, ...] = ()
    """Prefixes of the tensors that move locally."""
    sends: tuple[str, ...] = ()
    """Prefixes of the tensors that leave the client; () = nothing does."""
    gets: tuple[str, ...] | None = None
    """Prefixes of the server's tensors that go down to the client; None = all."""
    uniform: tuple[str, ...] = ()
    """Prefixes averaged with equal weights instead of by example count."""
    each: tuple[str, ...] = ()
    """Prefixes that reach the server client by client instead of averaged."""
    cohort: Literal["sample", "same", "all", "once"] = "sample"
    """Who takes part: a fresh sample, the cohort of the phase before, everybody, or the next of those who never did."""
    epochs: int = 1
    """Passes over the client's rows; 0 = no training, the client calls ``measure`` instead."""
    on: Literal["train", "validation", "test"] = "train"
    """Which of the client's rows ``measure`` gets; training never sees the ones held back."""
    batch: int = 32
    rows: float = 1.0
    """Share of its rows a client visits per epoch."""
    draws: bool = False
    """Whether every visited row brings a keyed uniform number, ``Batch.u``."""
    optim: Optim = field(default=SGD(0.1))
    sums: bool = False
    """Whether what is sent grows with the client's rows: the gate then judges its length per row."""
    looks: bool = False
    """Whether the client only looks at a model: nothing that it keeps changes, and the run goes on as if not asked."""


PER_CLIENT = "per_client."


@dataclass(frozen=True)
class State:
    """What the server holds: parameters that go down and come up, and state of its own."""

    shared: Tree
    server: Tree = field(default_factory=dict)
    """May go down as well; no part of the finished model."""
    per_client: Tree = field(default_factory=dict)
    """One row per client, names starting with ``per_client.``: each client is told its own row only."""

    @property
    def down(self) -> Tree:
        return {**self.shared, **self.server}


@dataclass(frozen=True)
class Task:
    """What a method's first state depends on."""

    dim: int
    classes: int
    clients: int
    seed: int
    rows: int = 0
    """Training rows of all clients together."""
    reader: object = None
    """What reads the rows, where they are not features: a ``Backbone`` or a ``Dual``, which say how to get at them."""
    able: int = 0
    """Clients that hold rows; 0 = all of them."""


@dataclass(frozen=True)
class Update:
    """What the server got from the clients it accepted in one exchange."""

    mean: Tree
    """The weighted mean of what was sent."""
    each: Tree
    """The names in ``Phase.each``: one entry per client, in the order of ``clients``."""
    clients: Tensor
    rows: Tensor
    """How many training rows each of the clients has."""
    round: int


@dataclass(frozen=True)
class Visit:
    """What a client knows while it works; in a stack of clients ``mine``, ``per_client`` and ``counts`` are stacked."""

    down: Tree
    mine: Tree
    phase: Phase
    round: int = 1
    counts: Tensor = field(default_factory=lambda: torch.empty(0))
    """How many of the client's rows belong to each class."""
    per_client: Tree = field(default_factory=dict)
    """What the server told this client alone."""


X = TypeVar("X", bound=Picks)
X_co = TypeVar("X_co", covariant=True)


@dataclass(frozen=True)
class Batch(Generic[X_co]):
    """Rows of one step. Rows an engine added to fill up a stack have weight 0."""

    x: X_co
    y: Tensor
    weight: Tensor
    """1 / (number of real rows) for each real row."""
    u: Tensor
    """One uniform number in [0, 1) per visited row; empty unless the phase asks for draws."""

    def mean(self, rows: Tensor) -> Tensor:
        """The mean of one value per row over the real rows."""
        return (rows * self.weight).sum()


Rounds = Annotated[int, Field(ge=1, le=1_000_000)]


class Method(BaseModel, Generic[X]):
    """Base of all methods: federated averaging of whatever ``loss`` trains. A method overrides where it differs.

    X is what it reads: a tensor of features, ``Inputs`` that it encodes itself, ``Items`` of a dual encoder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    name: ClassVar[str]
    paper: ClassVar[str]
    personal: ClassVar[bool] = False
    """Whether ``predict`` uses what a client keeps for itself: then each client has a model of its own."""
    common: ClassVar[bool] = True
    """Whether what is shared is a model by itself."""

    rounds: Rounds = 50
    participation: float = Field(1.0, gt=0, le=1)
    """share of the clients with rows that take part in a round"""

    @property
    def first_visit(self) -> tuple[str, ...]:
        """Prefixes of the server's tensors that go down at a client's first visit, whatever the phase gets."""
        return ()

    @property
    def reads(self) -> Literal["features", "inputs", "dual"]:
        """How its rows are to be opened: as X is."""
        return "features"

    # ---- on the server

    def sample(self, clients: int, able: int) -> int:
        """How many clients a round samples, of so many in all and so many with rows."""
        return sampled(self.participation, able)

    def check(self, enrolment: Enrolment) -> None:
        """Raise an error, in one line, if the method cannot work on clients that enrolled like this."""
        able = int((enrolment.rows > 0).sum())
        if self.sample(len(enrolment.rows), able) < 1:
            raise FedkeelError(
                f"method.participation = {self.participation:g} of {able} clients with rows samples nobody: "
                f"one of them would be {1 / able:.3g}"
            )

    def start(self, task: Task) -> State:
        """The state before round 1."""
        raise NotImplementedError

    def plan(self, round: int) -> list[Phase]:
        """The exchanges of a round (from 1), in order."""
        raise NotImplementedError

    def merge(self, state: State, update: Update, phase: Phase) -> State:
        """The new state, given what the clients sent."""
        return replace(state, shared=added(state.shared, update.mean))

    # ---- on a client

    def private(self, down: Tree) -> Tree:
        """What a client holds for itself at its first visit, given all that comes down with that. It never leaves."""
        return {}

    def once(self, x: X, visit: Visit) -> X:
        """What the client's rows become for a whole phase: features, where the phase trains the head alone."""
        return x

    def begin(self, visit: Visit) -> Tree:
        """The tensors to train, at their starting values."""
        return select({**visit.down, **visit.mine}, visit.phase.trains)

    def loss(self, params: Tree, batch: Batch[X], visit: Visit) -> Tensor:
        """The local objective on one batch, usually ``batch.mean(...)`` of one value per row."""
        raise NotImplementedError

    def gradients(self, params: Tree, batch: Batch[X], visit: Visit) -> Tree:
        """Of the loss, by everything that requires one. A method of which x is no tensor may compute them itself."""
        wanted = {name: value for name, value in params.items() if value.requires_grad}
        found = torch.autograd.grad(self.loss(params, batch, visit), list(wanted.values()), allow_unused=True)
        return {
            name: torch.zeros_like(value) if grad is None else grad
            for (name, value), grad in zip(wanted.items(), found, strict=True)
        }

    def adjust(self, grads: Tree, params: Tree, batch: Batch[X], visit: Visit) -> Tree:
        """The gradients to step with, where a method rewrites them."""
        return grads

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        """(what to send, the new private state) after the last step."""
        sends = {name: value - visit.down[name] for name, value in select(params, visit.phase.sends).items()}
        return sends, {name: params.get(name, value) for name, value in visit.mine.items()}

    def measure(self, x: X, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        """(what to send, the new private state) in a phase without training, from all rows that ``Phase.on`` names."""
        raise NotImplementedError

    # ---- for whoever uses the model

    def predict(self, state: State, mine: Tree, x: X) -> Tensor:
        """Logits, one row per row of x."""
        raise NotImplementedError

    def scores(self, logits: Tensor) -> Tensor:
        """The logits as probabilities of the classes, which sum to 1.

        Also of one-vs-all units, q_c = sigmoid(z_c): that c alone is right has probability q_c prod_{j != c} (1 - q_j),
        and divided by the sum over all c that is softmax(z)_c.
        """
        return logits.softmax(-1)


class Trained(Method[X], Generic[X]):
    """A method whose clients train with one of the usual optimizers."""

    epochs: int = Field(3, ge=1)
    """passes over a client's rows per round"""
    batch: int = Field(50, ge=1)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    """of sgd"""
    weight_decay: float = Field(1e-4, ge=0)

    @property
    def optim(self) -> Optim:
        if self.optimizer == "sgd":
            return SGD(self.lr, self.momentum, self.weight_decay)
        return AdamW(self.lr, self.weight_decay)

    def phase(self, name: str, trains: tuple[str, ...], sends: tuple[str, ...] = (), **more: Any) -> Phase:
        """A phase of training, with the method's epochs, batch and optimizer where nothing else is said."""
        usual = {"epochs": self.epochs, "batch": self.batch, "optim": self.optim}
        return Phase(name, trains, sends, **{**usual, **more})


def outgoing(sends: Tree, visit: Visit) -> Tree:
    """What may leave the client: exactly the names the phase sends, none of them private. Checked before any bytes."""
    for name in sends:
        if name in visit.mine or not name.startswith(visit.phase.sends):
            raise FedkeelError(
                f"phase {visit.phase.name!r} must not send {name}: it sends {visit.phase.sends or 'nothing'}"
            )
    return sends


def exchange_number(method: AnyMethod, round: int, phase: Phase) -> int:
    """The exchange of a phase as one number that grows from exchange to exchange of a run."""
    index = [planned.name for planned in method.plan(round)].index(phase.name)
    return round * 1000 + index


def sampled(participation: float, able: int) -> int:
    """How many of the clients that are able to take part do."""
    return int(participation * able + 0.5)


def added(tree: Tree, moved: Tree) -> Tree:
    """The tree, moved where there is a move."""
    return {name: value + moved[name] if name in moved else value for name, value in tree.items()}


AnyMethod = Method[Any]
"""A method for whoever never touches a row: the server, configurations, reports."""
METHODS: Registry[AnyMethod] = Registry("method", "fedkeel.methods")


def register(name: str, paper: str) -> Callable[[type[AnyMethod]], type[AnyMethod]]:
    """Class decorator that makes a method known by name to configs and the command line."""

    def keep(cls: type[AnyMethod]) -> type[AnyMethod]:
        cls.name, cls.paper = name, paper
        return METHODS.add(name)(cls)

    return keep


def settings(method: AnyMethod) -> dict[str, Any]:
    """The ``[method]`` section that builds this method again."""
    return {"name": method.name, **method.model_dump()}


def from_settings(section: dict[str, Any]) -> AnyMethod:
    """The method that a ``[method]`` section names, with its hyper-parameters."""
    fields = {key: value for key, value in section.items() if key != "name"}
    return METHODS[section["name"]].model_validate(fields)
