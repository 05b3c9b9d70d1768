"""Conditions 1 to 7 of the paper, held against a fit."""

from __future__ import annotations

import math

from adfl_stats._arguments import listing
from adfl_stats.theory.checks import FAILS, HOLDS, INDICATIVE, UNKNOWN, Check, decided, number
from adfl_stats.theory.constants import Constants

__all__ = ["conditions", "start_conditions", "told"]


def told(note: str, c: Constants, *, abnormal: bool = False, theta0: bool = False, flat: bool = False) -> str:
    """Return a note with word of what stands in for what its line depends on.

    Parameters
    ----------
    note : str
        What the line says.
    c : Constants
        The plug-in values.
    abnormal, theta0, flat : bool
        Whether the line depends on the set A, on theta_0, on flat_m = E_m grad l(theta_0).
    """
    words = [note] if note else []
    if abnormal and not c.abnormal_given:
        words.append("The down-weighted clients stand in for the abnormal ones.")
    if (theta0 or flat) and not c.theta0_given:
        words.append("The estimate stands in for theta0.")
    elif flat and not c.exact and c.abnormal.any():
        words.append("Gradients at theta0 are linearised with the pooled Hessian; keep_data=True makes them exact.")
    return " ".join(words)


def conditions(c: Constants) -> list[Check]:
    """Return Conditions 1 to 6 of section 3.2, with the share of abnormal clients of section 3.1."""
    return [
        Check(
            "parameter space",
            "Condition 1",
            None,
            "compact, convex",
            UNKNOWN,
            "An assumption: any large ball will do as long as the estimates stay bounded, as these did.",
        ),
        Check(
            "independent rows",
            "Condition 2",
            None,
            "iid in a client",
            UNKNOWN,
            "The data cannot show it; it depends on how they were gathered. Where rows of a client depend on one "
            "another, use cov_type='CR2'."
            + ("" if c.equal_sizes else f" Clients differ in size; n below is their mean, {c.n:.4g}."),
        ),
        _share(c),
        _convexity(c),
        Check(
            "C_max",
            "Condition 4",
            c.C_max,
            "finite",
            INDICATIVE,
            f"Largest eighth moment (its eighth root) over clients: of the scores {number(c.score_moment)}, of the "
            f"rows' Hessians at most {number(c.curvature_moment)}. A sample always has one; heavy tails show as a "
            "value far above that of most clients.",
        ),
        Check(
            "L_max",
            "Condition 4",
            c.L_max,
            "finite",
            INDICATIVE,
            "Eighth moment of the rows' Lipschitz constants, a bound on the curvature times ||x||^2. It grows with "
            "the number of columns and their units, and makes the bounds below loose.",
        ),
        _mixing(c),
        _bias(c),
    ]


def _share(c: Constants) -> Check:
    clients = int(c.abnormal.sum())
    status = decided(c.varrho < 0.5) if c.abnormal_given else INDICATIVE
    note = f"{clients} of {c.M} clients are abnormal; a majority must be normal, in theory by far."
    return Check("varrho", "Section 3.1", c.varrho, "< 0.5", status, told(note, c, abnormal=True))


def _convexity(c: Constants) -> Check:
    if c.degenerate:
        note = (
            f"No curvature in some direction on {len(c.degenerate)} client(s): {listing(c.degenerate)}. They have too "
            "few rows or collinear columns; bounds that divide by lambda_min say nothing. All clients together "
            f"have {number(c.pooled_min)}."
        )
        return Check("lambda_min", "Condition 3", 0.0, "> 0", FAILS, note)
    if c.lambda_min == 0.0:
        note = (
            "Every client knows of every coefficient, but the columns' units are so far apart that rounding hides the "
            "smallest curvature; bring the columns to like scales."
        )
        return Check("lambda_min", "Condition 3", None, "> 0", UNKNOWN, note)
    note = (
        "Smallest eigenvalue of any client's Hessian at the estimate; all clients together have "
        f"{number(c.pooled_min)}. With {c.n:.4g} rows a client for {c.P} coefficients it is estimated too small. "
        "The losses here are convex everywhere."
    )
    return Check("lambda_min", "Condition 3", c.lambda_min, "> 0", HOLDS, note)


def _mixing(c: Constants) -> Check:
    condition = c.condition_5
    note = f"||W'(I - 11'/M)W|| = {number(condition.mixing)} plus SE(W) = {number(condition.se)}. "
    if condition.status != FAILS and c.rho < 1.0:
        note += f"The bounds below are multiplied by 1 / (1 - rho) = {number(1.0 / (1.0 - c.rho))}."
    else:
        note += (
            "The bounds below do not apply. This is sufficient, not necessary: see res.numerical_error for what "
            "the run reached."
        )
    if condition.trouble:
        note += f" Not resolved: {condition.trouble}. rho is a lower bound, and so is this factor."
    return Check("rho", "Condition 5", c.rho, "< 1", condition.status, note)


def _bias(c: Constants) -> Check:
    clients, others = int(c.abnormal.sum()), c.M - int(c.abnormal.sum())
    outside = f"Of the {others} others {c.suspects} are beyond it too; {0.05 * others:.2g} would be by chance."
    if not clients:
        status = HOLDS if c.abnormal_given else INDICATIVE
        note = f"No client is abnormal, so none can hide; 95 % point of the score: {outside[0].lower()}{outside[1:]}"
        return Check("flat_min", "Condition 6", None, "> 0", status, told(note, c, abnormal=True))
    if c.hidden:
        status = UNKNOWN
        note = (
            f"Bias and noise cannot be told apart on {len(c.hidden)} of {clients} abnormal clients "
            f"({listing(c.hidden)}): their score statistics are within the 95 % point of clients that follow the model."
        )
    else:
        # A set that was chosen by its scores cannot confirm itself.
        status = HOLDS if c.abnormal_given else INDICATIVE
        note = f"All {clients} abnormal clients are beyond the 95 % point of score statistics under the model."
    note += f" The value is the smallest gradient norm among them, beside its standard error. {outside}"
    bound = f"> 0, noise {number(c.flat_noise)}"
    return Check("flat_min", "Condition 6", c.flat_least, bound, status, told(note, c, abnormal=True, flat=True))


def start_conditions(c: Constants) -> list[Check]:
    """Return the two parts of Condition 7, on the initial estimates of the last stage (section 4.2)."""
    why = _no_start(c)
    if why:
        return [
            Check("start: centre", "Condition 7 (1)", None, "O(1)", UNKNOWN, why),
            Check("start: spread", "Condition 7 (2)", None, "o(1/N^2)", UNKNOWN, why),
        ]
    centre, spread = c.lam * c.start_distance, c.lam * c.start_spread
    bound = 1.0 / c.N**2
    times = spread / bound
    return [
        Check(
            "start: centre",
            "Condition 7 (1)",
            centre,
            "O(1)",
            INDICATIVE,
            told(
                f"lambda times the distance {number(c.start_distance)} of the last stage's mean start from theta0; "
                "for the oracle property it should be well below 1.",
                c,
                theta0=True,
            ),
        ),
        Check(
            "start: spread",
            "Condition 7 (2)",
            spread,
            f"o({number(bound)})",
            INDICATIVE,
            f"lambda times the mean squared distance of the clients' starts from their mean, {number(times)} times "
            "1/N^2. Rarely satisfied; the last stage evens the starts out.",
        ),
    ]


def _no_start(c: Constants) -> str:
    if math.isnan(c.lam):
        return "This method has no lambda: its weights do not come from initial estimates."
    if c.lam == 0.0:
        return "lambda is 0: the weights do not depend on the initial estimates."
    if math.isnan(c.start_spread):
        return "This method keeps no initial estimates."
    return ""
