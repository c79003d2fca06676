"""What all ways to personalise a finished model share: phases on one client after the other, from which nothing leaves.

Chen, Ghoukasian, Jin, Wang, Karimireddy, Li, A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated
Learning, arXiv 2511.12695: every client starts at the global model theta_G and trains on its own rows for 15 epochs.

A strategy is a method whose phases send nothing; its shared state is the model of the run. It trains with the
cross-entropy, whatever the run's loss was (our choice). What "full" means depends on the run: of a run that trained a
head, head and encoder; of one that trained a whole network, that; of one that trained adapters, adapters and head.
What batch norms do meanwhile the paper does not say: their statistics stay global, which costs nothing at home and
keeps several points of accuracy abroad (our choice; ``batch_norm = "train"`` lets them follow the client).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, Batch, Method, Phase, State, Visit, from_settings, settings
from fedkeel.core.optim import SGD, AdamW, Optim
from fedkeel.core.registry import Registry
from fedkeel.core.tree import BODY, HEAD, NORM, STATS, Tensor, Tree
from fedkeel.methods.network import NetworkModel, model_of
from fedkeel.models.backbone import Backbone
from fedkeel.rows.inputs import Inputs
from fedkeel.runs.opening import same_rows


class Strategy(Method[Tensor | Inputs]):
    personal: ClassVar[bool] = True
    head_only: ClassVar[bool] = False
    """Whether it leaves the network as it is: then it can work on features."""

    epochs: int = Field(15, ge=1)
    """passes over a client's rows, all stages together"""
    batch: int | None = Field(None, ge=1)
    """unset: that of the run"""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float | None = Field(None, gt=0)
    """unset: that of the run, or 2e-5 where the run trained a head only and the network is a pretrained one"""
    probe_lr: float | None = Field(None, gt=0)
    """of stages that train the head alone; unset: that of the run"""
    momentum: float = Field(0.0, ge=0, lt=1)
    """of sgd"""
    weight_decay: float = Field(0.0, ge=0)
    batch_norm: Literal["frozen", "train"] = "frozen"
    """whether the statistics of batch norms stay, or follow the client's rows while the network is trained"""
    flood: float = Field(0.0, ge=0)
    """loss flooding (Ishida et al., ICML 2020): train on |L - b| + b, so that L stays near b; 0 = off"""
    of: dict[str, Any] = Field(default_factory=dict)
    """the [method] section of the run that is personalised; filled in by fedkeel"""

    @cached_property
    def base(self) -> AnyMethod:
        """The method of the run."""
        return from_settings(self.of)

    def on(self, run: AnyMethod) -> Strategy:
        """The strategy for the model of a run, with everything set that was left to the run."""
        if run.personal:
            raise FedkeelError(f"{run.name} leaves every client a model of its own already: personalise a global model")
        chosen = self.model_copy(update={"of": settings(run)})
        pretrained = not same_rows(chosen, run)  # the run knew features alone
        own_lr, own_batch = getattr(run, "lr", 0.01), getattr(run, "batch", 32)
        return chosen.model_copy(
            update={
                "batch": self.batch or own_batch,
                "lr": self.lr or (2e-5 if pretrained else own_lr),
                "probe_lr": self.probe_lr or own_lr,
            }
        )

    @property
    def reads(self) -> Literal["features", "inputs", "dual"]:
        """A head alone is trained on what the run read."""
        return self.base.reads if self.head_only else "inputs"

    # ---- what is trained

    def extra(self, backbone: Backbone, seed: int) -> Tree:
        """Parameters that the strategy adds to the model, at their starting values."""
        return {}

    @property
    def full(self) -> tuple[str, ...]:
        """Prefixes of everything that full fine-tuning moves."""
        if self.network.adapters:
            return ("",)
        return (HEAD, BODY, NORM, STATS) if self.batch_norm == "train" else (HEAD, BODY, NORM)

    def stage(self, name: str, trains: tuple[str, ...], epochs: int) -> Phase:
        """A phase of training from which nothing leaves."""
        assert self.batch is not None
        probes = trains == (HEAD,)
        rate = self.probe_lr if probes else self.lr
        assert rate is not None
        optim: Optim = AdamW(rate, self.weight_decay)
        if self.optimizer == "sgd":
            optim = SGD(rate, self.momentum, self.weight_decay)
        return Phase(name, trains, sends=(), cohort="all", epochs=epochs, batch=self.batch, optim=optim)

    def plan(self, round: int) -> list[Phase]:
        return [self.stage("tune", self.full, self.epochs)]

    # ---- on a client

    def once(self, x: Tensor | Inputs, visit: Visit) -> Tensor | Inputs:
        """A phase that trains the head alone reads features: the network gives the same ones in every epoch."""
        return self.network.encoded({**visit.down, **visit.mine}, x) if visit.phase.trains == (HEAD,) else x

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        return self.flooded(self.network.cross_entropy({**visit.down, **visit.mine, **params}, batch))

    def flooded(self, loss: Tensor) -> Tensor:
        return (loss - self.flood).abs() + self.flood if self.flood else loss

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        return {}, {**visit.mine, **params}

    # ---- the model

    @property
    def network(self) -> NetworkModel:
        """The run's model, with the features of the strategy."""
        run = model_of(self.base)
        return NetworkModel(self.features, run.head, run.adapters)

    def features(self, tree: Tree, x: Inputs) -> Tensor:
        """Of inputs, as the run's method makes them; a strategy that adds to the network overrides this."""
        return model_of(self.base).features(tree, x)

    def encoded(self, tree: Tree, x: Tensor | Inputs) -> Tensor:
        """Features of many rows."""
        return self.network.encoded(tree, x)

    def predict(self, state: State, mine: Tree, x: Tensor | Inputs) -> Tensor:
        return self.network.predict({**state.down, **mine}, x)


STRATEGIES: Registry[Strategy] = Registry(
    "way to personalise",
    "fedkeel.personal.strategies",
    hint="personalises a finished run, it trains none: run another method, then fedkeel personalize RUN "
    "--method {name}",
)


def register(name: str, paper: str) -> Callable[[type[Strategy]], type[Strategy]]:
    """Class decorator that makes a strategy known by name."""

    def keep(cls: type[Strategy]) -> type[Strategy]:
        cls.name, cls.paper = name, paper
        return STRATEGIES.add(name)(cls)

    return keep
