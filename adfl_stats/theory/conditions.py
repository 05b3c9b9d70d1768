"""Conditions 1 to 7 of the paper, with the values of a fit."""

from __future__ import annotations

import math

from adfl_stats._arguments import listing
from adfl_stats._text import factor_text, number
from adfl_stats.theory.checks import FAILS, HOLDS, INDICATIVE, UNKNOWN, Check, decided
from adfl_stats.theory.constants import Constants
from adfl_stats.theory.flat import ALPHA

__all__ = ["conditions", "start_conditions", "told"]


def told(note: str, c: Constants, *, abnormal: bool = False, theta0: bool = False, flat: bool = False) -> str:
    """Return a note that names the plug-in values its line depends on.

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
        exact = "of rows in one place keep_data=True makes them exact"
        words.append(f"Gradients at theta0 are linearised with the pooled Hessian; {exact}.")
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
            "Not testable from the data; it depends on the sampling. Where rows of a client depend on one "
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
            f"rows' Hessians at most {number(c.curvature_moment)}. Both are taken at the estimate, where the condition "
            "has the supremum over Theta. A sample always has one; heavy tails show as a value far above that of most "
            "clients.",
        ),
        _lipschitz(c),
        _mixing(c),
        _bias(c),
    ]


def _share(c: Constants) -> Check:
    clients = int(c.abnormal.sum())
    status = decided(c.varrho < 0.5) if c.abnormal_given else INDICATIVE
    note = f"{clients} of {c.M} clients are abnormal; a majority must be normal."
    return Check("varrho", "Section 3.1", c.varrho, "< 0.5", status, told(note, c, abnormal=True))


def _convexity(c: Constants) -> Check:
    together = f"All clients together have {number(c.pooled_min)}, by their weights in this fit."
    if c.degenerate:
        note = (
            f"The rows of {len(c.degenerate)} client(s) have a rank-deficient Hessian: {listing(c.degenerate)}. The "
            "condition is about expectations, which so few rows, or rows with collinear columns, cannot show to be "
            f"singular. {together} Bounds that divide by lambda_min have no finite value here."
        )
        return Check("lambda_min", "Condition 3", None, "> 0", UNKNOWN, note)
    if c.lambda_min == 0.0:
        note = (
            "Every client has full rank, but the columns' units are so far apart that rounding hides the "
            "smallest curvature; bring the columns to like scales."
        )
        return Check("lambda_min", "Condition 3", None, "> 0", UNKNOWN, note)
    note = f"Smallest eigenvalue of any client's Hessian at the estimate. {together} "
    if c.strictly_convex:
        # A direction in the null space of the expected Hessian is in that of every row.
        note += (
            "Rows of full rank have an expectation of full rank, so that the sign is known; the size tends to be "
            f"estimated too small, with {c.n:.4g} rows a client for {c.P} coefficients. The loss of {c.family} is "
            "convex everywhere."
        )
        return Check("lambda_min", "Condition 3", c.lambda_min, "> 0", HOLDS, note)
    what = "has no curvature in some rows" if c.convex else "is not convex everywhere, which the condition requires too"
    note += f"The loss of {c.family} {what}: the sign at other parameters is not known."
    return Check("lambda_min", "Condition 3", c.lambda_min, "> 0", INDICATIVE, note)


def _lipschitz(c: Constants) -> Check:
    note = (
        "Largest eighth moment (its eighth root) over clients of L(X, Y), which bounds the change of a row's gradient "
        "and of its Hessian: the larger of kappa ||x||^2 and tau ||x||^3. "
    )
    if c.bounded and math.isinf(c.L_max) and c.family.startswith("huber"):
        note += "The second derivative of Huber's loss jumps, so that its Hessian has no such bound."
        return Check("L_max", "Condition 4", c.L_max, "finite", FAILS, note)
    if c.bounded:
        note += (
            f"kappa and tau bound the second and third derivative of the loss of {c.family} at all parameters. It "
            "grows with the number of columns and their units, and makes the bounds below loose."
        )
        return Check("L_max", "Condition 4", c.L_max, "finite", INDICATIVE, note)
    note += (
        f"These derivatives of the loss of {c.family} have no bound over all parameters, and Theta is not known: kappa "
        "and tau are values near the estimate, and L_max is no bound."
    )
    return Check("L_max", "Condition 4", c.L_max, "finite", INDICATIVE, note)


def _mixing(c: Constants) -> Check:
    condition = c.condition_5
    note = f"||W'(I - 11'/M)W|| = {factor_text(condition.mixing)} plus SE(W) = {number(condition.se)}. "
    if condition.status == FAILS:
        note += (
            "All theorems assume it; below only Theorem 1 has values, whose estimator does not use the network. It is "
            "sufficient, not necessary: res.numerical_error has what the fit reached."
        )
    elif c.rho < 1.0:
        note += f"Proposition 1 and Theorem 2 have the factor 1 / (1 - rho) = {number(1.0 / (1.0 - c.rho))}."
    if condition.trouble:
        note += f" Not resolved: {condition.trouble}. rho is a lower bound, and so is what follows from it."
    return Check("rho", "Condition 5", c.rho, "< 1", condition.status, note)


def _bias(c: Constants) -> Check:
    clients, others = int(c.abnormal.sum()), c.M - int(c.abnormal.sum())
    tests = "Rao's and Hotelling's tests of the score at theta0" if c.exact else "the score tests of ad.screen"
    verb = "has" if c.flat.n_rejected == 1 else "have"
    outside = (
        f"Of the {others} others {c.flat.n_rejected} {verb} a p-value below {ALPHA:g}; "
        f"{ALPHA * others:.2g} or fewer are expected by chance."
    )
    if not clients:
        status = HOLDS if c.abnormal_given else INDICATIVE
        note = f"No client is abnormal, so that nothing is required. {outside}"
        return Check("flat_min", "Condition 6", None, "> 0", status, told(note, c, abnormal=True))
    if c.flat.hidden:
        status = UNKNOWN
        note = (
            f"Bias is not distinguished from noise on {len(c.flat.hidden)} of {clients} abnormal clients "
            f"({listing(c.flat.hidden)}) by {tests}, at the level {ALPHA:g} / {clients}."
        )
    else:
        # The scores that chose the set cannot test it, and a bias at the estimate is not one at theta_0.
        status = HOLDS if c.abnormal_given and c.exact else INDICATIVE
        note = (
            f"On each of the {clients} abnormal clients bias is distinguished from noise by {tests}, at the level "
            f"{ALPHA:g} / {clients}."
        )
    note += f" The value is the smallest gradient norm among them, beside its standard error. {outside}"
    bound = f"> 0, noise {number(c.flat.noise)}"
    return Check("flat_min", "Condition 6", c.flat.least, bound, status, told(note, c, abnormal=True, flat=True))


def start_conditions(c: Constants) -> list[Check]:
    """Return the two parts of Condition 7, on the initial estimates of the last stage (section 4.2)."""
    why = c.not_weights or ("" if math.isfinite(c.start_spread) else "This method keeps no initial estimates")
    if why:
        return [
            Check("start: centre", "Condition 7 (1)", None, "O(1)", UNKNOWN, f"{why}."),
            Check("start: spread", "Condition 7 (2)", None, "o(1/N^2)", UNKNOWN, f"{why}."),
        ]
    centre, spread = c.lam * c.start_distance, c.lam * c.start_spread
    bound = 1.0 / c.N**2
    return [
        Check(
            "start: centre",
            "Condition 7 (1)",
            centre,
            "O(1)",
            INDICATIVE,
            told(
                f"lambda times the distance {number(c.start_distance)} of the last stage's mean start from theta0; "
                "for the oracle property it must tend to 0.",
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
            f"lambda times the mean squared distance of the clients' starts from their mean, {number(spread / bound)} "
            "times 1/N^2.",
        ),
    ]
