"""Unseen contamination: its line in the report on a fit."""

from __future__ import annotations

import numpy as np

from adfl_stats._text import number
from adfl_stats.inference.detection import limits_of_detection
from adfl_stats.inference.record import FitRecord
from adfl_stats.theory.checks import INDICATIVE, UNKNOWN, Check

__all__ = ["unseen_contamination"]

# The share of clients and the power that the line is about. Ours: a fifth, as in the paper's simulations; .8 is usual.
SHIFTED_SHARE, POWER = 0.2, 0.8


def unseen_contamination(fit: FitRecord) -> list[Check]:
    """Return how much bias a fifth of the clients could leave that are off together and not found."""
    if not fit.details.get("equalise"):
        return []
    limits = limits_of_detection(fit, SHIFTED_SHARE, POWER)
    # A coefficient that one client alone identifies has no standard error by client.
    there = ~np.isnan(limits.se)
    bias, se = limits.bias[there], limits.se[there]
    # Data without noise have standard errors of zero; their bias has no such unit.
    known = bool(len(se) and np.isfinite(bias).all() and (se > 0.0).all())
    worst = float(np.max(bias / se)) if known else np.inf
    left = f"a bias of up to {number(worst)} standard errors" if known else "a bias that has no such unit"
    shift, wanted = number(limits.shift), "< 1 SE"
    note = (
        f"A fifth of the clients, off together by {shift} standard deviations of a client, is found with probability "
        f"{POWER:g}; off by less, it could leave {left}. "
        "conf_int(contamination=.2) allows for it. (Ours.)"
    )
    return [Check("unseen bias, SE", "", worst if known else None, wanted, INDICATIVE if known else UNKNOWN, note)]
