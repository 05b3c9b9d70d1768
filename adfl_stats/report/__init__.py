"""Summaries and plots of results."""
