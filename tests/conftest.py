"""Shared by all tests: helper modules next to this file can be imported, and one thread is enough."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
