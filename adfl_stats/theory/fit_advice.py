"""What to do about one fit: advice that follows from the conditions it fails, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from adfl_stats._arguments import listing
from adfl_stats._text import number
from adfl_stats._types import Mask
from adfl_stats.inference.record import FitRecord
from adfl_stats.network.schedule import one_network
from adfl_stats.theory.checks import FAILS, UNKNOWN
from adfl_stats.theory.constants import Constants
from adfl_stats.theory.flat import ALPHA
from adfl_stats.theory.network_repairs import condition_5_advice

__all__ = ["fit_advice"]

# Ours: a binomial test at this level says that more trusted clients are beyond their 95 % point than chance brings.
TEST_LEVEL = 0.01
# Ours: a loss of efficiency below this share is smaller than the standard errors show.
SMALL_LOSS = 0.01
# Ours: an estimate farther than this from its solution, in standard errors, shifts the scores of all clients.
FAR = 1.0


def fit_advice(fit: FitRecord, c: Constants) -> tuple[str, ...]:
    """Return what to do, in the order of the report; empty where no condition asks for anything.

    Parameters
    ----------
    fit : FitRecord
        What `Results` hold.
    c : Constants
        The plug-in values of the fit.
    """
    parts = (_majority, _convexity, _mixing, _hidden, _error, _imbalance, _start)
    return (*(entry for part in parts for entry in part(fit, c)), *_stand_ins(c))


def _majority(fit: FitRecord, c: Constants) -> Iterator[str]:
    if c.abnormal_given and c.varrho >= 0.5:
        yield (
            f"Section 3.1: {int(c.abnormal.sum())} of {c.M} clients are abnormal, so that they are the majority. No "
            "weights computed from the data can find the others; give them, as in ad.Oracle(abnormal) or "
            "ad.DFL(weights=...)."
        )


def _convexity(fit: FitRecord, c: Constants) -> Iterator[str]:
    """Name rank-deficient clients by what they lack: rows, or columns that differ."""
    lacking = (fit.regularity.ranks < c.P) & ~fit.set_aside
    columns = len(fit.columns)
    small = lacking & (fit.sizes < columns)
    if small.any():
        yield (
            f"Condition 3: {_named(fit, small)} {_have(small)} fewer rows (at most {int(fit.sizes[small].max())}) than "
            f"the {columns} columns of X; merge with other clients. {_together(c)}"
        )
    collinear = lacking & ~small
    if collinear.any():
        yield (
            f"Condition 3: {_named(fit, collinear)} {_have(collinear)} enough rows but rank "
            f"{int(fit.regularity.ranks[collinear].min())} of {c.P}; drop collinear columns, or merge with clients "
            f"that identify them. {_together(c)}"
        )
    if not lacking.any() and c.lambda_min == 0.0:
        yield "Condition 3: the smallest curvature is lost in rounding; rescale the columns to like units."


def _together(c: Constants) -> str:
    return f"The estimate needs all clients together only, whose smallest curvature is {number(c.pooled_min)}."


def _mixing(fit: FitRecord, c: Constants) -> Iterator[str]:
    """Give the repair that lowers rho most on this network, and say whether the fit needs it."""
    if c.condition_5.status not in (FAILS, UNKNOWN):
        return
    network = one_network(fit.network, "advice on Condition 5")
    terms = f"rho = {c.condition_5.rho_text}: mixing {number(c.mixing)} + SE(W) {number(c.se)}"
    repairs = " ".join(condition_5_advice(network, c.condition_5.status))
    yield f"Condition 5 {'fails' if c.condition_5.status == FAILS else 'is not decided'}, {terms}. {repairs}"
    if fit.smooth and fit.error.total <= fit.tolerance:
        yield (
            f"The condition is sufficient, not necessary: the numerical error of this fit is {fit.error.total:.2g} "
            f"standard errors, within its tolerance {fit.tolerance:g}."
        )


def _hidden(fit: FitRecord, c: Constants) -> Iterator[str]:
    if c.abnormal_given and c.flat.hidden:
        counted = fit.trusted & fit.labels.isin(list(c.flat.hidden))
        keep = f"{int(counted.sum())} of them keep" if counted.any() else "none of them keeps"
        yield (
            f"Condition 6: bias is not distinguished from noise on {len(c.flat.hidden)} abnormal client(s) "
            f"({listing(c.flat.hidden)}); {keep} weight. More rows a client separate them; res.detection_limit() has "
            "the bias that such clients can leave."
        )
    others = c.M - int(c.abnormal.sum())
    if c.flat.n_rejected and stats.binom.sf(c.flat.n_rejected - 1, others, ALPHA) < TEST_LEVEL:
        yield (
            f"Condition 6: {c.flat.n_rejected} of the {others} clients taken as normal have a p-value below {ALPHA:g}, "
            f"where chance brings {ALPHA * others:.2g}. {_why_beyond(fit, c)}"
        )


def _why_beyond(fit: FitRecord, c: Constants) -> str:
    """Return the first reason of this fit for scores of normal clients that are too large."""
    kept = int((c.abnormal & fit.trusted).sum())
    if fit.error.total > FAR:
        return "The estimate is far from the solution of its equation; reduce the numerical error first."
    if kept:
        return f"{kept} abnormal client(s) keep their weight and shift the estimate; ad.ADFL() down-weights them."
    return "More clients are abnormal, or clients differ; see ad.screen(res) and res.heterogeneity()."


def _error(fit: FitRecord, c: Constants) -> Iterator[str]:
    """Say which part of the numerical error is the larger, and what reduces it."""
    error, network = fit.error, one_network(fit.network, "advice on the numerical error")
    # Closed groups are reported under Condition 5; no step makes them agree.
    if not fit.smooth or not error.total > fit.tolerance or len(network.closed_groups) > 1:
        return
    if fit.solver == "limit":
        remedy = "The limit was solved for: only a smaller step reduces it"
    elif error.optimisation > error.consensus:
        remedy = "Optimisation is the larger part: run more rounds"
    else:
        faster = ", or a network that mixes faster" if c.mixing > 1e-12 else ""
        remedy = f"Consensus is the larger part: use a smaller step{faster}"
    yield (
        f"Numerical error: it is {error.total:.3g} standard errors (optimisation "
        f"{error.optimisation:.3g}, consensus {error.consensus:.3g}), above the tolerance {fit.tolerance:g}. {remedy}; "
        "model.advise() computes step and rounds."
    )


def _imbalance(fit: FitRecord, c: Constants) -> Iterator[str]:
    if not c.smooth or c.balanced or c.se == 0.0:
        return
    network = one_network(fit.network, "advice on SE(W)")
    lost, left = 1.0 - network.effective_clients / c.M, 1.0 - network.balanced_efficiency
    if lost < SMALL_LOSS or len(network.closed_groups) > 1:
        return
    yield f"Imbalance: SE(W) = {number(c.se)} costs about {lost:.1%} of efficiency. " + (
        f"{len(network.unheard)} client(s) have influence zero, which no steps change; let others listen to them."
        if len(network.unheard)
        else f"balance=True of the method reduces that to {left:.1%}."
    )


def _start(fit: FitRecord, c: Constants) -> Iterator[str]:
    """Give the lambda at which Condition 7 (1) would be met from the same start."""
    centre = math.nan if c.not_weights else c.lam * c.start_distance
    if math.isfinite(centre) and centre > 1.0:
        yield (
            f"Condition 7: lambda times the distance of the start from theta0 is {number(centre)}, above 1. From this "
            f"start it is below 1 for lambda < {number(c.lam / centre)}; a start closer to theta0, such as "
            "ad.TrimmedScores(), allows a larger one."
        )


def _stand_ins(c: Constants) -> Iterator[str]:
    """Say which arguments would replace estimates by the truth."""
    missing = [name for name, given in (("abnormal=", c.abnormal_given), ("theta0=", c.theta0_given)) if not given]
    if missing:
        yield f"If the truth is known, as in a simulation, pass {' and '.join(missing)}: estimates are used instead."


def _named(fit: FitRecord, clients: Mask) -> str:
    return f"{int(np.sum(clients))} client(s) ({listing(fit.labels[clients])})"


def _have(clients: Mask) -> str:
    return "has" if int(np.sum(clients)) == 1 else "have"
