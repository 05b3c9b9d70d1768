"""The page of a fit: summary, coefficients, clients, network, differences, theory, the run and notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adfl_stats._arguments import listing, several
from adfl_stats._text import fixed
from adfl_stats.inference.estimates import Estimates
from adfl_stats.inference.objective_results import ObjectiveResults
from adfl_stats.inference.results import Results
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.report.objective_summary import listed_parameters, objective_notes
from adfl_stats.report.pages.drawing import classes_of, network_figure
from adfl_stats.report.pages.extras import extra_sections
from adfl_stats.report.pages.fit_charts import (
    deviation_chart,
    error_chart,
    forest_chart,
    lambda_chart,
    run_chart,
    score_chart,
)
from adfl_stats.report.pages.markup import Html, joined, paragraphs, tag
from adfl_stats.report.pages.page import Section, page
from adfl_stats.report.pages.tables import (
    VERDICTS,
    advice_list,
    check_table,
    client_table,
    fact_table,
    glossary,
    plain_table,
)
from adfl_stats.report.summary import response_name, rounds_needed, summary_notes
from adfl_stats.report.text import network_cells
from adfl_stats.theory.condition_5 import condition_5
from adfl_stats.theory.detection import SHIFTED_SHARE
from adfl_stats.trust.weights import TRUST

__all__ = ["fit_page"]

COLUMNS = {
    "n": "Rows of the client.",
    "total": "Sum of the row weights of the client.",
    "gradient": "Norm of the gradient of its mean loss at the estimate.",
    "score": "Score statistic there: its gradient in units of the variance that the model of clients gives it.",
    "df": "Mean of the score statistic for a client that follows the model.",
    "p_value": "Of the score test. A small value says that the client does not follow the majority.",
    "flagged": "Whether the score test flags it, at a false discovery rate of 10 %.",
    "weight": "Its weight in the estimate, over the largest: with aDFL the probability that it follows the majority.",
    "verdict": "How the model of clients classifies it: noisy (follows the majority, with more noise), coherent (off "
    "together with others) or far off (by itself). None of these means corrupt.",
    "noise": "Its residual variance over the typical one.",
    "shift": "How far the estimate would move without it, in standard errors, for the coefficient that moves most.",
    "influence": "Its share of the network's consensus; 1 is the mean.",
    "distance": "Root mean square distance of its own copy of the estimate from the mean, in standard errors.",
}


def fit_page(res: Estimates, also: Sequence[object] = (), title: str | None = None, alpha: float = 0.05) -> Html:
    """Return the page of a fit.

    Parameters
    ----------
    res : Results or ObjectiveResults
        A fit.
    also : sequence
        Further results to show, before the notes.
    title : str, optional
        The heading.
    alpha : float
        Intervals are at level 1 - alpha.
    """
    if isinstance(res, Results):
        parts = _glm_sections(res, alpha)
        heading, words = f"{response_name(res)}: {res.record.method}", _glm_words(res)
    elif isinstance(res, ObjectiveResults):
        parts = _objective_sections(res, alpha)
        heading, words = res.record.method, f"{len(res.record.names)} parameters, {len(res.record.labels)} clients"
    else:
        raise TypeError(f"res is a {type(res).__name__}; wanted are the results of a fit")
    return page(
        heading if title is None else title,
        words,
        [*parts[:-1], *extra_sections(several(also, "also", "results to add")), parts[-1]],
    )


def _glm_words(res: Results) -> str:
    fit = res.record
    return (
        f"{len(fit.names)} coefficients of a {fit.family.label} model ({fit.family.link} link) by {fit.method}, from "
        f"{res.nobs:,} rows of {len(fit.labels):,} clients that exchange estimates with their neighbours only."
    )


def _glm_sections(res: Results, alpha: float) -> list[Section]:
    table = res.clients()
    differences = res.heterogeneity(alpha)
    level = _level(alpha)
    estimates = differences.intervals() if res.record.clients.differ else differences.intervals().iloc[:, :3]
    sections = [
        Section("summary", "Summary", _summary(res, table)),
        Section("coefficients", "Coefficients", _pair(_coefficients(res, alpha), forest_chart(estimates, level))),
        Section("clients", "Clients", joined(score_chart(res), _clients(res, table))),
        Section("net", "Network", _network(res)),
        Section("heterogeneity", "Differences between clients", _differences(res, differences)),
        *_theory(res),
        Section("run", "The fit", _run(res, res.bse.to_numpy() if res.record.smooth else None)),
        Section("notes", "Notes", _notes(summary_notes(res))),
    ]
    return sections


def _level(alpha: float) -> str:
    return f"{100 * (1 - alpha):.4g} %"


def _objective_sections(res: ObjectiveResults, alpha: float) -> list[Section]:
    table = res.clients()
    coefficients, known = listed_parameters(res, alpha), not res.without_errors
    estimates = coefficients[["estimate", "lower", "upper"]]
    chart = forest_chart(estimates, _level(alpha)) if known else Html("")
    return [
        Section("summary", "Summary", _cards(_common_cards(res))),
        Section("coefficients", "Parameters", _pair(plain_table(coefficients, "Parameters.", corner="name"), chart)),
        Section("clients", "Clients", _clients(res, table)),
        Section("net", "Network", _network(res)),
        Section("run", "The fit", _run(res, res.bse.to_numpy() if known else None)),
        Section("notes", "Notes", _notes(objective_notes(res))),
    ]


def _pair(left: Html, right: Html, kind: str = "pair") -> Html:
    """Return two parts side by side where the page is wide enough."""
    return tag("div", tag("div", left), tag("div", right), class_=kind)


# ---------------------------------------------------------------------- summary


def _common_cards(res: Results | ObjectiveResults) -> list[tuple[str, str, str]]:
    fit = res.record
    return [
        ("clients", f"{len(fit.labels):,}", f"{res.effective_clients:.1f} effective"),
        ("down-weighted", f"{int((~fit.trusted).sum()):,}", f"weight below {TRUST:g}"),
    ]


def _summary(res: Results, table: Any) -> Html:
    fit = res.record
    clients, down = _common_cards(res)
    error = fit.error
    net = res.network
    rho = (
        ("changes", "the network changes with the round")
        if isinstance(net, NetworkSchedule)
        else (condition_5(net).rho_text, f"Condition 5 {_verb(condition_5(net).status)}")
    )
    Q, df, p_value = fit.clients.cochran
    cards = [
        clients,
        ("rows", f"{res.nobs:,}", ""),
        down,
        ("flagged", f"{int(table['flagged'].sum()):,}", "score test, false discovery rate 10 %"),
        ("converged", "yes" if res.converged else "NO", f"numerical error {fixed(error.total, 3)} SE"),
        ("clients differ", "yes" if fit.clients.differ else "no", f"Q = {fixed(Q)} on {df:.0f} df, p = {p_value:.2g}"),
        ("rho", *rho),
    ]
    return joined(_cards(cards), paragraphs(_sentences(res, table)))


def _verb(status: str) -> str:
    return status if status.endswith("s") else f"is {status}"


def _cards(cards: list[tuple[str, str, str]]) -> Html:
    pieces = [
        tag("div", tag("dt", name), tag("dd", value, *([tag("small", more)] if more else [])))
        for name, value, more in cards
    ]
    return tag("dl", *pieces, class_="cards")


def _sentences(res: Results, table: Any) -> list[str]:
    fit = res.record
    doubted = ~fit.trusted
    said = []
    if doubted.any():
        share = fit.sizes[doubted].sum() / res.nobs
        said.append(
            f"Down-weighted: {listing(fit.labels[doubted], 12)}, with {share:.0%} of the rows. These clients do not "
            "fit the majority. That does not mean that their data are corrupt: examine them before you report."
        )
    else:
        said.append("No client is down-weighted.")
    apart = table.index[table["flagged"].to_numpy() & ~doubted]
    if len(apart):
        said.append(f"Flagged by the test of one client, but with weight: {listing(apart, 12)}.")
    if not res.converged:
        said.append("The numerical error is above the tolerance: estimates and tests are approximate.")
    return said


# ---------------------------------------------------------------------- coefficients


def _coefficients(res: Results, alpha: float) -> Html:
    limits = res.conf_int(alpha).set_axis([f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]"], axis=1)
    letter = "t" if res.use_t else "z"
    table = limits.copy()
    p_values = res.pvalues.map(lambda p: "< 0.001" if p < 0.001 else f"{p:.3f}")
    for name, values in (
        (f"P>|{letter}|", p_values),
        (letter, res.tvalues),
        ("std err", res.bse),
        ("coef", res.params),
    ):
        table.insert(0, name, values)
    return plain_table(table, f"Coefficients, {res.cov_type} standard errors.", corner="coefficient")


# ---------------------------------------------------------------------- clients and network


def _clients(res: Results | ObjectiveResults, table: Any) -> Html:
    fit = res.record
    order = np.lexsort((-table["gradient"].to_numpy(), table["weight"].to_numpy().round(2)))
    marks = {"down-weighted": ~fit.trusted}
    if "flagged" in table:
        marks["flagged"] = table["flagged"].to_numpy()
        table = table.assign(flagged=np.where(table["flagged"], "yes", ""))
    caption = f"Clients, the least weights first. Down-weighted: {int((~fit.trusted).sum())}."
    words = {name: COLUMNS[name] for name in table.columns if name in COLUMNS}
    listed = client_table(table, caption, key="client", marks=marks, order=order.tolist())
    printed = tag("p", "On paper: the first 60 rows as sorted and chosen on the screen.", class_="only-print")
    return joined(listed, printed, glossary(words, "What the columns mean"))


def _network(res: Results | ObjectiveResults) -> Html:
    net, weights = res.network, res.record.weights
    cells = network_cells(net)
    facts: list[tuple[str, Any]] = [
        ("clients", net.n_clients),
        ("edges", cells["edges"]),
        ("SE(W), unequal influence", cells["SE(W)"]),
        ("rho (Condition 5)", cells["rho"]),
        ("effective clients by influence", net.effective_clients),
    ]
    if isinstance(net, NetworkSchedule):
        return joined(
            paragraphs([f"The network changes with the round and is not drawn: {net!r}."]),
            fact_table(facts, "The network."),
        )
    facts += [
        ("neighbours heard", f"{int(net.in_degree.min())} to {int(net.in_degree.max())}"),
        ("strongly connected", net.is_strongly_connected),
    ]
    share = net.influence.to_numpy() * net.n_clients
    tips = [
        f"{label}: weight {weight:.3g}\nhears {heard}, influence {number:.2f}"
        for label, weight, heard, number in zip(net.labels, weights, net.in_degree, share, strict=True)
    ]
    drawn = network_figure(net, classes_of(weights), tips, by="weight")
    return _pair(drawn, fact_table(facts, "The network."), "pair drawn")


# ---------------------------------------------------------------------- differences and theory


def _differences(res: Results, between: Any) -> Html:
    limit = res.detection_limit(SHIFTED_SHARE)
    words = [
        f"Cochran's Q = {fixed(between.statistic)} on {between.df:.0f} degrees of freedom, p = {between.p_value:.2g}; "
        f"I^2 = {between.i_squared:.0%}. The fit allows for a spread of kind: {between.kind}.",
    ]
    pieces = [
        paragraphs(words),
        plain_table(between.to_frame(), "Spread of each coefficient between clients.", corner="coefficient"),
        deviation_chart(between, res.record.labels, res.record.weights),
        plain_table(between.intervals(), "Intervals for the mean and for a new client.", corner="coefficient"),
        tag("h3", "What could not be seen"),
        paragraphs(
            [
                f"If {SHIFTED_SHARE:.0%} of the clients were shifted together, in one coefficient, they would be found "
                "from the shift below on, which is in standard deviations of a client (sampling and spread together)."
            ]
        ),
        plain_table(
            limit,
            "Least shift that is found on average, and the bias that one just below it would leave.",
            corner="coefficient",
        ),
    ]
    return joined(*pieces)


def _theory(res: Results) -> list[Section]:
    if isinstance(res.network, NetworkSchedule):
        said = "The conditions and theorems of the paper are for one fixed network; this one changes with the round."
        return [Section("conditions", "Conditions", paragraphs([said]))]
    report = res.check()
    first = [check for check in report.checks if check.place.startswith(("Condition", "Section"))]
    rest = [check for check in report.checks if check not in first]
    theory = [check_table(rest, "Theorems, proposition and corollary, with the values of this fit.")]
    if report.advice:
        theory += [tag("h3", "Advice"), advice_list(report.advice)]
    return [
        Section(
            "conditions",
            "Conditions",
            joined(paragraphs([VERDICTS]), check_table(first, "Conditions of the paper, with the values of this fit.")),
        ),
        Section("theory", "Theory", joined(*theory)),
    ]


# ---------------------------------------------------------------------- the run


def _run(res: Results | ObjectiveResults, se: Any) -> Html:
    fit = res.record
    limit = fit.solver == "limit"
    facts: list[tuple[str, Any]] = [
        ("method", fit.method),
        ("start", fit.details.get("start", "-")),
        ("step", float(fit.step)),
        ("passes to the limit (all stages)" if limit else "rounds (all stages)", f"{fit.rounds} ({fit.total_rounds})"),
    ]
    if limit:
        facts.append(("rounds the network would need", rounds_needed(fit.rounds_needed)))
    if isinstance(res, Results):
        error = res.record.error
        facts += [
            ("optimisation error, SE", float(error.optimisation)),
            ("consensus error, SE", float(error.consensus)),
            ("tolerance, SE", float(fit.tolerance)),
            ("log-likelihood of the trusted rows", f"{res.llf:.6g}"),
            ("scale", float(res.scale)),
        ]
    pieces = [fact_table(facts, "How the estimate was computed.")]
    if isinstance(res, Results):
        pieces.append(error_chart(res.numerical_error, res.record.tolerance))
    # A solver of the limit has a few iterations, which say little.
    if not limit:
        pieces.append(run_chart(res, se))
    if res.lambda_path is not None:
        pieces.append(lambda_chart(res.lambda_path))
    return joined(*pieces)


def _notes(notes: list[str]) -> Html:
    return tag("ol", *(tag("li", note) for note in notes), class_="notes")
