"""What a user can do from Python: one function per command; the command line only parses and prints.

Each is found on first use: who asks for one does not wait for what the others need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.commands.compare import compare
    from fedkeel.commands.deploy import personalize_site, predict_site, server, site, trial
    from fedkeel.commands.experiment import experiment
    from fedkeel.commands.look import Split, catalogue, encode, partition
    from fedkeel.commands.page import report
    from fedkeel.commands.personalize import personalize
    from fedkeel.commands.plan import Outline, plan
    from fedkeel.commands.predict import Predictions, predict, predictions
    from fedkeel.commands.reproduce import Reproduction, reproduce
    from fedkeel.commands.run import run
    from fedkeel.study.recipe import recipes

__all__ = [
    "Outline", "Predictions", "Reproduction", "Split", "catalogue", "compare", "encode", "experiment", "partition",
    "personalize", "personalize_site", "plan", "predict", "predict_site", "predictions", "recipes", "report",
    "reproduce", "run", "server", "site", "trial",
]  # fmt: skip
_HOMES = {
    **{name: f"commands.{name}" for name in ("compare", "experiment", "personalize", "plan", "predict", "reproduce")},
    "run": "commands.run",
    **dict.fromkeys(("Split", "catalogue", "encode", "partition"), "commands.look"),
    **dict.fromkeys(("personalize_site", "predict_site", "server", "site", "trial"), "commands.deploy"),
    **dict.fromkeys(("Predictions", "predictions"), "commands.predict"),
    "Outline": "commands.plan",
    "Reproduction": "commands.reproduce",
    "recipes": "study.recipe",
    "report": "commands.page",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fedkeel.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedkeel.api' has no attribute {name!r}")
