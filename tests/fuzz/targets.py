"""All targets by name."""

from fuzz import downloaded, given, kept, official, sites
from fuzz.target import TARGETS, Target

SLOW = {"resume", "predict"}
"""A whole command for every example."""
__all__ = ["SLOW", "TARGETS", "Target", "downloaded", "given", "kept", "official", "sites"]
