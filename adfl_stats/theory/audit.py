"""All conditions and theorems of the paper with the values of one fit."""

from __future__ import annotations

from adfl_stats._types import ClientSet, NumbersByName
from adfl_stats.data.client_data import ClientData
from adfl_stats.inference.record import FitRecord
from adfl_stats.theory.checks import Report
from adfl_stats.theory.conditions import conditions, start_conditions
from adfl_stats.theory.constants import Constants
from adfl_stats.theory.detection import unseen_contamination
from adfl_stats.theory.fit_advice import fit_advice
from adfl_stats.theory.theorems import corollary1, proposition1, theorem1, theorem2, theorem3

__all__ = ["audit"]


def audit(
    fit: FitRecord,
    data: ClientData | None = None,
    abnormal: ClientSet | None = None,
    theta0: NumbersByName | None = None,
) -> Report:
    """Return Conditions 1 to 7, Theorems 1 to 3, Proposition 1 and Corollary 1 as a report.

    Parameters
    ----------
    fit : FitRecord
        What `Results` hold.
    data : ClientData, optional
        Makes gradients at `theta0` exact.
    abnormal, theta0
        As in `Results.check`.
    """
    c = Constants.of(fit, data, abnormal, theta0)
    parts = (conditions, theorem1, proposition1, theorem2, theorem3, start_conditions, corollary1)
    lines = (*(line for part in parts for line in part(c)), *unseen_contamination(fit))
    title = f"Theory behind {fit.method} ({fit.family.name}, {c.M} clients, N = {c.N:.0f}, P = {c.P})"
    return Report(title, lines, fit_advice(fit, c))
