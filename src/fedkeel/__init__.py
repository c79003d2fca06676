"""fedkeel fine-tunes a foundation model across clients whose data differ, and keeps it from drifting."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.api import (
        Outline,
        Predictions,
        Reproduction,
        Split,
        compare,
        encode,
        experiment,
        partition,
        personalize,
        plan,
        predict,
        predictions,
        recipes,
        report,
        reproduce,
        run,
    )
    from fedkeel.commands.estimator import FederatedClassifier
    from fedkeel.commands.result import Result
    from fedkeel.core.errors import FedkeelError
    from fedkeel.core.method import Batch, Method, Phase, State, Visit, register
    from fedkeel.core.optim import SGD, AdamW
    from fedkeel.core.watch import Watch
    from fedkeel.data.sources.arrays import Arrays
    from fedkeel.methods.heads.base import LinearProbe
    from fedkeel.runs.config import Experiment
    from fedkeel.runs.model import Model

# An idle OpenMP thread that spins takes the core another one needs; this must be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
__all__ = [
    "SGD", "AdamW", "Arrays", "Batch", "Experiment", "FederatedClassifier", "FedkeelError", "LinearProbe", "Method",
    "Model", "Outline", "Phase", "Predictions", "Reproduction", "Result", "Split", "State", "Visit", "Watch", "compare",
    "encode", "experiment", "partition", "personalize", "plan", "predict", "predictions", "recipes", "register",
    "report", "reproduce", "run",
]  # fmt: skip
_HOMES = {
    **dict.fromkeys(("Batch", "Method", "Phase", "State", "Visit", "register"), "core.method"),
    **dict.fromkeys(("SGD", "AdamW"), "core.optim"),
    "Arrays": "data.sources.arrays",
    "Experiment": "runs.config",
    "FederatedClassifier": "commands.estimator",
    "FedkeelError": "core.errors",
    "LinearProbe": "methods.heads.base",
    "Model": "runs.model",
    "Result": "commands.result",
    "Watch": "core.watch",
}
"""Where a name is that is no command."""


def __getattr__(name: str) -> Any:
    """Public names are found on first use, so that importing fedkeel, as the command line does, costs nothing."""
    if name in __all__:
        return getattr(import_module(f"fedkeel.{_HOMES.get(name, 'api')}"), name)
    raise AttributeError(f"module 'fedkeel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
