"""Methods: each a file, all of one small shape (`Method`)."""

from adfl_stats.methods._base import Method, Outcome
from adfl_stats.methods.adaptive import ADFL
from adfl_stats.methods.bridge import Bridge
from adfl_stats.methods.dfl import DFL

__all__ = ["ADFL", "DFL", "Bridge", "Method", "Outcome"]
