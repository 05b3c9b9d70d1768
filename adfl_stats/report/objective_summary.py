"""The summary of a fit of any objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from statsmodels.iolib.table import SimpleTable

from adfl_stats.report.descents import descent_notes
from adfl_stats.report.text import Cells, TextSummary, network_cells, number, pairs, z_value
from adfl_stats.trust.weights import TRUST

if TYPE_CHECKING:
    from adfl_stats.inference.objective_results import ObjectiveResults

__all__ = ["listed_parameters", "objective_notes", "summarize_objective"]

# Clients with the least weight that the summary names. Ours.
MOST_CLIENTS = 5
# Parameters beyond these are not listed: a neural network's mean nothing one by one.
MOST_PARAMETERS = 50


def summarize_objective(res: ObjectiveResults, alpha: float = 0.05) -> TextSummary:
    """Return the summary of a fit of any objective."""
    return TextSummary(_header(res), [_parameters(res, alpha), _clients(res)], objective_notes(res))


def _header(res: ObjectiveResults) -> SimpleTable:
    fit, network = res.record, network_cells(res.network)
    left = [
        ("Method:", fit.method),
        ("Start:", str(fit.details.get("start", ""))),
        ("Step:", f"{fit.step:.3g}"),
        ("Rounds (total):", f"{fit.rounds} ({fit.total_rounds})"),
        ("Down-weighted:", f"{int((~fit.trusted).sum())} clients"),
    ]
    right = [
        ("Clients:", f"{len(fit.labels)}"),
        ("Edges:", network["edges"]),
        ("SE(W):", network["SE(W)"]),
        ("Effective clients:", f"{res.effective_clients:.1f}"),
        ("Largest spread:", f"{res.largest_spread:.3g}"),
    ]
    table = pairs(left, "Decentralised Model Results", [17, 19])
    table.extend_right(pairs([(f"  {name}", value) for name, value in right], None, [20, 16]))
    return table


def listed_parameters(res: ObjectiveResults, alpha: float) -> pd.DataFrame:
    """Return estimates, limits, standard errors and p-values of the first parameters, by name."""
    fit, shown = res.record, slice(0, MOST_PARAMETERS)
    table = pd.DataFrame({"estimate": fit.params[shown]}, index=list(fit.names[shown]))
    if res.without_errors:
        # Without the names of all the others.
        return table.assign(lower=np.nan, upper=np.nan, **{"std err": np.nan, "p": np.nan})
    limits = res.conf_int(alpha).to_numpy()[shown]
    errors = {"std err": res.bse.to_numpy()[shown], "p": res.pvalues.to_numpy()[shown]}
    return table.assign(lower=limits[:, 0], upper=limits[:, 1], **errors)


def _parameters(res: ObjectiveResults, alpha: float) -> Cells:
    table = listed_parameters(res, alpha)
    rows = [
        [number(value), number(se), z_value(value, se), f"{p:.3f}", number(low), number(high)]
        for value, low, high, se, p in table.to_numpy()
    ]
    headers = ["coef", "std err", "t", "P>|t|", f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]"]
    return Cells(rows, headers, list(table.index), None, [20, 10, 9, 8, 7, 9, 9])


def _clients(res: ObjectiveResults) -> Cells:
    table, fit = res.clients(), res.record
    worst = np.lexsort((-table["gradient"], table["weight"].round(2)))[:MOST_CLIENTS]
    rows = [
        [f"{row.total:g}", f"{row.gradient:.3g}", f"{row.weight:.3g}", f"{row.distance:.3g}"]
        for row in table.iloc[worst].itertuples()
    ]
    doubted = int((~fit.trusted).sum())
    title = f"Clients: {doubted} of {len(fit.labels)} down-weighted (weight below {TRUST:g})"
    stubs = [str(label) for label in fit.labels[worst]]
    return Cells(rows, ["total", "gradient", "weight", "distance"], stubs, title, [20, 13, 14, 14, 13])


def objective_notes(res: ObjectiveResults) -> list[str]:
    """Return what a reader of the summary should know besides its numbers."""
    if res.without_errors:
        errors = f"Standard errors: {res.without_errors}."
    else:
        errors = (
            "Standard errors are by client (CR1), from the clients' gradients and the objective's Hessian, given the "
            f"clients' final weights. Tests and intervals use the t distribution with {res.df:.0f} degrees of freedom."
        )
        if (batch := res.record.details.get("batch")) is not None:
            errors += f" The noise of minibatches of {batch} rows, which the estimate has as well, is not in them."
    P = len(res.record.names)
    return [
        errors,
        *([f"The first {MOST_PARAMETERS} of {P} parameters are listed."] if P > MOST_PARAMETERS else []),
        *descent_notes(res.record.details),
        f"Until inference {res.communication().in_words()}. See communication().",
        f"The mean gradient at the estimate has norm {res.gradient_norm:.3g}; the clients' estimates are up "
        f"to {res.clients()['distance'].max():.3g} away from it.",
        *(
            [f"Some clients sent false messages (attack {res.record.details['attack']}): a stress test."]
            if "attack" in res.record.details
            else []
        ),
    ]
