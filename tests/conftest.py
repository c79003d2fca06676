"""Shared by all tests: helper modules next to this file can be imported, and one thread is enough."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A run sets the number of threads for the whole process: what one test leaves is no start for the next."""
    torch.set_num_threads(1)
