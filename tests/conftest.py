"""Shared by all tests: helper modules next to this file can be imported, and one thread is enough."""

import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

# Started in the background, the suite and all that it starts would ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A run sets the number of threads for the whole process: what one test leaves is no start for the next."""
    torch.set_num_threads(1)


SLOW = (
    "test_docs.py", "test_cli.py", "test_reproduce.py", "test_personalize.py", "test_run.py", "test_clip.py",
    "test_own_data.py", "test_browser.py", "test_theory.py", "test_keep_best.py",
    "test_observers_contract.py", "test_contributing.py", "test_benchmarks.py", "test_strategies.py",
    "test_features.py", "test_strategies_contract.py", "test_lora.py", "test_comparison.py", "test_report.py",
    "test_personal_report.py", "test_balance_report.py", "test_test_rows.py", "test_sources.py",
    "test_sources_contract.py", "test_encoders.py", "test_embedded.py", "test_describe.py", "test_partition.py",
    "test_alignment.py", "test_quick.py", "test_arrays.py", "test_estimator.py", "test_bad_input.py",
    "test_cifar_recipes.py", "test_dual_methods.py", "test_corruptions.py", "test_provenance.py", "test_damage.py",
    "test_official_datasets.py",
)  # fmt: skip
"""Files of whole runs, commands, browsers and documents."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)
