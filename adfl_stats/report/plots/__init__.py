"""Plots; each takes `ax`, draws there or on a new figure, and returns the axes."""

from adfl_stats.report.plots.client_plots import clients, heterogeneity, screening
from adfl_stats.report.plots.convergence_plots import lambda_path, rates, trace
from adfl_stats.report.plots.error_plots import convergence
from adfl_stats.report.plots.history_plots import history
from adfl_stats.report.plots.method_plots import coefficients
from adfl_stats.report.plots.network_plots import network, spectrum
from adfl_stats.report.plots.reanalysis_plots import bootstrap, sensitivity
from adfl_stats.report.plots.study_plots import efficiency_map, study_curves

__all__ = [
    "bootstrap",
    "clients",
    "coefficients",
    "convergence",
    "efficiency_map",
    "heterogeneity",
    "history",
    "lambda_path",
    "network",
    "rates",
    "screening",
    "sensitivity",
    "spectrum",
    "study_curves",
    "trace",
]
