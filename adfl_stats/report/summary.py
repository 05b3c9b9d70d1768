"""The summary of a fit: a statsmodels `Summary` with a header, coefficients, clients, theory and notes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from statsmodels.iolib.table import SimpleTable

from adfl_stats._arguments import listing
from adfl_stats._text import fixed
from adfl_stats.engine.numerical_error import floored
from adfl_stats.inference.client_table import client_columns
from adfl_stats.inference.communication import before_inference
from adfl_stats.inference.covariance import Inference
from adfl_stats.inference.record import FitRecord
from adfl_stats.inference.screening import FDR, adjusted_p_values
from adfl_stats.losses.design_checks import too_few_to_judge
from adfl_stats.network.measures import LEAST_INFLUENCE
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.report.descents import descent_notes
from adfl_stats.report.text import Cells, TextSummary, network_cells, number, pairs, shortened, z_value
from adfl_stats.theory.checks import FAILS, INDICATIVE, UNKNOWN
from adfl_stats.theory.condition_5 import Condition5, condition_5
from adfl_stats.theory.constants import step_range
from adfl_stats.theory.detection import unseen_contamination
from adfl_stats.trust.weights import TRUST

if TYPE_CHECKING:
    from adfl_stats.inference.results import Results
    from adfl_stats.losses.families import Family

__all__ = ["response_name", "rounds_needed", "summarize", "summary_notes"]

# Clients with the least weight that the summary names. Ours.
MOST_LISTED = 5
# Width of the column that says which spread was allowed for.
SPREAD = 38
# A shorter name of a coefficient says nothing.
LEAST_NAME = 6
# Names that would not fit the header.
_SHORT = {"negativebinomial": "neg. binomial", "inversegaussian": "inv. Gauss"}
_SHORT_LINKS = {"inverse squared": "1/mu^2"}


def summarize(res: Results, alpha: float = 0.05) -> TextSummary:
    """Return the summary of a fit."""
    cells = [_coefficients(res, alpha), _clients(res), _differences(res), _theory(res)]
    return TextSummary(_header(res), cells, summary_notes(res))


def _header(res: Results) -> SimpleTable:
    fit, network = res.record, network_cells(res.network)
    low, high = int(fit.sizes.min()), int(fit.sizes.max())
    all_used = res.nobs_used == res.nobs
    left = [
        ("Dep. variable:", shortened([response_name(res)], 19)[0]),
        ("Method:", fit.method),
        ("Family (link):", family_and_link(fit.family)),
        ("Start:", str(fit.details.get("start", ""))),
        ("Step:", f"{fit.step:.3g}"),
        ("Passes to limit:" if fit.solver == "limit" else "Rounds (total):", f"{fit.rounds} ({fit.total_rounds})"),
        ("Numerical error:", f"{fixed(fit.error.total, 3)} SE"),
        ("Converged:", "yes" if res.converged else "NO"),
        ("Down-weighted:", f"{int((~fit.trusted).sum())} clients"),
    ]
    right = [
        ("Clients:", f"{res.network.n_clients}"),
        ("Edges:", network["edges"]),
        ("Observations:", f"{res.nobs}" if all_used else f"{res.nobs_used} of {res.nobs}"),
        ("Rows per client:", f"{low}" if low == high else f"{low} to {high}"),
        ("SE(W):", network["SE(W)"]),
        ("rho (Condition 5):", network["rho"]),
        ("Effective clients:", f"{res.effective_clients:.1f}"),
        ("Log-likelihood:", f"{res.llf:.6g}" if all_used else "-"),
        ("alpha:", f"{fit.family.par:.4g}")
        if fit.family.name == "negativebinomial"
        else ("Scale:", f"{res.scale:.5g}"),
    ]
    table = pairs(left, "Decentralised GLM Results", [17, 19])
    # Side by side, so that both columns of names are names in HTML and LaTeX too.
    table.extend_right(pairs([(f"  {name}", value) for name, value in right], None, [20, 16]))
    return table


def family_and_link(family: Family) -> str:
    """Return family and link in the characters that the head of a summary has for them."""
    name = _SHORT.get(family.label, family.label.replace(", power", ""))
    return shortened([f"{name} ({_SHORT_LINKS.get(family.link, family.link)})"], 19)[0]


def response_name(res: Results) -> str:
    """Return the response, with the level whose probability is modelled where it has two."""
    fit = res.record
    if fit.family.name == "binomial" and fit.classes is not None:
        return f"{fit.y_name} = {fit.classes[1]}"
    return fit.y_name


def _coefficients(res: Results, alpha: float) -> Cells:
    limits = res.conf_int(alpha).to_numpy()
    rows = [
        [number(coef), number(se), z_value(coef, se), f"{p:.3f}", number(low), number(high)]
        for coef, se, p, (low, high) in zip(res.params, res.bse, res.pvalues, limits, strict=True)
    ]
    letter = "t" if res.use_t else "z"
    headers = ["coef", "std err", letter, f"P>|{letter}|", f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]"]
    return Cells(rows, headers, list(res.record.names), None, [20, 10, 9, 8, 7, 9, 9])


def _clients(res: Results) -> Cells:
    fit, columns = res.record, client_columns(res.record, res.record.glance)
    doubted = int((~fit.trusted).sum())
    title = f"Clients: {doubted} of {len(fit.labels)} down-weighted (weight below {TRUST:g})"
    # The least weight first, then the largest score.
    worst = np.lexsort((-columns["score"], columns["weight"].round(2)))[:MOST_LISTED]
    # Where lambda gives the weights, the table has what they come from; it is not the score, which is tested.
    measure = "gradient" if fit.discrepancies is None else "discrepancy"
    rows = [
        [f"{n}", f"{measured:.3g}", f"{fixed(score)} ({df})", f"{weight:.3g}", fixed(distance, 3)]
        for n, measured, score, df, weight, distance in zip(
            *(columns[name][worst] for name in ("n", measure, "score", "df", "weight", "distance")), strict=True
        )
    ]
    headers = ["rows", measure, "score (df)", "weight", "dist., SE"]
    return Cells(rows, headers, [str(label) for label in fit.labels[worst]], title, [20, 8, 11, 14, 10, 10])


def _differences(res: Results) -> Cells:
    """Return whether, and how much, the clients that carry weight differ."""
    clients = res.record.glance
    Q, df, p_value = clients.cochran
    share = max(0.0, 1.0 - df / Q) if Q > 0 else 0.0
    taus = np.sqrt(np.diag(clients.spread))
    largest = int(np.argmax(taus / np.maximum(res.bse.fillna(1.0), np.finfo(float).tiny)))
    spread = "none"
    if clients.differ and not taus.any():
        spread = f"{clients.spread_kind}: variance x {clients.inflation:.3g}"
    elif clients.differ:
        spread, tau = shortened([clients.spread_kind], SPREAD)[0], f"; tau {taus[largest]:.3g} in "
        room = SPREAD - len(spread + tau)
        # The largest tau has a table of its own, heterogeneity().
        if room >= LEAST_NAME:
            spread += tau + shortened([str(res.params.index[largest])], min(14, room))[0]
    rows = [[fixed(Q), f"{df:.0f}", f"{p_value:.3f}", f"{share:.2f}", spread]]
    headers = ["Cochran's Q", "df", "P>Q", "I^2", "spread allowed for"]
    return Cells(rows, headers, None, "Differences between clients", [12, 8, 8, 8, SPREAD])


def _theory(res: Results) -> Cells:
    """Return the conditions that network and settings alone decide."""
    fit, net = res.record, res.network
    if isinstance(net, NetworkSchedule):
        lines = [["Condition 5: rho", "changes", "< 1", "unknown"]]
    else:
        condition, wanted = condition_5(net), f"o(1/N), 1/N = {1 / res.nobs:.1g}"
        lines = [
            ["Condition 5: rho", condition.rho_text, "< 1", condition.status],
            ["Prop. 1: step+SE(W)", f"{step_range(fit)[1] + net.se:.3g}", wanted, _indicative(condition)],
        ]
    lam = fit.details.get("lam")
    # Theorem 3 is about weights exp(-lambda ||gradient||), which a last stage replaces.
    if lam and fit.details.get("measure") == "norm" and not fit.details.get("equalise"):
        low, high = np.log(res.nobs), np.sqrt(fit.sizes.mean()) * len(fit.labels) ** (-1 / 8)
        lines.append(["Theorem 3: lambda", f"{lam:.3g}", f"{low:.3g} to {high:.3g}", "indicative"])
    rows, stubs = [line[1:] for line in lines], [line[0] for line in lines]
    return Cells(rows, ["value", "wanted", "status"], stubs, "Theory", [26, 12, 22, 15])


def summary_notes(res: Results) -> list[str]:
    """Return what a reader of the summary should know besides its numbers."""
    fit = res.record
    errors = (
        Inference.of(fit, None).in_words()
        if fit.smooth
        else "No standard errors: this method solves no common estimating equation, and has no sandwich."
    )
    notes = [errors, _error_note(res), *descent_notes(fit.details)]
    if res.penalty is not None:
        notes.append(_penalty_note(res))
    if fit.family.name == "huber":
        notes.append(
            f"Huber's loss, linear beyond k = {fit.family.par:.5g}: c = {fit.family.tuning:g} times sigma = "
            f"{fit.family.par / fit.family.tuning:.5g}, a robust scale of the residuals from before the fit."
        )
    if "alpha" in fit.details:
        notes.append(f"{fit.details['alpha']}.")
    if fit.solver == "limit":
        notes.append(
            "The limit of the rounds was solved for directly; the network itself would need "
            f"{rounds_needed(res.rounds_needed)} at this step."
        )
    if fit.preconditioned:
        notes.append(_coordinates_note(res))
    if fit.ledger.entries:
        notes.append(f"Until inference {before_inference(fit).in_words()}. See communication().")
    notes += _row_notes(res)
    notes += [f"Warned of: {said}." for said in fit.details.get("warnings", ())]
    if len(res.network.unheard):
        notes.append(
            f"The data of {listing(res.network.unheard)} do not count: no client of a closed group hears "
            "them (influence zero)."
        )
    if "attack" in fit.details:
        notes.append(
            f"Some clients sent false messages (attack {fit.details['attack']}): a stress test, outside the theory."
        )
    notes += _weight_notes(fit)
    notes += _flag_notes(res) + _misfit_notes(res)
    notes += _difference_notes(fit)
    notes += [
        f"{_capital(fit.details[name])}."
        for name in (
            "majority",
            "selection",
            "few rows",
            "undecided",
            "coefficients",
            "identified",
            "protected",
            "spread",
        )
        if name in fit.details
    ]
    if "disputed" in fit.details:
        notes.append(
            f"Two models of the clients fit about as well and differ about {fit.details['disputed']} of them: the data "
            "do not identify clearly who follows the majority. See screen and compare_starts."
        )
    notes += _network_notes(res)
    if not res.converged:
        notes.append("The numerical error is above the tolerance: estimates and tests are approximate.")
    return notes


def _row_notes(res: Results) -> list[str]:
    """Say which rows do not count."""
    fit, notes = res.record, []
    if res.nobs_used < res.nobs:
        notes.append(
            f"Of {res.nobs} observations {res.nobs - res.nobs_used} are set aside with {int((~fit.trusted).sum())} "
            f"down-weighted clients. Log-likelihood, AIC and BIC (res.llf, res.aic, res.bic) are those of the other "
            f"{res.nobs_used}, and compare fits in which the same clients count; they are not shown here."
        )
    if fit.n_dropped:
        notes.append(f"{fit.n_dropped} rows with missing values were left out.")
    return notes


def _weight_notes(fit: FitRecord) -> list[str]:
    """Return what the clients' weights are."""
    notes = []
    if "lam" in fit.details:
        discrepancy = {
            "norm": "gradient norm",
            "loss": "mean loss",
            "score": "excess of the root score statistic (one dispersion) over that of its chi-square .95 quantile",
        }[fit.details["measure"]]
        chosen = " (by cross-validation)" if "lambda_path" in fit.details else ""
        notes.append(
            f"Weights exp(-lambda s) over their largest, lambda = {fit.details['lam']:.3g}{chosen}, s = {discrepancy}, "
            f"{fit.details['stages']} stage(s). P-values and flags are those of the score test of the model of "
            "clients, with its own null distribution; they may disagree with these weights."
        )
    if fit.details.get("equalise"):
        notes.append(
            f"A client's weight is its probability of following the majority, under a model of clients with spread "
            f"{fit.clients.spread_kind} and components {fit.clients.components}. Low weight means that the client does "
            "not fit the majority; it does not mean that its data are corrupt."
        )
        notes += [check.note for check in unseen_contamination(fit)]
    return notes


def _difference_notes(fit: FitRecord) -> list[str]:
    """Return what the estimate is of where clients differ, and which tests said so where they do not."""
    notes = []
    if fit.glance.differ:
        mean = {
            "client": "each client counts once",
            "sample": "clients count by their rows",
            "random-effects": "clients count by their information about it",
        }[fit.weighting]
        notes.append(
            f"Clients differ: the estimate is of the mean of their parameters, in which {mean}. See heterogeneity() "
            "for their spread and for a new client, client_effects() for each."
        )
    if not fit.glance.candidates:
        notes.append(
            "Preliminary tests found no heterogeneity (Cochran's Q, tests of each coefficient's variance and of each "
            "client, .05 each); clients(), heterogeneity() and screen fit the whole model of clients."
        )
    return notes


def _flag_notes(res: Results) -> list[str]:
    """Say where the flags of `res.clients()` and `screen` differ from the weights, and why they may."""
    fit = res.record
    # A method without weights has no two columns to compare; flags that are not valid are not spoken of.
    weighted = fit.details.get("equalise") or "lam" in fit.details
    if not weighted or too_few_to_judge(fit.family, fit.clients.members.gather(fit.sizes), len(fit.names)):
        return []
    flagged = adjusted_p_values(fit.clients) <= FDR
    kept, quiet = fit.labels[flagged & fit.trusted], fit.labels[~flagged & ~fit.trusted]
    parts = [
        f"{len(kept)} flagged client(s) keep weight ({listing(kept)})" if len(kept) else "",
        f"{len(quiet)} lost weight without a flag ({listing(quiet)})" if len(quiet) else "",
    ]
    if not any(parts):
        return []
    return [
        f"Flags (res.clients(), q = {FDR:g}) and weights differ: {'; '.join(part for part in parts if part)}. A flag "
        "tests one client against chance; a weight is about all clients at once."
    ]


def _misfit_notes(res: Results) -> list[str]:
    """Name clients that a method without weights counts though they do not fit; Cochran's Q is without them."""
    fit = res.record
    if fit.details.get("equalise") or "lam" in fit.details:
        return []
    apart = fit.labels[fit.trusted & (fit.glance.probabilities[:, 0] <= 0.5)]
    if not len(apart):
        return []
    return [
        f"{len(apart)} client(s) that count here do not fit the majority ({listing(apart)}); Cochran's Q is that of "
        "the others. See res.clients(); ad.ADFL() weighs clients by how they fit."
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _penalty_note(res: Results) -> str:
    """Say what was minimised, and what the standard errors do not see."""
    assert res.penalty is not None
    free, values = res.penalty.index[res.penalty == 0.0], res.penalty[res.penalty > 0.0].unique()
    size = f"c = {values[0]:.4g}" if len(values) == 1 else f"c from {values.min():.4g} to {values.max():.4g}"
    return (
        f"Ridge penalty c theta^2 / 2 beside the mean loss of a row, {size}"
        f"{f', none for {listing(free)}' if len(free) else ''}; {res.record.effective_parameters:.1f} of "
        f"{len(res.penalty)} parameters are left in effect. Standard errors describe the variance of the penalised "
        "estimate, not its bias towards zero. Clients are tested without the penalty."
    )


def _network_notes(res: Results) -> list[str]:
    """Return what the network does to the estimate, and whether Condition 5 holds."""
    fit, net = res.record, res.network
    lost = 1.0 - net.effective_clients / net.n_clients
    if isinstance(net, NetworkSchedule):
        return [
            f"The network changes with the round ({net!r}): rounds were run, with steps that are not balanced by "
            f"influence, which costs about {lost:.1%} of efficiency. Condition 5, SE(W) and the paper's theorems are "
            "for one fixed network."
        ]
    notes = []
    if fit.details.get("balance") and not net.is_doubly_stochastic:
        notes.append(
            "Steps are balanced: each is divided by the client's influence, so that unequal influence costs little."
        )
        hardly = net.n_clients * net.influence.to_numpy() < LEAST_INFLUENCE
        if hardly.any():
            notes.append(f"Influence too small for balanced steps to compensate: {listing(net.labels[hardly])}.")
    elif not net.is_doubly_stochastic and fit.smooth:
        notes.append(
            f"The network counts some clients more than others (SE(W) = {net.se:.3g}), and steps are not "
            f"balanced: the estimate loses about {lost:.1%} of efficiency, which the numerical error does not count. "
            "See balance=True of the method."
        )
    return notes + _condition_5_notes(condition_5(net))


def _condition_5_notes(condition: Condition5) -> list[str]:
    measured = "The numerical error above was measured, not inferred from them."
    if condition.status == FAILS:
        return [f"Condition 5 fails on this network: the paper's convergence results do not apply. {measured}"]
    if condition.status == UNKNOWN:
        return [
            f"Condition 5 is not decided on this network, as its norm could not be resolved ({condition.trouble}): "
            f"the paper's convergence results may not apply. {measured}"
        ]
    return []


def _indicative(condition: Condition5) -> str:
    """Return the word for a statement of order that assumes Condition 5."""
    return UNKNOWN if condition.status == FAILS else INDICATIVE


def _coordinates_note(res: Results) -> str:
    least, most = step_range(res.record)
    return (
        "The step was chosen, and is given, in coordinates in which the pooled bound on the curvature is the identity; "
        f"in those of the coefficients it is {least:.3g} to {most:.3g} by direction."
    )


def _error_note(res: Results) -> str:
    fit, error = res.record, res.record.error
    farthest = float(np.max(np.abs(fit.theta - fit.params) / floored(np.sqrt(np.diag(fit.sandwich)), fit.params)))
    apart = f"root mean square over clients; the farthest client is at {fixed(farthest, 3)}"
    if np.isnan(error.optimisation):
        return f"Numerical error: consensus only ({apart}); this method solves no common estimating equation."
    return (
        f"Numerical error: optimisation {fixed(error.optimisation, 3)} + consensus {fixed(error.consensus, 3)} "
        f"standard errors, for the worst coefficient; wanted {res.record.tolerance:g}. Consensus is the {apart}."
    )


def rounds_needed(count: float) -> str:
    """Return a number of rounds in words."""
    if not math.isfinite(count):
        return "more than 10^12 rounds"
    return f"about {float(f'{count:.2g}'):,.0f} rounds"
