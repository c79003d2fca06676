"""What a user can do from Python: one function per command; the command line only parses and prints."""

from fedkeel.commands.compare import compare
from fedkeel.commands.experiment import experiment
from fedkeel.commands.look import Split, catalogue, encode, partition
from fedkeel.commands.page import report
from fedkeel.commands.personalize import personalize
from fedkeel.commands.predict import Predictions, predict, predictions
from fedkeel.commands.reproduce import Reproduction, reproduce
from fedkeel.commands.run import run
from fedkeel.study.recipe import recipes

__all__ = [
    "Predictions", "Reproduction", "Split", "catalogue", "compare", "encode", "experiment", "partition", "personalize",
    "predict", "predictions", "recipes", "report", "reproduce", "run",
]  # fmt: skip
