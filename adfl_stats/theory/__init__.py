"""What the paper demands, what it promises, and what to do about it."""

from adfl_stats.theory.advice import Advice
from adfl_stats.theory.checks import Check, Report
from adfl_stats.theory.constants import Constants
from adfl_stats.theory.network_report import check_network
from adfl_stats.theory.rates import Rates

__all__ = ["Advice", "Check", "Constants", "Rates", "Report", "check_network"]
