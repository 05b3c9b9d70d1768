"""What the paper demands, what it promises, and what to do about it."""

from adfl_stats.theory.checks import Check, Report

__all__ = ["Check", "Report"]
