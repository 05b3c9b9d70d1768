"""Methods: one file each, all with the interface `Method`."""

from adfl_stats.methods._base import Method, Outcome, check_needs, checked_outcome, run_scheme
from adfl_stats.methods.adaptive import ADFL
from adfl_stats.methods.bridge import Bridge
from adfl_stats.methods.clipped_gossip import ClippedGossip
from adfl_stats.methods.dfl import DFL
from adfl_stats.methods.geometric_median import GeometricMedian
from adfl_stats.methods.local import Local
from adfl_stats.methods.oracle import Oracle
from adfl_stats.methods.pruning import IOS, NNA
from adfl_stats.methods.slbrn import SLBRN
from adfl_stats.methods.tracking import Extra, GradientTracking
from adfl_stats.methods.trimmed_scores import TrimmedScores
from adfl_stats.methods.ubar import UBAR

__all__ = [
    "ADFL",
    "DFL",
    "IOS",
    "NNA",
    "SLBRN",
    "UBAR",
    "Bridge",
    "ClippedGossip",
    "Extra",
    "GeometricMedian",
    "GradientTracking",
    "Local",
    "Method",
    "Oracle",
    "Outcome",
    "TrimmedScores",
    "check_needs",
    "checked_outcome",
    "run_scheme",
]
