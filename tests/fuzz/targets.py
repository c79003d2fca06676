"""All targets by name."""

from fuzz import given, kept
from fuzz.target import TARGETS, Target

SLOW = {"resume", "predict"}
"""A whole command for every example."""
__all__ = ["SLOW", "TARGETS", "Target", "given", "kept"]
