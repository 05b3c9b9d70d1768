"""The conditions and theorems of the paper, their values for a fit or network, and advice."""

from adfl_stats.theory.advice import Advice
from adfl_stats.theory.checks import Check, Report
from adfl_stats.theory.constants import Constants
from adfl_stats.theory.network_report import check_network
from adfl_stats.theory.rates import Rates

__all__ = ["Advice", "Check", "Constants", "Rates", "Report", "check_network"]
